"""Errors of an archive: where it cannot be reached, and where it is not what was written."""

from rolloutlog.eventstore.errors import StoreError


class ArchiveUnavailable(StoreError):
    """A file could not be read or written, such as on a full disk; what has no manifest entry does not count.

    Run the same command again.
    """

    retriable = True


class ArchiveDamaged(StoreError):
    """A file is not what its manifest entry says, or an entry is not what was written. `verify` names all of them."""
