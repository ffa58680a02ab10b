"""Outputs: named results of replays, each a topic of batches and a record in the meta topic that says what made it.

The record is written once, before anything else: where reading begins and ends, settings and scorers are then the same
for whoever resumes. Two that create an output at once fence each other, so that one record is written.
"""

import json
from contextlib import aclosing
from dataclasses import asdict, dataclass
from string import ascii_letters, digits
from typing import Any

from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.settings import digest
from rolloutlog.consumers.times import exact_time
from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings, LogMissing
from rolloutlog.eventstore.log import META, Log, NewRecord, Record, TopicSettings
from rolloutlog.eventstore.log.reading import read_all
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX, RECORD_OVERHEAD_BYTES

RECORD = "OutputCreated"
PREFIX = b"output/"
META_PARTITION = 0
NAME_CHARACTERS = frozenset(ascii_letters + digits + "_-")
NAME_CHARACTERS_MAX = 80
IDS_SHOWN = 5
LIVE = "live"  # what was assembled, where one of several outputs is asked for


class OutputDiffers(InvalidSettings):
    """An output of this name exists, made with something else; the text names it."""


class OutputGone(InvalidSettings):
    """An output of this name was made, and its topic deleted."""


@dataclass(frozen=True, slots=True)
class OutputScorer:
    """A scorer that was asked. Fields: schemas/OutputCreated.v1.avsc."""

    name: str
    version: str
    source: str
    deterministic: bool


@dataclass(frozen=True, slots=True)
class OutputRewards:
    """A scorer that was not asked and whose recorded rewards count. Fields: schemas/OutputCreated.v1.avsc."""

    name: str
    version: str | None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name} {self.version}"


@dataclass(frozen=True)
class Output:
    """A replay's output. Fields and units: schemas/OutputCreated.v1.avsc."""

    name: str
    run_id: str
    config_hash: str
    settings: bytes
    scorers: tuple[OutputScorer, ...]
    selection: Selection
    first: tuple[int, ...]
    ends: tuple[int, ...]
    rewards_ends: tuple[int, ...]
    time_ns: int
    source: str
    record: bool = False
    rewards_before_ns: int | None = None
    rewards_of: tuple[OutputRewards, ...] = ()

    @property
    def topic(self) -> str:
        return topic_of(self.name)

    @property
    def app(self) -> str:
        """The name under which its positions and owners stand."""
        return app_of(self.name)


def topic_of(name: str) -> str:
    """The topic of an output. Raises InvalidSettings for a name that can't be one."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not set(name) <= NAME_CHARACTERS:
        raise InvalidSettings(
            f"output {name!r}: expected a name of 1 to {NAME_CHARACTERS_MAX} letters, digits, _ and -"
        )
    if name == LIVE:
        raise InvalidSettings(f"output {name!r}: expected another name, this one stands for what was assembled live")
    return f"output.{name}"


def app_of(name: str) -> str:
    return f"replay.{name}"


def lock_of(name: str) -> str:
    """The app whose owner may create or delete the output."""
    return f"output.{name}"


def beyond_of(scorers: tuple[OutputScorer, ...], rewards_ends: tuple[int, ...]) -> str:
    """What decides an output beside events and settings, as FoldSettings takes it; empty when nothing does."""
    if not scorers and not any(rewards_ends):
        return ""
    return digest({"scorers": [[each.name, each.version, each.source] for each in scorers],
                   "rewards_ends": list(rewards_ends)})  # fmt: skip


async def read_output(log: Log, name: str) -> Output | None:
    """The output of this name, None when there is none."""
    topic_of(name)
    return next((each for each in await list_outputs(log) if each.name == name), None)


async def list_outputs(log: Log) -> list[Output]:
    """All outputs of a log, in the order in which they were created."""
    found: dict[str, Output] = {}
    try:
        async with aclosing(read_all(log, META, META_PARTITION)) as records:
            async for record in records:
                output = _read(record)
                if output is not None:
                    found.setdefault(output.name, output)
                elif record.value is None and record.key is not None and record.key.startswith(PREFIX):
                    found.pop(record.key[len(PREFIX) :].decode(errors="replace"), None)  # deleted
    except LogMissing:
        return []  # a log without a meta topic has no outputs either
    return list(found.values())


async def create_output(log: Log, output: Output) -> Output:
    """Create the output's topic and record, unless there is one of its name; returns the one that is there.

    Raises  Fenced when another process creates it at this moment
    """
    # One partition, not the topic: retention takes an owner of whole topics for a reader.
    owner = await log.own(lock_of(output.name), META, META_PARTITION)
    try:
        found = await read_output(log, output.name)
        if found is not None:
            return found
        fields = {**asdict(output), "selection": asdict(output.selection)}
        record = NewRecord(META, META_PARTITION, PREFIX + output.name.encode(), encode_record(RECORD, fields))
        if len(record.value or b"") > EVENT_BYTES_MAX:
            ids = len(output.selection.groups) + len(output.selection.rollouts)
            raise InvalidSettings(
                f"output {output.name}: expected ids of at most {EVENT_BYTES_MAX} bytes in all, got {ids} ids and "
                f"{len(record.value or b'')} bytes: choose by --from and --to, or make several outputs"
            )
        await log.create([_topic_settings(output)])
        await owner.commit([record], {})
        return output
    finally:
        await owner.close()


async def is_there(log: Log, output: Output) -> bool:
    """Whether the output's topic exists: its record stays when it was deleted by other means than ours."""
    try:
        await log.partitions(output.topic)
    except LogMissing:
        return False
    return True


