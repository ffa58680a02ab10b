"""Errors of the store. Each says what failed, what was expected and got, where, and what happens next.

`retriable` means that the same request may succeed later. Errors of a driver become one of these at the edge.
"""


class StoreError(Exception):
    """Base of all our errors. `retriable`: the same request may succeed later."""

    retriable = False


class InvalidEvent(StoreError):
    """A field of an event is not what the schema or a rule allows; the text names the field, expected and got.

    reason  short stable name of the fault, e.g. `logprobs_length`: the key under which it is counted
    field   where in the event, e.g. `$.logprobs`
    """

    def __init__(self, message: str, *, reason: str = "invalid", field: str = "$") -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field


class UnknownSchema(InvalidEvent):
    """Framed bytes of a schema that this version does not know: a newer one wrote them, which can read them."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="unknown_fingerprint")


class InvalidSettings(StoreError):
    """A setting, URL or argument is unusable; the text names it and what is expected."""


class LogUnavailable(StoreError):
    """No answer in time; what was sent may be stored.

    Publish it again, marked `resend`: its identity makes that safe.

    maybe_stored  False where the log knows that no record of this request is stored: publish it again as it was
    """

    retriable = True

    def __init__(self, message: str, *, maybe_stored: bool = True) -> None:
        super().__init__(message)
        self.maybe_stored = maybe_stored


class LogMissing(StoreError):
    """The log or one of its topics does not exist. `rolloutlog topics create` makes it."""


class RecordTooLarge(StoreError):
    """A record is above the log's limit; nothing of it was stored."""


class Fenced(StoreError):
    """Another owner took over this partition. Nothing of the refused transaction was stored."""


class OffsetOutOfRange(StoreError):
    """The wanted offset is below the log's first one: retention or a trim removed it."""


class PartitionCountChanged(StoreError):
    """The log has another partition count than when it was created; keys would move. Use a new prefix."""


class BufferFull(StoreError):
    """The publisher's memory is full because the log does not take events; this event was not recorded."""

    retriable = True


class StillBehind(StoreError):
    """`hold` reached its deadline: the trainer has not acknowledged enough yet."""

    retriable = True


class NotStored(StoreError):
    """`flush` or `close` reached its deadline; the text says how many events of which rollouts are not stored."""

    retriable = True
