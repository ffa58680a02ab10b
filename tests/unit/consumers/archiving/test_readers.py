"""What docs/archive.md shows for readers of Parquet, on archives that are unlike the page's own."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from support.archive import archive
from unit.consumers.archiving.conftest import fill

from rolloutlog.consumers.archiving.entries import Entry, encode_entry

PAGE = Path(__file__).parents[4] / "docs/archive.md"
ENTRIES_READ = 32  # DuckDB guesses the types of JSON from so many files


def script(name: str) -> str:
    return re.search(rf"```python\n(# {re.escape(name)}\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]


def run(name: str) -> list[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(script(name), name, "exec"), {})
    return out.getvalue().splitlines()


@pytest.fixture
async def answers(log, clock, tmp_path, monkeypatch) -> tuple[str, str, str, str]:
    await fill(log, clock, groups=6)
    await archive(log, tmp_path / "archive", chunk_bytes=2_000)
    monkeypatch.chdir(tmp_path)
    return (*run("by_day.py"), *run("by_model.py"))


async def test_both_examples_give_the_same_answers(answers):
    by_day, tokens, by_model, means = answers
    mean = re.fullmatch(r"mean (\S+), \d+ rewards", by_day)[1]
    assert float(means.strip("[]")) == pytest.approx(float(mean))
    assert [row[:2] for row in eval(tokens)] == eval(by_model) != []


async def test_examples_read_all_files_where_the_first_entries_name_none(answers, tmp_path):
    """Of transaction markers alone, say: an entry then has no file."""
    named = sorted((tmp_path / "archive/manifest/events/0").iterdir())
    for offset in range(ENTRIES_READ + 8):
        entry = Entry(run_id="run", topic="events", partition=0, first=offset, end=offset + 1)
        path = tmp_path / "archive/manifest/events/00" / Path(entry.name).name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_entry(entry))
    assert named
    for partition in ("0", "1"):  # those with files come last by name
        (tmp_path / f"archive/manifest/events/{partition}").rename(tmp_path / f"archive/manifest/events/9{partition}")
    again = (*run("by_day.py"), *run("by_model.py"))
    assert [re.sub(r"\d+\.\d+", "", line) for line in again] == [re.sub(r"\d+\.\d+", "", line) for line in answers]
