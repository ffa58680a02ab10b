"""A reward's extra info as bytes: one mapping of text to values, limits and reserved names.

How values are written is in eventstore.extra_info_values. The bytes come from anyone who can publish, so decoding
checks everything and builds no object that is not named there.

Not here  columns over many rows: consumers.extra_info
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.extra_info_values import brief, check_text, decode_value, encode_value

KEYS_MAX = 256
SIZE_BYTES_MAX = 64 * 1024

# Names of batch columns, some of which trainers add after assembly, and of fields of dumps and metrics. `score`, `acc`
# and `pred` stay free: verl's own scorers return them.
# fmt: off
RESERVED_KEYS = frozenset({
    "__num_turns__", "advantages", "agent_name", "attention_mask", "data_source", "entropys", "extra_info",
    "extras", "global_steps", "gts", "index", "input", "input_ids", "interaction_kwargs", "loss_mask",
    "max_global_steps", "metrics", "min_global_steps", "multi_modal_data", "multi_modal_inputs", "num_turns",
    "old_log_probs", "output", "position_ids", "priority", "prompts", "raw_prompt", "ref_log_prob", "request_id",
    "response_mask", "responses", "returns", "reward", "reward_baselines", "reward_extra_info", "reward_model",
    "rm_scores", "rollout_is_weights", "rollout_log_probs", "routed_experts", "step", "teacher_ids",
    "teacher_logprobs", "token_level_rewards", "token_level_scores", "tool_rewards", "tools_kwargs", "turn_scores",
    "uid", "values",
})
# fmt: on


class InvalidExtraInfo(InvalidEvent):
    """Extra info that is refused; at assembly it costs only itself, value and sample stay.

    keys  the keys of the mapping that the text is about; empty when they could not be read
    """

    def __init__(self, message: str, *, keys: tuple[str, ...] = (), reason: str = "extra_info") -> None:
        super().__init__(message, reason=reason, field="$.extra_info")
        self.keys = keys


def encode_extra_info(mapping: Mapping[str, Any] | None) -> bytes:
    """Encode extra info; None is {}. Equal mappings in equal order give equal bytes: UTF-8 JSON without blanks.

    Raises  InvalidExtraInfo for a value of another type or a mapping above KEYS_MAX or SIZE_BYTES_MAX, naming the
            key, what was expected and what came. A tuple or set is another type: it would come back as a list
    """
    if mapping is None:
        mapping = {}
    if not isinstance(mapping, Mapping):
        raise InvalidExtraInfo(f"expected a mapping, got {type(mapping).__name__} at $.extra_info")
    _check_keys(mapping)
    plain = {key: _named(encode_value, value, key) for key, value in mapping.items()}
    encoded = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    _check_size(len(encoded), tuple(mapping))
    return encoded


def decode_extra_info(encoded: bytes) -> dict[str, Any]:
    """Decode what `encode_extra_info` gave; no bytes are {}. Raises InvalidExtraInfo for anything else."""
    if not encoded:
        return {}
    _check_size(len(encoded), ())
    try:
        parsed = _DECODER.decode(encoded.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidExtraInfo(f"expected JSON in UTF-8, got {error} at $.extra_info") from error
    if not isinstance(parsed, dict):
        raise InvalidExtraInfo(f"expected a mapping, got {type(parsed).__name__} at $.extra_info")
    _check_keys(parsed)
    if _is_plain(encoded, parsed):
        return parsed
    return {key: _named(decode_value, value, key) for key, value in parsed.items()}


def reserved_collisions(mapping: Mapping[str, Any]) -> list[str]:
    """The keys of a mapping that are reserved, in its order. Looked at when published and when assembled."""
    return [key for key in mapping if key in RESERVED_KEYS]


def _is_plain(encoded: bytes, parsed: Mapping[str, Any]) -> bool:
    """Whether all of it stands for itself, which is seen faster here than by going into each value."""
    return encoded.isascii() and b"\\u" not in encoded and _PLAIN.issuperset(map(type, parsed.values()))


def _named(convert: Any, value: Any, key: str) -> Any:
    try:
        return convert(value, f"$.extra_info.{key[:100]}")
    except ValueError as error:
        raise InvalidExtraInfo(str(error), keys=(key,)) from error


def _check_keys(mapping: Mapping[Any, Any]) -> None:
    for key in mapping:
        if type(key) is not str:
            raise InvalidExtraInfo(f"expected keys that are text, got {brief(key)} at $.extra_info")
        if key.isascii():
            continue
        try:
            check_text(key, "$.extra_info")
        except ValueError as error:
            raise InvalidExtraInfo(str(error)) from error
    if len(mapping) > KEYS_MAX:
        text = f"expected at most {KEYS_MAX} keys, got {len(mapping)} at $.extra_info"
        raise InvalidExtraInfo(text, keys=tuple(mapping), reason="extra_info_keys")


def _check_size(size_bytes: int, keys: tuple[str, ...]) -> None:
    if size_bytes > SIZE_BYTES_MAX:
        text = f"expected at most {SIZE_BYTES_MAX} bytes, got {size_bytes} at $.extra_info"
        raise InvalidExtraInfo(text, keys=keys, reason="extra_info_size")


def _no_constant(text: str) -> Any:
    raise ValueError(f"the constant {text}")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]}, which no float holds")
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        times = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {brief(next(key for key in times if times[key] > 1))} twice")
    return mapping


_PLAIN = frozenset({bool, int, float, str, type(None)})
_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_each_key_once)
