"""Bars: on a terminal's standard error alone, and never between lines that go to the same terminal."""

import io
import sys

import pytest

from rolloutlog.consumers.cli.progress import bars


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("stderr", "stdout", "prints", "shown"),
    [
        (True, True, False, True),
        (True, False, True, True),
        (True, True, True, False),
        (False, True, False, False),
        (False, False, True, False),
    ],
)
def test_bars_are_shown_where_they_are_in_nobodys_way(monkeypatch, stderr, stdout, prints, shown):
    monkeypatch.setattr(sys, "stderr", Stream(stderr))
    monkeypatch.setattr(sys, "stdout", Stream(stdout))
    with bars(prints=prints) as found:
        found.tell("reading", 1, 2)
        assert found.shown == shown
    assert sys.stdout.getvalue() == ""
    assert bool(sys.stderr.getvalue()) == shown


def test_bars_show_name_and_share(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Stream(True))
    monkeypatch.setenv("COLUMNS", "120")
    with bars() as found:
        found.tell("events", 100, 200)
        found.tell("batches", 7, 7)
    assert "events" in sys.stderr.getvalue()
    assert "100%" in sys.stderr.getvalue()
