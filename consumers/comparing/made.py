"""How a side was made: the record of an output, in the words of a comparison."""

import json

from rolloutlog.consumers.comparing.sides import Side
from rolloutlog.consumers.explaining.columns import many
from rolloutlog.consumers.named_topic import topic_named
from rolloutlog.consumers.replaying.outputs import LIVE, Output, app_of, read_output
from rolloutlog.consumers.status import read_statuses
from rolloutlog.consumers.times import show_time
from rolloutlog.eventstore.log import Log


async def side_of(log: Log, name: str) -> Side:
    """The side of this name, nothing read of it so far. Raises InvalidSettings when there is none."""
    side = Side(name, await topic_named(log, name))
    output = None if name == LIVE else await read_output(log, name)
    if output is not None:
        side.settings = json.loads(output.settings)
        scorers = [f"{each.name} {each.version}" for each in output.scorers]
        side.scorers = (*scorers, *(["recorded rewards"] if any(output.rewards_ends) else []))
        side.selection = _selection(output)
        side.percent = await _percent(log, output)
    return side


async def _percent(log: Log, output: Output) -> int:
    """How much of its events has been read, by the statuses of those who replay it."""
    statuses = await read_statuses(log, partitions=None, app=app_of(output.name))
    total = done = 0
    for partition, (first, end) in enumerate(zip(output.first, output.ends, strict=True)):
        total += end - first
        if partition in statuses:
            done += min(statuses[partition].position, end) - first
    return 100 * done // total if total else 100


def _selection(output: Output) -> str:
    chosen = output.selection
    words = []
    if chosen.groups:
        words.append(many(len(chosen.groups), "group"))
    if chosen.rollouts:
        words.append(f"the groups of {many(len(chosen.rollouts), 'rollout')}")
    times = []
    if chosen.from_ns is not None:
        times.append(f"from {show_time(chosen.from_ns)}")
    if chosen.to_ns is not None:
        times.append(f"before {show_time(chosen.to_ns)}")
    if times:
        words.append(f"groups closed {' and '.join(times)}")
    return ", ".join(words)
