"""Errors of the Kafka client, turned into ours.

An error is final when the same request cannot succeed before a person changes something; all others are worth
another try until a deadline.
"""

from aiokafka import errors as kafka

from rolloutlog.eventstore.errors import LogUnavailable, StoreError

NOT_ALLOWED: tuple[type[Exception], ...] = (
    kafka.TopicAuthorizationFailedError,
    kafka.GroupAuthorizationFailedError,
    kafka.ClusterAuthorizationFailedError,
    kafka.TransactionalIdAuthorizationFailed,
    kafka.AuthenticationFailedError,
    kafka.AuthenticationMethodNotSupported,
    kafka.UnsupportedSaslMechanismError,
    kafka.IllegalSaslStateError,
)
FINAL: tuple[type[Exception], ...] = (
    *NOT_ALLOWED,
    kafka.InvalidTopicError,
    kafka.InvalidPartitionsError,
    kafka.InvalidReplicationFactorError,
    kafka.InvalidConfigurationError,
    kafka.InvalidRequestError,
    kafka.PolicyViolationError,
    kafka.UnsupportedVersionError,
    kafka.IncompatibleBrokerVersion,
    kafka.UnsupportedCodecError,
)


def our_error(error: BaseException, what: str, outcome: str, *, maybe_stored: bool = True) -> StoreError:
    """The error of ours for one of the driver; raise it `from` that one.

    what          what failed, and where
    outcome       what is stored now and what to do next
    maybe_stored  whether records of this request may be stored
    """
    text = f"{what}: {describe(error)}; {outcome}"
    if isinstance(error, NOT_ALLOWED):
        return StoreError(f"{text}; the cluster does not allow this user to do it: grant it, or use another user")
    return StoreError(text) if isinstance(error, FINAL) else LogUnavailable(text, maybe_stored=maybe_stored)


def describe(error: BaseException) -> str:
    """One line for an error of the driver; its own texts repeat or lack the name."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(error)
    name = type(error).__name__
    return text if name in text else f"{name}: {text}" if text else name