async def check_topic(log: Log, output: Output) -> None:
    """Raises OutputGone when the topic was deleted: what is out already would not come again."""
    if not await is_there(log, output):
        raise OutputGone(
            f"output {output.name}: expected topic {output.topic}, got none: it was deleted. What had been put out is "
            "known to be, and would not come again: choose another name for --output, or free this one with "
            f"`rolloutlog outputs delete {output.name}`"
        )


def check_same(found: Output, wanted: Output, *, rewards_given: bool) -> None:
    """Whether a replay as `wanted` may go on with `found`. Raises OutputDiffers naming the first thing that differs.

    rewards_given  it was said which recorded rewards count; else those of `found` do
    """
    for what, expected, got in _differences(found, wanted, rewards_given):
        raise OutputDiffers(
            f"output {found.name} was made with {what} {expected}, got {got}: what is in it would not fit together. "
            f"Run it as it was, or choose another name for --output"
        )
    if wanted.record and not found.record:
        raise OutputDiffers(
            f"output {found.name} was made without --record: none of its rewards were recorded, and none would be now. "
            "To record them use another --output; verdicts are cached, nothing is asked again"
        )
    if rewards_given and found.rewards_ends != wanted.rewards_ends:
        raise OutputDiffers(
            f"output {found.name} was made {_rewards(found)}, got {_rewards(wanted)}: other recorded rewards would "
            "count. Leave --rewards-as-of out to go on as the output was made, or choose another name for --output"
        )


def _differences(found: Output, wanted: Output, rewards_given: bool) -> list[tuple[str, Any, Any]]:
    pairs: list[tuple[str, Any, Any]] = [("run", found.run_id, wanted.run_id)]
    before, after = json.loads(found.settings), json.loads(wanted.settings)
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            pairs += [(f"{name}.{key}", one.get(key), other.get(key)) for key in sorted(one.keys() | other.keys())]
        else:
            pairs.append((name, one, other))
    pairs.append(("scorers", _names(found), _names(wanted)))
    for one, other in zip(found.scorers, wanted.scorers, strict=False):
        pairs.append((f"scorer {one.name} in a file with digest", one.source, other.source))
    here, there = found.selection, wanted.selection
    pairs += [("--from", _time(here.from_ns), _time(there.from_ns)), ("--to", _time(here.to_ns), _time(there.to_ns))]
    pairs += [
        ("--group", _ids(here.groups), _ids(there.groups)),
        ("--rollout", _ids(here.rollouts), _ids(there.rollouts)),
    ]
    if found.record:
        pairs.append(("--record", "given", "given" if wanted.record else "none"))
    return [each for each in pairs if each[1] != each[2]]


def _names(output: Output) -> str:
    return ", ".join(f"{each.name} {each.version}" for each in output.scorers) or "none"


def _rewards(output: Output) -> str:
    """Which recorded rewards count, as it is asked for."""
    if output.rewards_before_ns is None:
        return f"without --rewards-as-of, with all that was recorded until {exact_time(output.time_ns)}"
    return f"with --rewards-as-of {exact_time(output.rewards_before_ns) if output.rewards_before_ns else 'none'}"


def _time(time_ns: int | None) -> str:
    return "none" if time_ns is None else exact_time(time_ns)


def _ids(ids: tuple[str, ...]) -> str:
    """All of them, few as they are; of many, how many and which by a digest."""
    return ", ".join(ids) or "none" if len(ids) <= IDS_SHOWN else f"{len(ids)} ids, digest {digest(sorted(ids))}"


def _topic_settings(output: Output) -> TopicSettings:
    """As the batches topic, but kept for ever: whoever made it decides when it goes."""
    return TopicSettings(output.topic, len(output.ends), None, EVENT_BYTES_MAX + RECORD_OVERHEAD_BYTES)


def _read(record: Record) -> Output | None:
    if record.key is None or not record.key.startswith(PREFIX):
        return None
    try:
        fields = decode_record(record.value, expected=RECORD)[1]
    except InvalidEvent:
        return None  # deleted, or written by a newer version
    chosen = fields["selection"]
    fields["selection"] = Selection(
        chosen["from_ns"], chosen["to_ns"], tuple(chosen["groups"]), tuple(chosen["rollouts"])
    )
    fields["scorers"] = tuple(OutputScorer(**each) for each in fields["scorers"])
    fields["rewards_of"] = tuple(OutputRewards(**each) for each in fields["rewards_of"])
    for name in ("first", "ends", "rewards_ends"):
        fields[name] = tuple(fields[name])
    return Output(**fields)
