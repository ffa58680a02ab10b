"""Recorded rewards of one rollout, as lines of text and as plain JSON values."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from rolloutlog.consumers.explaining.explain import UNREAD_SHOWN, extra_lines
from rolloutlog.consumers.explaining.extra_info_shown import extra_json
from rolloutlog.consumers.explaining.rescored import Rescored
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.scoring.recorded import RecordedSet
from rolloutlog.consumers.times import show_time


def rescored_lines(found: Rescored) -> Iterator[Text]:
    """Nothing where nothing was recorded, unless a time was asked for."""
    as_of = "" if found.before_ns is None else f" before {show_time(found.before_ns)}"
    shown = [each for each in found.sets if not found.is_in_batch(each)]
    if shown:
        yield Text()
        yield Text(f"recorded by scorers{as_of}; this counts in replays and not in live assembly:", style="bold")
    elif found.before_ns is not None and not found.sets:
        yield Text()
        yield Text(f"no scorer's reward was recorded for it{as_of}", style="dim")
    for each in shown:
        yield from _set_lines(found, each)
    for sentence in found.moves.values() if shown else ():
        yield Text(printable(sentence), style="yellow")
    for offset, reason in found.unread[:UNREAD_SHOWN]:
        yield Text(printable(f"rewards {found.partition}:{offset} cannot be read: {reason}"), style="red")
    if len(found.unread) > UNREAD_SHOWN:
        yield Text(f"and {len(found.unread) - UNREAD_SHOWN} more rewards that cannot be read", style="red")


def rescored_json(found: Rescored) -> dict[str, Any]:
    return {
        "before_ns": found.before_ns,
        "sets": [_set_json(found, each) for each in found.sets],
        "moves": dict(found.moves),
        "unread": [{"offset": offset, "reason": reason} for offset, reason in found.unread],
    }


def _set_lines(found: Rescored, one: RecordedSet) -> Iterator[Text]:
    newer = found.replaced_by(one)
    by = f"scorer {_version(one)}, recorded {show_time(one.recorded_ns)}"
    if not one.rewards:
        yield Text(printable(f"no reward; {by}"), style="dim")
    for _, reward in one.rewards:
        if newer is None:
            yield Text(printable(f"{found.sentences[reward.id]}; {by}"), style="blue")
            yield from extra_lines(reward.extra_info)
            continue
        value = "no value" if reward.value is None else f"{reward.value:g}"
        yield Text(
            printable(
                f"reward {reward.id} ({reward.name} {value}, {reward.scope}): counts no more, replaced by "
                f"{_version(newer)}, recorded {show_time(newer.recorded_ns)}; {by}"
            ),
            style="dim",
        )
        yield from extra_lines(reward.extra_info)


def _version(one: RecordedSet) -> str:
    return f"{one.scorer} {one.version or 'without a version'}"


def _set_json(found: Rescored, one: RecordedSet) -> dict[str, Any]:
    newer = found.replaced_by(one)
    return {
        "scorer": one.scorer,
        "version": one.version,
        "offset": one.offset,
        "recorded_ns": one.recorded_ns,
        "counts": newer is None,
        "in_batch": found.is_in_batch(one),
        "replaced_by": None
        if newer is None
        else {"version": newer.version, "offset": newer.offset, "recorded_ns": newer.recorded_ns},
        "rewards": [
            {
                "reward_id": reward.id,
                "name": reward.name,
                "value": reward.value,
                "scope": reward.scope,
                "target": None if reward.target is None else {reward.target.key: reward.target.value},
                "supersedes": reward.supersedes,
                "extra_info": extra_json(reward.extra_info),
                "offset": offset,
                "explained": found.sentences.get(reward.id),
            }
            for offset, reward in one.rewards
        ],
    }
