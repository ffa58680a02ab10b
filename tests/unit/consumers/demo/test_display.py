"""What the demo shows where there is no terminal, and its bars."""

import io

import pytest
from rich.console import Console
from unit.consumers.test_batches import batch, result

from rolloutlog.consumers.demo.display import BAR_CELLS, LINES_S, Display, bar
from rolloutlog.consumers.demo.progress import Progress


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, ""), (1.0, "█" * BAR_CELLS), (0.5, "█" * (BAR_CELLS // 2)), (0.015625, "▌"), (1.5, "█" * BAR_CELLS)],
)
def test_bar_is_as_long_as_its_share(share: float, text: str):
    assert bar(share) == text


def shown(seconds: list[float], monkeypatch: pytest.MonkeyPatch) -> str:
    output = io.StringIO()
    display = Display(Console(file=output, width=100), 0.0)
    progress = Progress()
    progress.add_batch(batch((result(policy_version=0, final={"reward": 1.0}),)))
    with display:
        for now_s in seconds:
            monkeypatch.setattr("time.monotonic", lambda now_s=now_s: now_s)
            display.show(progress)
        display.finish(progress)
    return output.getvalue()


def test_display_without_a_terminal_prints_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch):
    text = shown([0.1, LINES_S, LINES_S + 0.1], monkeypatch)
    assert text.count(" rollouts (") == 1
    assert "\x1b" not in text


def test_display_at_its_end_shows_the_curve(monkeypatch: pytest.MonkeyPatch):
    text = shown([], monkeypatch)
    assert "mean final reward" in text
    assert "█" * BAR_CELLS in text
