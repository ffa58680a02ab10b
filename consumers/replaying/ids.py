"""Ids as they are asked for: one by one, or in files, also in those that list the failures of another replay."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rolloutlog.eventstore.errors import InvalidSettings

FIELDS = {"--group": "group_id", "--rollout": "rollout_id"}  # of a line of failures


def read_ids(option: str, given: Sequence[str]) -> tuple[str, ...]:
    """The ids, those in files included, each once in a fixed order.

    given   ids; `@FILE`, with an id a line, or a JSON object that has it as `--failures` writes them
    Raises  InvalidSettings
    """
    found: set[str] = set()
    for each in given:
        if not each.startswith("@"):
            found.add(each)
            continue
        try:
            lines = Path(each[1:]).read_text(encoding="utf-8-sig").split("\n")  # ids may hold other separators
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(f"{option} {each}: expected a readable file with an id a line: {error}") from error
        found.update(_id_in(line, FIELDS[option]) for line in filter(None, map(str.strip, lines)))
    if given and not found:
        raise InvalidSettings(f"{option}: expected ids, got none in {', '.join(given)}")
    return tuple(sorted(found))


def hinted(named: str) -> str:
    """What was not found, as `Selection.missing` names it, and what may have been meant."""
    asked = named.partition(" ")[2]
    with suppress(OSError):  # a name that is too long
        if Path(asked).is_file():
            return f"{named} (did you mean @{asked}? There is a file of that name)"
    return named


def _id_in(line: str, field: str) -> str:
    """Of a line of failures that which is asked for; any other line is an id."""
    if line.startswith("{"):
        with suppress(ValueError, RecursionError):
            told = json.loads(line).get(field)
            if isinstance(told, str):
                return told
    return line
