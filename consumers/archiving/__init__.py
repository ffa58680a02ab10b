"""Archives: the events and re-scores of a log as files, beyond its retention, readable as a log.

Functions  open_archive, spliced
Errors     ArchiveUnavailable, ArchiveDamaged
"""

from rolloutlog.consumers.archiving.errors import ArchiveDamaged, ArchiveUnavailable
from rolloutlog.consumers.archiving.log import ArchiveLog, open_archive
from rolloutlog.consumers.archiving.splicing import SplicedLog, spliced

__all__ = ["ArchiveDamaged", "ArchiveLog", "ArchiveUnavailable", "SplicedLog", "open_archive", "spliced"]
