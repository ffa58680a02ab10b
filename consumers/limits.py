"""How long anything may wait, and how long events must be kept for that.

No limit is in the config hash: limits change what is put out only through the decisions that they lead to, which are
events in the log. Whoever folds that log again, with whatever limits, puts the same out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import EVENTS, Difference, Log
from rolloutlog.eventstore.topics import RETENTION_S, topic_settings

REPAIR_S = 24 * 3600  # to put right what stopped the assembler
SECONDS_MAX = 366 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Limits:
    """When the owner of a partition ends what waits.

    idle_s            a running rollout without any event
    age_s             a rollout, all of its attempts together
    grace_s           a completed rollout of which something is missing, without any event. No limit ends anything
                      sooner than this after the owner has read to the end
    retry_s           a failed or expired attempt, for the start of the next one
    group_age_s       a group, after its first rollout closed
    replay_bytes_max  of events read since the first event of the oldest open group: a restart reads them again
    Raises            InvalidSettings naming the setting
    """

    idle_s: float = 600.0
    age_s: float = 7_200.0
    grace_s: float = 60.0
    retry_s: float = 300.0
    group_age_s: float = 900.0
    replay_bytes_max: int = 2 * 2**30

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_s") and not 0 < value <= SECONDS_MAX:
                raise InvalidSettings(f"{each.name}: expected seconds above 0 up to {SECONDS_MAX}, got {value!r}")
        if self.replay_bytes_max < 1:
            raise InvalidSettings(f"replay_bytes_max: expected at least 1, got {self.replay_bytes_max!r}")

    @property
    def open_s_max(self) -> float:
        """The longest that a group can be open: its first rollout ends by age, and then the group by its own."""
        return self.age_s + self.group_age_s

    @property
    def longest_s(self) -> float:
        return max(self.open_s_max, self.idle_s, self.grace_s, self.retry_s)

    @property
    def retention_s_min(self) -> float:
        """Events must be kept for longer than this."""
        return self.open_s_max + REPAIR_S


def events_kept_s(differences: Sequence[Difference]) -> float | None:
    """How long a log keeps events, in seconds, by its differences from the default. None = for ever."""
    found = {each.setting: each.found for each in differences if each.topic == EVENTS}
    kept = found.get("retention_s", str(RETENTION_S[EVENTS]))
    return None if kept in ("None", None) else float(kept)


def too_short(kept_s: float | None, limits: Limits) -> str | None:
    """What is wrong with keeping events for so long, None when nothing is."""
    if kept_s is None or kept_s > limits.retention_s_min:
        return None
    return (
        f"{EVENTS} are kept for {kept_s:g} s, expected more than {limits.retention_s_min:g} s: the longest rollout and "
        f"group (age_s {limits.age_s:g} + group_age_s {limits.group_age_s:g}) and a day to repair what stopped the "
        "assembler"
    )


async def check_retention(log: Log, limits: Limits) -> None:
    """Raise InvalidSettings when the log may remove events of a group that is still open."""
    settings = topic_settings(partitions=await log.partitions(EVENTS))
    # Of this topic alone: an assembler needs no right to see all of them.
    differences = await log.differences([each for each in settings if each.name == EVENTS])
    wrong = too_short(events_kept_s(differences), limits)
    if wrong is not None:
        raise InvalidSettings(f"{wrong}. Raise the topic's retention.ms, or lower age_s or group_age_s")
