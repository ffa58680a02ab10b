"""Settings that change output, and their hash.

Every output carries the hash, so that batches of different settings are told apart. The log's URL, intervals and paths
change no output and are not in it.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.events import SPLITS

FOLD_VERSION = 1  # raised when the same events give other outputs

TRAJECTORY = "trajectory"
MERGES = ("none", TRAJECTORY)
ON_INCOMPLETE = ("drop", "keep")
DIGEST_BYTES = 16
LATE_WINDOW_S_MAX = 366 * 24 * 3600


@dataclass(frozen=True)
class FoldSettings:
    """What decides the outputs of a fold.

    attribution    which reward counts for which call
    merge          calls of a sample: `none` = one, `trajectory` = one line of conversation
    min_group      closed-as-completed rollouts a group needs to be trained; 1 for groups of one
    splits         splits that yield samples; others are published with their rewards alone
    on_incomplete  a rollout with a refused event: `drop`, or `keep` its samples
    late_window_s  how long a closed group is remembered, and how old a resent start may be, in seconds of log time
    beyond         of a replay, the digest of what decides beside events and settings: scorers, recorded rewards
    Raises         InvalidSettings naming the setting
    """

    attribution: AttributionSettings = field(default_factory=AttributionSettings)
    merge: str = "none"
    min_group: int = 2
    splits: tuple[str, ...] = ("train",)
    on_incomplete: str = "drop"
    late_window_s: float = 600.0
    beyond: str = ""

    def __post_init__(self) -> None:
        _one_of("merge", self.merge, MERGES)
        _one_of("on_incomplete", self.on_incomplete, ON_INCOMPLETE)
        for split in self.splits:
            _one_of("splits", split, SPLITS)
        if type(self.min_group) is not int or self.min_group < 1:
            raise InvalidSettings(f"min_group: expected an integer from 1, got {self.min_group!r}")
        if not self.splits:
            raise InvalidSettings(f"splits: expected one or more of {', '.join(SPLITS)}, got none")
        if not 0 <= self.late_window_s <= LATE_WINDOW_S_MAX:
            raise InvalidSettings(
                f"late_window_s: expected seconds from 0 to {LATE_WINDOW_S_MAX}, got {self.late_window_s!r}"
            )

    @property
    def late_window_ns(self) -> int:
        return int(self.late_window_s * 1_000_000_000)

    @cached_property
    def config_hash(self) -> str:
        """BLAKE2b-128 of the canonical JSON of the fold version and every setting, as 32 hex digits."""
        own = digest(self.canonical())
        return digest({"fold": own, "beyond": self.beyond}) if self.beyond else own

    def canonical(self) -> dict[str, Any]:
        """The fold version and every setting that live assembly knows, as JSON has them."""
        return {
            "fold_version": FOLD_VERSION,
            "attribution": self.attribution.canonical(),
            "merge": self.merge,
            "min_group": self.min_group,
            "splits": sorted(set(self.splits)),
            "on_incomplete": self.on_incomplete,
            "late_window_s": float(self.late_window_s),
        }


def digest(value: object) -> str:
    """BLAKE2b-128 of canonical JSON, as 32 hex digits."""
    return blake2b(canonical_json(value), digest_size=DIGEST_BYTES).hexdigest()


def canonical_json(value: object) -> bytes:
    """Sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidSettings(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
