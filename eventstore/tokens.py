"""Token ids and log-probs as packed bytes.

Ids are int32 little-endian, log-probs float32 little-endian. Lists, numpy arrays and bytes are taken; what cannot be
held without loss is refused with the index at which it stands.
"""

from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import Any

import numpy as np
import numpy.typing as npt

from rolloutlog.eventstore.errors import InvalidEvent

TOKEN_BYTES = 4
TOKEN_ID_MAX = 2**31 - 1
LOGPROB_MAX = 0.01  # a probability is at most 1, so its log at most 0; engines that compute in bfloat16 round above it
INT32, UINT32 = np.dtype("<i4"), np.dtype("<u4")
LOGPROB_MAX_BITS = int(np.float32(LOGPROB_MAX).view(np.int32))
MINUS_INFINITY_BITS = 0xFF800000

_largest = np.maximum.reduce  # an array's own method takes a way through Python

TokenIds = Sequence[int] | npt.NDArray[Any] | bytes
Logprobs = Sequence[float] | npt.NDArray[Any] | bytes


def pack_token_ids(ids: TokenIds, field: str) -> bytes:
    """Pack token ids, each from 0 to 2**31 - 1, shape [T], into 4 T bytes.

    Raises  InvalidEvent naming `field`, the index and the value
    """
    if isinstance(ids, bytes | bytearray | memoryview):
        packed = bytes(ids)
        check_packed(packed, field)
        return packed
    if hasattr(ids, "__array__"):  # numpy's own, and tensors
        return _pack_array(ids, field)
    if _begins_with_bool(ids):
        raise _refused(field, 0, ids[0])
    try:
        # array refuses fractions and what is above int32, and is three times faster than numpy on a list.
        numbers = array("i", ids)
    except (TypeError, OverflowError) as error:
        raise _refused(field, *_first_bad(ids)) from error
    if byteorder == "big":
        numbers.byteswap()
    packed = numbers.tobytes()
    check_packed(packed, field)
    return packed


def pack_logprobs(logprobs: Logprobs, field: str) -> bytes:
    """Pack log-probs (natural log, finite, not above 0), shape [T], into 4 T bytes.

    Raises  InvalidEvent naming `field` and index
    """
    if isinstance(logprobs, bytes | bytearray | memoryview):
        packed = bytes(logprobs)
    else:
        try:
            if _begins_with_bool(logprobs):
                raise TypeError(f"it begins with {logprobs[0]}")
            values = np.asarray(logprobs)
            if values.ndim != 1 or (values.size and values.dtype.kind not in "fiu"):
                raise TypeError(f"{values.dtype} of {values.ndim} dimensions")
            with np.errstate(over="ignore"):
                packed = values.astype("<f4").tobytes()
        except Exception as error:  # what is no array fails in many ways, such as tensors on a device
            raise InvalidEvent(
                f"expected a flat list of numbers, got {type(logprobs).__name__} ({error}) at $.{field}",
                reason=f"{field}_type",
                field=f"$.{field}",
            ) from error
    check_logprobs(packed, field)
    return packed


def check_packed(packed: bytes, field: str) -> None:
    """Check that bytes are int32 little-endian token ids from 0 on."""
    if len(packed) % TOKEN_BYTES:
        raise InvalidEvent(
            f"expected 4 bytes a token, got {len(packed)} bytes at $.{field}",
            reason=f"{field}_length",
            field=f"$.{field}",
        )
    # The last byte of a negative number is no ASCII. Every call is checked by each that reads it: this takes a third of
    # the time that a comparison of numbers does.
    if not packed[TOKEN_BYTES - 1 :: TOKEN_BYTES].isascii():
        ids = np.frombuffer(packed, "<i4")
        index = int((ids < 0).argmax())
        raise _refused(field, index, int(ids[index]))


def check_logprobs(packed: bytes, field: str) -> None:
    """Check that bytes are float32 little-endian numbers, finite and at most LOGPROB_MAX."""
    if len(packed) % TOKEN_BYTES:
        raise InvalidEvent(
            f"expected 4 bytes a log-prob, got {len(packed)} bytes at $.{field}",
            reason=f"{field}_length",
            field=f"$.{field}",
        )
    # By their bits, in half the time: as signed integers, positive numbers are in order, infinity and nan above them,
    # and all negative ones below; as unsigned ones, minus infinity and nan are above all other negative ones.
    if not packed or (
        _largest(np.frombuffer(packed, INT32)) <= LOGPROB_MAX_BITS
        and _largest(np.frombuffer(packed, UINT32)) < MINUS_INFINITY_BITS
    ):
        return
    values = np.frombuffer(packed, "<f4")
    finite = np.isfinite(values)
    if not finite.all():
        index = int(finite.argmin())
        raise InvalidEvent(
            f"expected finite float32, got {values[index]} at $.{field}[{index}]",
            reason=f"{field}_not_finite",
            field=f"$.{field}",
        )
    index = int((values > LOGPROB_MAX).argmax())
    raise InvalidEvent(
        f"expected natural logs of probabilities, at most 0, got {values[index]:g} at $.{field}[{index}]; were "
        "probabilities passed? give their logs",
        reason=f"{field}_positive",
        field=f"$.{field}",
    )


def unpack_token_ids(packed: bytes) -> npt.NDArray[np.int32]:
    """View packed ids as int32[T], without a copy."""
    return np.frombuffer(packed, "<i4")


def _pack_array(values: Any, field: str) -> bytes:
    try:
        ids = np.asarray(values)
    except Exception as error:  # such as a tensor on a device
        raise InvalidEvent(
            f"expected integers of one dimension, got {type(values).__name__} ({error}) at $.{field}",
            reason=f"{field}_type",
            field=f"$.{field}",
        ) from error
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InvalidEvent(
            f"expected integers of one dimension, got {ids.dtype} of shape {ids.shape} at $.{field}",
            reason=f"{field}_type",
            field=f"$.{field}",
        )
    if ids.size:
        bad = (ids < 0) | (ids > TOKEN_ID_MAX)
        if bad.any():
            index = int(bad.argmax())
            raise _refused(field, index, int(ids[index]))
    return ids.astype("<i4").tobytes()


def _begins_with_bool(values: Any) -> bool:
    """Whether it is a mask by mistake, which packs as 0 and 1. Only the first is looked at: all would cost as much as
    packing."""
    try:
        return isinstance(values[0], bool | np.bool_)
    except (TypeError, LookupError):
        return False


def _first_bad(ids: Any) -> tuple[int | None, Any]:
    try:
        for index, number in enumerate(ids):
            try:
                array("i", [number])
            except (TypeError, OverflowError):
                return index, number
    except TypeError:
        pass
    return None, ids


def _refused(field: str, index: int | None, got: Any) -> InvalidEvent:
    place = f"$.{field}" if index is None else f"$.{field}[{index}]"
    text = repr(got)
    return InvalidEvent(
        f"expected token ids from 0 to 2**31 - 1, got {text if len(text) < 60 else type(got).__name__} at {place}",
        reason=f"{field}_range",
        field=f"$.{field}",
    )
