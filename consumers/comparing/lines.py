"""A comparison for people, as lines of at most some 80 columns; A stands for the first output, B for the second.

Not here  one reward's tables: consumers.comparing.reward_lines; for tools: consumers.comparing.as_json
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from rich.text import Text

from rolloutlog.consumers.comparing.advantages import AdvantageResult
from rolloutlog.consumers.comparing.comparison import Compared
from rolloutlog.consumers.comparing.endings import EndingResult
from rolloutlog.consumers.comparing.reward_lines import (
    SIDES,
    change,
    cut,
    cut_id,
    number,
    reward_lines,
    spread_rows,
    table,
)
from rolloutlog.consumers.comparing.samples import SampleResult
from rolloutlog.consumers.comparing.sides import Side, Sides
from rolloutlog.consumers.explaining.columns import many
from rolloutlog.consumers.printable import printable

HEAD = "bold"
ID, TASK, WORDS = 28, 18, 66  # columns
GROUP_VALUES = 6
SETTINGS_SHOWN = 20

Key = TypeVar("Key")


def comparison_lines(found: Compared, sides: Sides, *, top: int) -> Iterator[Text]:
    """All of it; of each kind of change the first `top`."""
    yield from _sides(found, sides)
    if not found.both:
        return
    rewards = sorted(found.rewards, key=lambda each: -(each.changed + each.gained + each.lost + each.apart))
    for reward in rewards[:top]:
        yield Text()
        yield from reward_lines(reward, top)
    yield from _more(len(rewards) - top, "reward")
    yield Text()
    yield from _advantages(found.advantages, top)
    yield Text()
    yield from _samples(found.samples, top)
    yield Text()
    yield from _statuses(found, top)
    yield Text()
    yield from _outcomes(found.endings, top)


def _sides(found: Compared, sides: Sides) -> Iterator[Text]:
    for letter, side in zip(SIDES, (sides.before, sides.after), strict=True):
        yield Text(f"{letter}  {_side(side)}", style=HEAD)
        for line in _made(side):
            yield Text(f"   {line}")
    yield from _settings(sides)
    alone = [
        f"{many(count, 'rollout')} ({many(samples, 'sample')}) only in {letter}"
        for letter, count, samples in zip(
            SIDES,
            (found.before_alone, found.after_alone),
            (found.before_alone_samples, found.after_alone_samples),
            strict=True,
        )
        if count
    ]
    yield Text("; ".join([f"{many(found.both, 'rollout')} in both", *alone]), style=HEAD)
    left = found.both - found.rollouts
    if left:
        yield Text(f"left out of values and samples: {many(left, 'rollout')} that never ran, or count another attempt")
    if any(found.not_emitted):
        of_sides = " and ".join(
            f"{many(count, 'rollout')} in {letter}"
            for letter, count in zip(SIDES, found.not_emitted, strict=True)
            if count
        )
        yield Text(f"not emitted, so left out of values there: {of_sides}")
    if sides.repeated:
        yield Text(f"in another batch of the same output too: {many(sides.repeated, 'rollout')}", style="red")


def _side(side: Side) -> str:
    hashes = ", ".join(
        each if len(side.hashes) == 1 else f"{each} ({count:,})" for each, count in side.hashes.most_common(3)
    )
    more = f" and {len(side.hashes) - 3} more" if len(side.hashes) > 3 else ""
    made = f", settings {hashes}{more}" if hashes else ""
    return printable(f"{side.name}: {many(side.batches, 'group')}, {many(side.rollouts, 'rollout')}{made}")


def _made(side: Side) -> Iterator[str]:
    if side.scorers:
        yield printable(f"scored by {', '.join(side.scorers)}")
    if side.selection:
        yield printable(f"of {side.selection}")
    if side.percent < 100:
        yield f"not complete: the replay is at {side.percent} %"
    if side.refused:
        yield f"{many(side.refused, 'record')} could not be read"


def _settings(sides: Sides) -> Iterator[Text]:
    if sides.alike:
        return
    differences = sides.differences()
    if differences is None:
        unknown = " and ".join(
            letter for letter, side in zip(SIDES, (sides.before, sides.after), strict=True) if side.settings is None
        )
        yield Text(f"made with other settings; those of {unknown} are not known here: give them with --settings")
    elif differences:
        yield Text("settings that differ:")
        for name, before, after in differences[:SETTINGS_SHOWN]:
            yield Text(printable(f"   {name}: {cut(before, 22)} → {cut(after, 22)}"))
        yield from _more(len(differences) - SETTINGS_SHOWN, "setting")
    else:
        yield Text("made with the same settings; scorers or recorded rewards differ")


def _advantages(found: AdvantageResult, top: int) -> Iterator[Text]:
    yield Text("advantages within groups", style=HEAD)
    if not found.groups:
        yield Text("  no group has two rollouts with a reward in both")
        return
    yield Text(
        f"  {many(found.groups, 'group')} with two or more rewards in both, {found.reordered:,} in another order"
    )
    yield Text(
        f"  {found.flips:,} of {many(found.rollouts, 'rollout')} with an advantage of another sign, in "
        f"{many(found.flipped, 'group')}"
    )
    if found.flat_after or found.flat_before:
        yield Text(
            f"  nothing learned, all rewards alike: {many(found.flat_after, 'group')} in B alone, "
            f"{found.flat_before:,} in A alone"
        )
    shown = found.largest[:top]
    rows = [
        (cut_id(each.group_id, ID), cut_id(each.task_id, TASK), f"{each.flips} of {len(each.rollouts)}")
        for each in shown
    ]
    below = [f"{_values(each.before)} → {_values(each.after)}" for each in shown]
    yield from table(("group", "task", "other sign"), rows, below)


def _values(values: Sequence[float]) -> str:
    more = " …" if len(values) > GROUP_VALUES else ""
    return " ".join(map(number, values[:GROUP_VALUES])) + more


def _samples(found: SampleResult, top: int) -> Iterator[Text]:
    yield Text("samples", style=HEAD)
    yield Text(
        f"  {many(found.both, 'sample')} in both, {found.changed:,} with another total; only in A "
        f"{found.alone[0]:,}, only in B {found.alone[1]:,}"
    )
    yield from spread_rows("total", found.totals)
    shown = found.largest[:top]
    rows = [
        (cut_id(each.sample_id, 40), number(each.before), number(each.after), change(each.difference)) for each in shown
    ]
    if rows:
        yield Text("  totals that changed most")
        yield from table(("sample", *SIDES, "change"), rows)
    for letter, other, why, examples in zip(SIDES, SIDES[::-1], found.why, found.examples, strict=True):
        if not why:
            continue
        yield Text(f"  only in {letter}, because in {other}")
        yield from table(("samples", "why"), [(f"{count:,}", cut(each, WORDS)) for each, count in _first(why, top)])
        yield from _more(len(why) - top, "reason")
        named = [
            (cut_id(each.sample_id, 40), cut_id(each.task_id, TASK), number(each.total)) for each in examples[:top]
        ]
        yield from table(("such as", "task", "total"), named)


def _statuses(found: Compared, top: int) -> Iterator[Text]:
    endings = found.endings
    yield Text("how rollouts ended", style=HEAD)
    if not endings.statuses and not endings.attempts:
        yield Text("  alike in both")
        return
    if endings.attempts:
        yield Text(f"  {many(endings.attempts, 'rollout')} of which another attempt counts")
    ways = [(f"{count:,}", f"{before} → {after}") for (before, after), count in _first(endings.statuses, top)]
    yield from table(("rollouts", "status"), ways)
    shown = endings.status_examples[:top]
    rows = [
        (cut_id(each.rollout_id, 22), cut_id(each.task_id, 12), f"{each.statuses[0]} → {each.statuses[1]}",
         "" if each.attempts[0] == each.attempts[1] else f"attempt {each.attempts[0]} → {each.attempts[1]}")
        for each in shown
    ]  # fmt: skip
    below = [
        "; ".join(f"{letter}: {why}" for letter, why in zip(SIDES, each.reasons, strict=True) if why) for each in shown
    ]
    yield from table(("rollout", "task", "status", ""), rows, below)


def _outcomes(found: EndingResult, top: int) -> Iterator[Text]:
    yield Text("what became of rewards", style=HEAD)
    changed = sum(found.outcomes.values())
    yield Text(f"  {many(found.rewards, 'reward')} in both, {changed:,} with another outcome or other calls")
    rows = [
        (f"{count:,}", cut(name, TASK), cut(f"{before} → {after}", 44))
        for (name, before, after), count in _first(found.outcomes, top)
    ]
    yield from table(("count", "reward", "outcome"), rows)
    yield from _more(len(found.outcomes) - top, "way")
    shown = [
        (
            cut_id(each.rollout_id, 22),
            cut_id(each.reward_id, 20),
            number(each.value),
            cut(f"{each.before} → {each.after}", 22),
        )
        for each in found.outcome_examples[:top]
    ]
    yield from table(("such as", "reward", "value", "outcome"), shown)
    for letter, alone in zip(SIDES, found.alone, strict=True):
        if alone:
            yield Text(f"  rewards only in {letter}")
            rows = [
                (f"{count:,}", cut(name, TASK), cut(" ".join(filter(None, (scorer, version))) or "not told", 40))
                for (name, scorer, version), count in _first(alone, top)
            ]
            yield from table(("count", "reward", "scorer"), rows)
            yield from _more(len(alone) - top, "kind")


def _first(counts: Mapping[Key, int], top: int) -> list[tuple[Key, int]]:
    return list(counts.items())[:top]


def _more(count: int, noun: str) -> Iterator[Text]:
    if count > 0:
        yield Text(f"  and {many(count, f'more {noun}')} (all of them with --json)", style="dim")
