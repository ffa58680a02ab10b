"""Tables as lines of text: the same in a pipe and on a terminal, but for styles there."""

import re
from collections.abc import Iterator, Sequence

from rich.text import Text

GAP = "  "

_NUMBER = re.compile(r"[+-]?[\d,.]+(e[+-]?\d+)?( %)?")


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> Iterator[Text]:
    """The header and the rows, each column as wide as its widest cell; columns of numbers to the right.

    styles  of rows, "" = none; missing ones are none
    """
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    right = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(header))]
    yield Text(_line(header, widths, right), style="bold")
    for index, row in enumerate(rows):
        yield Text(_line(row, widths, right), style=styles[index] if index < len(styles) else "")


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def many(count: int, noun: str) -> str:
    """`1 call`, `3,792 calls`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return GAP.join(placed).rstrip()


def _is_number(cell: str) -> bool:
    return cell in ("", "none", "-") or _NUMBER.fullmatch(cell) is not None
