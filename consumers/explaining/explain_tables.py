"""Comparisons for people: one rollout's rewards under two settings, and many rollouts' sums.

What moves always has a row; what stays has one only in small rollouts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from rich.text import Text

from rolloutlog.consumers.explaining.columns import columns, many, number
from rolloutlog.consumers.explaining.comparison import Comparison
from rolloutlog.consumers.explaining.tally import Tally, Totals
from rolloutlog.consumers.printable import printable

STAYING_MAX = 50  # rewards or calls of a rollout that are all shown, whether they move or not
ROWS_MAX = 1_000
NAMES_SHOWN = 20
WAYS_SHOWN = 3
IDS_SHOWN = 5

_MOVED = "bold yellow"


def comparison_lines(found: Comparison) -> Iterator[Text]:
    """Per reward where it went and would go, per call its total before and after."""
    head = f"{printable(found.after)} against {printable(found.before)}: "
    if not found.moved and not found.changed:
        yield Text(f"{head}no reward moves, no call's total changes", style="bold")
    else:
        moved = f"{found.moved} of {many(len(found.rewards), 'reward')} move{'s' if found.moved == 1 else ''}"
        changed = f"totals of {found.changed} of {many(len(found.calls), 'call')} change"
        yield Text(f"{head}{moved}, {changed}", style="bold")
    yield from _faults(found.faults)
    rewards = [each for each in found.rewards if each.moved or len(found.rewards) <= STAYING_MAX]
    if rewards:
        yield Text()
        rows = [
            (
                printable(each.reward_id),
                printable(each.name),
                number(each.value),
                "-" if each.before is None else printable(each.before.text()),
                "-" if each.after is None else printable(each.after.text()),
                "moves" if each.moved else "",
            )
            for each in rewards[:ROWS_MAX]
        ]
        header = ("reward", "name", "value", printable(found.before), printable(found.after), "")
        yield from columns(header, rows, [_MOVED if each.moved else "" for each in rewards])
        yield from _more(len(found.rewards) - len(rewards), max(0, len(rewards) - ROWS_MAX), "reward")
    calls = [each for each in found.calls if each.changed or len(found.calls) <= STAYING_MAX]
    if calls:
        yield Text()
        rows = [
            (
                printable(each.span_id),
                printable(each.agent or ""),
                printable(each.operation or ""),
                number(each.before) if each.selected_before else "not selected",
                number(each.after) if each.selected_after else "not selected",
                "changes" if each.changed else "",
            )
            for each in calls[:ROWS_MAX]
        ]
        yield from columns(
            ("call", "agent", "operation", "total before", "total after", ""),
            rows,
            [_MOVED if each.changed else "" for each in calls],
        )
        yield from _more(len(found.calls) - len(calls), max(0, len(calls) - ROWS_MAX), "call")


def survey_lines(found: Tally) -> Iterator[Text]:
    """How many rewards move, mean totals by operation and agent, and the rollouts that change most."""
    left = [f"{found.not_completed:,} not completed"] if found.not_completed else []
    left += [f"{found.gone:,} whose events are gone"] if found.gone else []
    aside = f"; left aside: {', '.join(left)}" if left else ""
    changed = f"{found.changed:,} of {many(found.rollouts, 'rollout')} change{'s' if found.changed == 1 else ''}"
    yield Text(
        f"{printable(found.after)} against {printable(found.before)}: {changed}{aside}",
        style="bold",
    )
    if found.missing:
        more = f" and {len(found.missing) - IDS_SHOWN} more" if len(found.missing) > IDS_SHOWN else ""
        named = ", ".join(map(printable, found.missing[:IDS_SHOWN]))
        yield Text(f"not published: {named}{more}", style="red")
    if found.fault is not None:
        yield from _faults((f"{many(found.faulty, 'rollout')}, first {found.fault}",))
    if not found.rollouts:
        return
    yield Text()
    yield from _reward_table(found)
    yield Text()
    yield from _total_table("operation", found.by_operation, found.overall)
    yield Text()
    yield from _total_table("agent", found.by_agent, None)
    if found.examples:
        yield Text()
        yield from columns(
            ("changes most", "task", "moved", "sum before", "sum after", "one reward"),
            [
                (
                    printable(each.rollout_id),
                    printable(each.task_id),
                    f"{each.moved:,}",
                    number(each.before),
                    number(each.after),
                    printable(each.words),
                )
                for each in found.examples
            ],
        )


def _reward_table(found: Tally) -> Iterator[Text]:
    named = sorted(found.rewards.items(), key=lambda each: (-each[1].moved, -each[1].count, each[0]))
    rows = [
        (
            printable(name),
            f"{moves.count:,}",
            f"{moves.moved:,}",
            f"{100 * moves.moved / moves.count:.1f} %",
            printable(_ways(moves.ways)),
        )
        for name, moves in named[:NAMES_SHOWN]
    ]
    yield from columns(
        ("reward", "count", "moved", "share", "how"), rows, [_MOVED if moves.moved else "" for _, moves in named]
    )
    yield from _more(0, len(named) - NAMES_SHOWN, "name")


def _ways(ways: Counter[tuple[str, str]]) -> str:
    shown = []
    for (before, after), count in ways.most_common(WAYS_SHOWN):
        shown.append(f"{count:,} {f'{before} → {after}' if before != after else 'to other calls'}")
    return ", ".join(shown) + (f" and {len(ways) - WAYS_SHOWN} more ways" if len(ways) > WAYS_SHOWN else "")


def _total_table(title: str, by_name: Mapping[str, Totals], overall: Totals | None) -> Iterator[Text]:
    """Mean totals are those of the calls that a reward reaches: none is not 0."""
    named = sorted(by_name.items(), key=lambda each: (-max(each[1].calls), each[0]))
    rows = [_total_row(printable(name) or f"(no {title})", totals) for name, totals in named[:NAMES_SHOWN]]
    if overall is not None:
        rows.append(_total_row("all", overall))
    yield from columns((title, "calls", "", "rewarded", "", "mean total", ""), rows)
    yield from _more(0, len(named) - NAMES_SHOWN, title)


def _total_row(name: str, totals: Totals) -> tuple[str, ...]:
    return (
        name,
        f"{totals.calls[0]:,}",
        _after(f"{totals.calls[0]:,}", f"{totals.calls[1]:,}"),
        f"{totals.rewarded[0]:,}",
        _after(f"{totals.rewarded[0]:,}", f"{totals.rewarded[1]:,}"),
        _mean(totals.mean(0)),
        _after(_mean(totals.mean(0)), _mean(totals.mean(1))),
    )


def _mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _after(before: str, after: str) -> str:
    return "" if before == after else f"→ {after}"


def _faults(faults: tuple[str, ...]) -> Iterator[Text]:
    for fault in faults:
        for line in fault.splitlines():
            yield Text(printable(line), style="red")


def _more(staying: int, cut: int, noun: str) -> Iterator[Text]:
    if cut > 0:
        yield Text(f"and {many(cut, f'more {noun}')} (all of them with --json)", style="dim")
    if staying > 0:
        yield Text(f"and {many(staying, noun)} that stay{'s' if staying == 1 else ''}", style="dim")
