"""Collect batches into steps: staleness, filters, and how each sample ends. Pure: no clock, no I/O.

Batches come in the order in which they arrive, each partition's in offset order. A step takes all that arrived up to
its last group, so that what it takes of each partition is a prefix; with it go the groups passed over on the way.

stale      a group whose oldest policy version is more than `max_staleness` behind; an unknown version is never stale
Not here   in consumers.stream: samples that end rejected or filtered: admission; reading: prefetch; acknowledging:
           reader_owner
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.published import Published
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.acked import Reached
from rolloutlog.consumers.stream.admission import EXCLUDE, FILTER, KEEP, admit
from rolloutlog.consumers.stream.overlong import DROP, OVERLONG, Limits
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.acks import REJECTED, STALE, TRAINED, SampleEnd
from rolloutlog.eventstore.checks import plain_integer, plain_number
from rolloutlog.eventstore.errors import InvalidSettings

logger = logging.getLogger("rolloutlog.trainer")


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What a step is made of. Raises InvalidSettings naming the setting.

    groups_per_step      groups with samples left, each a batch
    max_staleness        policy versions a group may be behind; None = any
    missing_reward       `exclude` samples without a reward, or the number that stands for it
    prompt_tokens_max    None = any
    response_tokens_max  as above
    drop_last            at the end of the run, leave what is no whole step unread
    prompt_overlong      longer prompts: `drop` the sample, `truncate_left` or `truncate_right`: see overlong
    response_overlong    as above
    zero_variance        groups whose rollouts all have one reward: `keep`, or `filter`
    """

    groups_per_step: int
    max_staleness: int | None
    missing_reward: str | float
    prompt_tokens_max: int | None = None
    response_tokens_max: int | None = None
    drop_last: bool = False
    prompt_overlong: str = DROP
    response_overlong: str = DROP
    zero_variance: str = KEEP

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"groups_per_step": _integer("groups_per_step", self.groups_per_step, 1)}
        for name, least in (("max_staleness", 0), ("prompt_tokens_max", 1), ("response_tokens_max", 1)):
            if getattr(self, name) is not None:
                given[name] = _integer(name, getattr(self, name), least, " or None")
        missing = given["missing_reward"] = plain_number(self.missing_reward)
        number = isinstance(missing, int | float) and not isinstance(missing, bool) and isfinite(missing)
        if not number and missing != EXCLUDE:
            raise InvalidSettings(f"missing_reward: expected 'exclude' or a finite number, got {missing!r}")
        for name, value in given.items():
            object.__setattr__(self, name, value)  # plain numbers: numpy's would go as far as into the log
        for name, allowed in (
            ("prompt_overlong", OVERLONG),
            ("response_overlong", OVERLONG),
            ("zero_variance", (KEEP, FILTER)),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidSettings(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("prompt", "response"):
            if getattr(self, f"{name}_overlong") != DROP and getattr(self, f"{name}_tokens_max") is None:
                raise InvalidSettings(
                    f"{name}_overlong={getattr(self, f'{name}_overlong')!r}: expected {name}_tokens_max, got none"
                )

    @property
    def limits(self) -> Limits:
        return Limits(self.prompt_tokens_max, self.response_tokens_max, self.prompt_overlong, self.response_overlong)

    @property
    def fill(self) -> float | None:
        return None if isinstance(self.missing_reward, str) else float(self.missing_reward)


@dataclass(slots=True)
class Taken:
    """What a step took from the stream, or the end of the run did: what its acknowledgement says.

    reached      batches partition → where reading goes on after it
    evaluations  groups without samples
    """

    reached: dict[int, Reached] = field(default_factory=dict)
    batch_ids: tuple[str, ...] = ()
    samples: list[SampleEnd] = field(default_factory=list)
    evaluations: tuple[Batch, ...] = ()


@dataclass(slots=True)
class _Arrived:
    """One batch. `kept` is empty where it goes into no step; its samples then end as `ends` says."""

    partition: int
    offset: int
    end: int
    batch: Batch | None  # None once it will not be handed out
    kept: tuple[Sample, ...]
    ends: list[SampleEnd]
    total_count: int
    rewarded_count: int


class Collector:
    """The batches that arrived and are in no step yet. `counts`: batches, evaluations and reasons by name."""

    def __init__(self, settings: StepSettings, reached: Mapping[int, Reached], *, number: int, origin: str) -> None:
        """Begin where `reached` says, one entry a partition, with step `number`."""
        self.settings = settings
        self.number = number
        self.origin = origin
        self.counts: Counter[str] = Counter()
        self._settled = dict(reached)
        self._arrived: list[_Arrived] = []
        self._groups = 0  # of those that arrived
        self._reached: dict[int, Reached] = {}
        self._version: int | None = None  # by which staleness was last looked at
        self._told_unknown = False

    @property
    def group_count(self) -> int:
        """Groups that wait for a step."""
        return self._groups

    @property
    def passed_over(self) -> Counter[str]:
        """Samples that wait for a step and will end otherwise, by end."""
        return Counter(sample.end for each in self._arrived for sample in each.ends)

    def add(self, published: Published, policy_version: int | None) -> None:
        """Take the next batch. A stale one is known by its sample ids from here on, and holds no memory."""
        batch = published.batch
        assert batch is not None, "the end of a run is no batch"
        kept, ends = admit(batch, self.settings, self.counts)
        arrived = _Arrived(
            partition=published.partition,
            offset=published.offset,
            end=published.end,
            batch=batch if kept or not batch.samples else None,
            kept=tuple(kept),
            ends=ends,
            total_count=len(batch.samples),
            rewarded_count=sum(each.total is not None for each in batch.samples),
        )
        self.counts["batches" if batch.samples else "evaluations"] += 1
        self._arrived.append(arrived)
        self._groups += bool(kept)
        self._look(arrived, policy_version)

    def reach(self, reached: Mapping[int, Reached]) -> None:
        """All records below were added, or hold no batch."""
        self._reached.update(reached)

    def settled(self) -> dict[int, Reached]:
        """Where reading goes on after what was taken so far: past records without a batch, where none waits."""
        waiting = {each.partition for each in self._arrived}
        for partition, reached in self._reached.items():
            if partition not in waiting and reached.offset >= self._settled[partition].offset:
                self._settled[partition] = reached
        return dict(self._settled)

    def is_whole(self, policy_version: int | None) -> bool:
        """Whether a whole step waits, by the stream's policy version now."""
        self._look_again(policy_version)
        return self.group_count >= self.settings.groups_per_step

    def form(self, policy_version: int | None, *, last: bool = False) -> tuple[Step, Taken] | None:
        """The next step and what it took; None when there are too few groups. `last`: a smaller one will do."""
        if not self.is_whole(policy_version) and not (last and self.group_count and not self.settings.drop_last):
            return None
        count = index = 0
        while index < len(self._arrived) and count < self.settings.groups_per_step:
            count += bool(self._arrived[index].kept)
            index += 1
        took, self._arrived = self._arrived[:index], self._arrived[index:]
        self._groups -= count
        step = self._step([each for each in took if each.kept], took, policy_version)
        self.number += 1
        _warn_of_missing_rewards(step.number, took)
        return step, self._taken(took, step.batches)

    def form_rest(self) -> Taken | None:
        """What was passed over after the last step, when the run has ended; None when there is nothing."""
        index = 0
        while index < len(self._arrived) and not self._arrived[index].kept:
            index += 1
        took, self._arrived = self._arrived[:index], self._arrived[index:]
        return self._taken(took, ()) if took else None

    def _step(self, groups: list[_Arrived], took: list[_Arrived], policy_version: int | None) -> Step:
        groups = sorted(groups, key=lambda each: (each.partition, each.offset))
        batches = tuple(_without_rejected(each.batch, each.ends) for each in groups if each.batch is not None)
        return Step(
            number=self.number,
            batches=batches,
            samples=tuple(sample for each in groups for sample in each.kept),
            groups=tuple(index for index, each in enumerate(groups) for _ in each.kept),
            staleness=tuple(_staleness(batch, policy_version) for batch in batches),
            policy_version=policy_version,
            evaluations=_evaluations(took),
            missing_reward=self.settings.fill,
            origin=self.origin,
        )

    def _taken(self, took: list[_Arrived], batches: tuple[Batch, ...]) -> Taken:
        samples: list[SampleEnd] = []
        for each in took:
            self._settled[each.partition] = Reached(each.end)
            samples += [SampleEnd(sample.sample_id, TRAINED) for sample in each.kept]
            samples += each.ends
        return Taken(self.settled(), tuple(batch.batch_id for batch in batches), samples, _evaluations(took))

    def _look_again(self, policy_version: int | None) -> None:
        if policy_version != self._version:
            for each in self._arrived:
                self._look(each, policy_version)
            self._version = policy_version

    def _look(self, arrived: _Arrived, policy_version: int | None) -> None:
        """Whether a group that would go into a step is stale by now."""
        batch, most = arrived.batch, self.settings.max_staleness
        if most is None or batch is None or not arrived.kept:
            return
        if policy_version is None:
            raise InvalidSettings(
                f"max_staleness={most}: expected set_policy_version(version) before a step is asked for, got none"
            )
        staleness = _staleness(batch, policy_version)
        if staleness is None:
            if not self._told_unknown:
                self._told_unknown = True
                logger.warning(
                    "group %s (%d:%d): no policy version is known of a call, so that it is never stale; hosts tell it "
                    "with policy_version=; this is said once", batch.group_id, arrived.partition, arrived.offset
                )  # fmt: skip
        elif staleness > most:
            arrived.ends = [SampleEnd(each.sample_id, STALE) for each in batch.samples]
            arrived.batch, arrived.kept = None, ()
            self._groups -= 1
            arrived.total_count = arrived.rewarded_count = 0


def _evaluations(took: list[_Arrived]) -> tuple[Batch, ...]:
    found = sorted((each for each in took if not each.kept), key=lambda each: (each.partition, each.offset))
    return tuple(each.batch for each in found if each.batch is not None)


def _without_rejected(batch: Batch, ends: Iterable[SampleEnd]) -> Batch:
    """The batch without what is wrong in itself: metrics and whoever looks through it may rely on the rest."""
    rejected = {each.sample_id for each in ends if each.end == REJECTED}
    if not rejected:
        return batch
    return replace(batch, samples=tuple(each for each in batch.samples if each.sample_id not in rejected))


def _staleness(batch: Batch, policy_version: int | None) -> int | None:
    if policy_version is None or batch.policy_version_min is None:
        return None
    return policy_version - batch.policy_version_min


def _warn_of_missing_rewards(number: int, took: list[_Arrived]) -> None:
    total = sum(each.total_count for each in took)
    missing = total - sum(each.rewarded_count for each in took)
    if 2 * missing > total:
        logger.warning(
            "step %d: %d of %d samples carry no reward: see `rolloutlog batches dump`, field outcomes",
            number, missing, total,
        )  # fmt: skip


def _integer(name: str, value: object, least: int, more: str = "") -> int:
    value = plain_integer(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidSettings(f"{name}: expected an integer from {least}{more}, got {value!r}")
    return value
