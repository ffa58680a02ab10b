"""What the two sides of a comparison are: where their batches come from, and the settings they were made with. Pure.

A batch names its settings by their hash alone. Those of an output are recorded when it is made; those of live batches
are known where the settings at hand have the hash.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "unknown"


@dataclass(slots=True)
class Side:
    """One output, or what was assembled live.

    settings    as they are hashed; None = not known
    scorers     that scored it, each in words, such as `judge 3f2a`; selection: in words, empty = everything
    hashes      of settings → batches; several where they were changed on the way
    percent     how far the replay is; refused: records that are no batch
    """

    name: str
    topic: str
    settings: Mapping[str, Any] | None = None
    scorers: tuple[str, ...] = ()
    selection: str = ""
    percent: int = 100
    batches: int = 0
    rollouts: int = 0
    refused: int = 0
    hashes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Sides:
    """Both. `repeated`: times that a rollout stands in another batch of the same side too."""

    before: Side
    after: Side
    repeated: int = 0

    @property
    def alike(self) -> bool:
        """Whether all batches of both were made with the same settings and scorers."""
        return len(self.before.hashes.keys() | self.after.hashes.keys()) <= 1

    def differences(self) -> list[tuple[str, str, str]] | None:
        """Settings that differ: name, before, after, values as JSON. None where those of a side are not known."""
        if self.before.settings is None or self.after.settings is None:
            return None
        sides = dict(_flat(self.before.settings)), dict(_flat(self.after.settings))
        names = {**sides[0], **sides[1]}
        found = [(name, sides[0].get(name, "none"), sides[1].get(name, "none")) for name in names]
        return [each for each in found if each[1] != each[2]]


def _flat(settings: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{begin}{name}.")
        elif value not in ({}, None):
            yield f"{begin}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
