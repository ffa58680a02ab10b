"""The demo's processes one by one, as deploy/compose.yaml starts them."""

from pathlib import Path

import pytest
from support.processes import Command, assemble, wait_until
from support.store import Store

from rolloutlog.eventstore.acks import read_ack


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/demo.db"


def versions(store: Store) -> list[int | None]:
    """Policy versions that were acknowledged."""
    return [ack.policy_version for record in store.records("acks", [0]) if (ack := read_ack(record)) is not None]


def test_demo_roles_train_together_and_stop_at_sigterm(url: str, tmp_path: Path):
    weights = str(tmp_path / "weights")
    with Store(url) as store:
        # The host first: it waits for the trainer's version 0.
        roles = [
            Command("demo-host", "--log", url, "--weights", weights),
            Command("demo-trainer", "--log", url, "--weights", weights),
            assemble(url, until_end=False),
        ]
        wait_until(lambda: len(versions(store)) >= 2, "two steps that are acknowledged")
        for role in roles:
            role.terminate()
        assert [role.finish() for role in roles] == [0, 0, 0]
        assert versions(store)[:2] == [1, 2]

        again = Command("demo-trainer", "--log", url, "--weights", weights)
        assert again.finish() == 2
        assert "the demo keeps no checkpoint: use another prefix or file" in again.stderr
