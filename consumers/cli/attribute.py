"""`rolloutlog attribute FILE`: what the rules of attribution make of rollouts written down as cases.

Order  read the file, attribute each case, print. Exit code 0 also when cases are refused: a refusal is a result
"""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.attribution.cases import CaseResult, as_json, cases_in, run_case
from rolloutlog.consumers.attribution.model import Attribution
from rolloutlog.consumers.attribution.reasons import Reasons
from rolloutlog.consumers.explaining.account import sentences_of
from rolloutlog.consumers.printable import printable
from rolloutlog.eventstore.errors import InvalidEvent


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_array", is_flag=True, help="Print one JSON array in file order instead of text.")
@click.option("--policy", help="Use this policy for every case: a name, or package.module:function, which is imported.")
def attribute(file: Path, as_array: bool, policy: str | None) -> None:
    """Say which reward counts for which call in written cases.

    FILE holds rollouts as JSON: docs/rewards.md, "Cases". Each reward is printed with where it went and why, or what
    would have to change for it to count.
    """
    try:
        cases = cases_in(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, RecursionError, InvalidEvent) as error:
        raise click.ClickException(f"{file} holds no attribution cases: {error}") from error
    if policy is not None:
        AttributionSettings(policy=policy)  # wrong usage, rather than every case refused
    results = [run_case(case, policy=policy) for case in cases]
    if as_array:
        click.echo(json.dumps([as_json(result) for result in results], indent=1))
    else:
        click.echo(printable("\n\n".join(_text(result) for result in results), keep="\n"))


def _text(result: CaseResult) -> str:
    lines = [result.name]
    if result.attribution is None:
        return "\n".join([*lines, f"  refused: {result.error}"])
    lines += _table(result.attribution)
    lines += [f"  final {name} {_number(value)}" for name, value in result.attribution.final.items()]
    reasons = Reasons(result.entries, result.settings)
    lines += [f"  {each}" for each in sentences_of(result.attribution, reasons, result.settings).values()]
    if result.attribution.fault is not None:
        lines += [f"  {line}" for line in result.attribution.fault.splitlines()]
    return "\n".join(lines)


def _table(attribution: Attribution) -> list[str]:
    """One line per call in turn order, in columns."""
    rows = [("turn", "call", "total", "step", "final")]
    for call in attribution.all_calls:
        total = _number(call.total) if call.selected else "not selected"
        rows.append((str(call.turn_index), call.span_id, total, _named(call.step), _named(call.final)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _named(values: Mapping[str, float]) -> str:
    return " ".join(f"{name}={_number(value)}" for name, value in values.items())


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:g}"
