"""One reward of a comparison as lines: its spread side by side, by policy version, by task, and what changed most."""

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from rolloutlog.consumers.comparing.held import FINAL
from rolloutlog.consumers.comparing.rewards import Change, RewardResult
from rolloutlog.consumers.comparing.spread import Histogram, Spread
from rolloutlog.consumers.comparing.values import Spreads, VersionSpread
from rolloutlog.consumers.explaining.columns import columns, many
from rolloutlog.consumers.printable import printable

SIDES = ("A", "B")
INDENT = "  "
BAR_CELLS = 24
ROW_BARS = " ▏▎▍▌▋▊▉"
SPARKS = "▁▂▃▄▅▆▇█"
VERSIONS_SHOWN = 12  # more of them are shown as the first and the last

_KINDS = {FINAL: "final value of a rollout", "step": "sum of a rollout's step rewards that count for a call"}


def reward_lines(found: RewardResult, top: int) -> Iterator[Text]:
    """Where one side has all values, they are shown as they are: nothing changed."""
    title = f"{cut(found.name, 40)}, {_KINDS[found.kind]}"
    if found.only is not None:
        yield Text(f"{title}, only in {SIDES[found.only]}", style="bold")
        yield from _of_one_side(found, found.only)
        return
    yield Text(title, style="bold")
    if found.alike:
        mean = number(found.spreads.before.mean)
        yield Text(f"{INDENT}alike in both: {many(found.spreads.before.count, 'value')}, mean {mean}")
        return
    yield from spread_rows("", found.spreads, not_emitted=found.not_emitted)
    yield Text(f"{INDENT}{_summary(found)}")
    if found.spreads.histogram is not None:
        yield from _bars(found.spreads.histogram)
    yield from _versions(found.spreads.versions)
    changed = [each for each in found.tasks if each.difference]
    if len(found.tasks) > 1 and changed:
        yield Text(f"{INDENT}mean by task, {len(changed):,} of {many(len(found.tasks), 'task')} changed")
        rows = [
            (cut_id(each.task_id, 28), _counts(each.before_count, each.after_count), number(each.before),
             number(each.after), change(each.difference)) for each in changed[:top]
        ]  # fmt: skip
        yield from table(("task", "rollouts", *SIDES, "change"), rows)
    shown = found.largest[:top]
    if shown:
        yield Text(f"{INDENT}rollouts that changed most")
        rows = [
            (cut_id(each.rollout_id, 28), cut_id(each.task_id, 16), number(each.before), number(each.after),
             change(each.difference)) for each in shown
        ]  # fmt: skip
        yield from table(("rollout", "task", *SIDES, "change"), rows, [_by(each) for each in shown])


def spread_rows(
    title: str, found: Spreads, only: int | None = None, not_emitted: tuple[int, int] = (0, 0)
) -> Iterator[Text]:
    """A row a side: how many have a value, and their mean and standard deviation. `not_emitted`: left out of these."""
    sides = zip(SIDES, (found.before, found.after), not_emitted, strict=True)
    rows = [
        (letter, f"{each.count:,}", number(each.mean), number(each.std), number(each.least), number(each.greatest),
         _share(each), *([f"{left:,} not emitted"] if any(not_emitted) else [])) for letter, each, left in sides
        if only is None or letter == SIDES[only]
    ]  # fmt: skip
    yield from table(
        (title, "count", "mean", "std", "min", "max", "without", *([""] if any(not_emitted) else [])), rows
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[str] = ()) -> Iterator[Text]:
    """Indented columns; nothing without rows. `below`: a further line under each row, where it is not empty."""
    if not rows:
        return
    lines = list(columns(header, rows))
    yield _indented(lines[0])
    for index, line in enumerate(lines[1:]):
        yield _indented(line)
        if index < len(below) and below[index]:
            yield Text(f"{INDENT * 3}{cut(below[index], 74)}", style="dim")


def cut(text: object, width: int) -> str:
    """Printable text of at most `width` columns."""
    shown = printable(str(text))
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def cut_id(text: object, width: int) -> str:
    """As `cut`, with beginning and end of what is too long: ids of one kind often differ in the end alone."""
    shown = printable(str(text))
    return shown if len(shown) <= width else f"{shown[: (width - 1) // 2]}…{shown[-(width // 2) :]}"


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def change(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4g}"


