"""The demo takes a log of its own."""

from pathlib import Path

import pytest

from rolloutlog.consumers.demo.loop import Demo, run_demo
from rolloutlog.eventstore import EventPublisher
from rolloutlog.eventstore.errors import InvalidSettings


async def test_demo_on_a_log_that_holds_events_is_refused(tmp_path: Path):
    """Its policy versions would have no weights here."""
    url = f"sqlite:///{tmp_path}/log.db"
    with EventPublisher.open(url, create=True) as events, events.rollout("task") as rollout:
        rollout.finish(reward=1.0)
    with pytest.raises(InvalidSettings, match="expected a new one for the demo, got one with records in events"):
        await run_demo(Demo(url, tmp_path, seed=7), lambda progress: None)