def spark(counts: Sequence[int]) -> str:
    """A block a bin, as high as its share of the highest; a dot where there is none."""
    highest = max(counts, default=0)
    return "".join(SPARKS[-(-count * (len(SPARKS) - 1) // highest)] if count else "·" for count in counts)


def _summary(found: RewardResult) -> str:
    parts = [f"mean {change(found.spreads.difference)}" if found.spreads.difference is not None else "no means"]
    parts.append(f"{many(found.changed, 'rollout')} with another value")
    if found.gained:
        parts.append(f"{found.gained:,} with one in B alone")
    if found.lost:
        parts.append(f"{found.lost:,} with one in A alone")
    return ", ".join(parts)


def _of_one_side(found: RewardResult, side: int) -> Iterator[Text]:
    yield from spread_rows("", found.spreads, side, found.not_emitted)
    if found.spreads.histogram is not None:
        yield from _bars(found.spreads.histogram, side)
    yield from _versions(found.spreads.versions, side)


def _bars(found: Histogram, only: int | None = None) -> Iterator[Text]:
    if found.exact:
        labels = [number(edge) for edge in found.edges]
    else:
        labels = [f"{low:.5g} to {high:.5g}" for low, high in zip(found.edges, found.edges[1:], strict=False)]
    highest = max(*found.before, *found.after, 1)
    sides = [side for side in (0, 1) if only in (None, side)]
    rows = [
        (label, *(cell for side in sides for cell in (f"{counts[side]:,}", _bar(counts[side] / highest))))
        for label, *counts in zip(labels, found.before, found.after, strict=True)
    ]
    yield from table(("value", *(cell for side in sides for cell in (SIDES[side], ""))), rows)


def _versions(found: Sequence[VersionSpread], only: int | None = None) -> Iterator[Text]:
    if not found or (len(found) == 1 and found[0].policy_version is None):
        return
    shown = list(found)
    if len(found) > VERSIONS_SHOWN:
        shown = [*found[: VERSIONS_SHOWN // 2], *found[-VERSIONS_SHOWN // 2 :]]
    sides = [side for side in (0, 1) if only in (None, side)]
    lacking = any((each.before, each.after)[side].share_without for each in shown for side in sides)
    cells: dict[str, Callable[[Spread], str]] = {"mean": lambda of: number(of.mean), "std": lambda of: number(of.std)}
    if lacking:
        cells["lack"] = _share
    names = [f"{name} {SIDES[side]}" for name in (*cells, "spread") for side in sides]
    rows = [
        (
            "unknown" if each.policy_version is None else str(each.policy_version),
            _counts(each.before.whole, each.after.whole),
            *(cell((each.before, each.after)[side]) for cell in cells.values() for side in sides),
            *(spark(each.bins[side]) for side in sides),
        )
        for each in shown
    ]
    lines = list(table(("version", "rollouts", *names), rows))
    left = len(found) - len(shown)
    for index, line in enumerate(lines):
        if left and index == 1 + VERSIONS_SHOWN // 2:
            yield Text(f"{INDENT}… {many(left, 'version')} between (all of them with --json)", style="dim")
        yield line


def _by(change: Change) -> str:
    """Which reward did it, and whose it is."""
    if change.by is None:
        return ""
    scorer = " ".join(filter(None, (change.by.scorer, change.by.scorer_version)))
    verb = "lost" if change.after is None else "by"
    return f"{verb} reward {change.by.reward_id}" + (f", scorer {scorer}" if scorer else "")


def _counts(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} → {after:,}"


def _share(found: Spread) -> str:
    return f"{100 * found.share_without:.1f} %"


def _bar(share: float) -> str:
    eighths = round(share * BAR_CELLS * 8)
    if share and not eighths:
        eighths = 1  # seen, however few
    return ("█" * (eighths // 8) + ROW_BARS[eighths % 8]).rstrip()


def _indented(line: Text) -> Text:
    return Text(f"{INDENT}{line.plain}", style=line.style)
