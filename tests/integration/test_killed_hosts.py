"""Rollouts whose host was killed half-way never become samples, and expire; whole ones are published."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import Command, assemble, wait_until
from support.store import Store
from support.workload import whole_group

from rolloutlog.eventstore.codec import HEADER, parse_header

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.timeout(120)

HOSTS: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_host_left() -> Iterator[None]:
    yield
    for host in HOSTS:
        _kill(host)
    HOSTS.clear()


def _start(*arguments: str) -> subprocess.Popen[str]:
    host = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "host.py"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )
    HOSTS.append(host)
    return host


def _line(host: subprocess.Popen[str]) -> str:
    assert host.stdout is not None
    return host.stdout.readline().strip()


def _kill(host: subprocess.Popen[str]) -> None:
    host.kill()
    host.wait(30)
    assert host.stdout is not None
    host.stdout.close()


def _assembled(store: Store) -> tuple[int, int]:
    """Assemble to the end; returns how many rollouts are still open, in how many groups."""
    command = assemble(store.url)
    assert command.finish() == 0, command.stderr
    found = re.search(r"(\d+) still open in (\d+) groups", command.stdout)
    assert found, command.stdout
    return int(found[1]), int(found[2])


def test_hosts_killed_half_way_leave_rollouts_open_and_no_samples(store: Store) -> None:
    hosts = [_start("append", store.url, f"killed-{partition}", str(partition)) for partition in (0, 1)]
    assert [_line(host) for host in hosts] == ["ready", "ready"]
    for host in hosts:
        _kill(host)
    store.append([*whole_group("whole-0", partition=0, rollouts=2), *whole_group("whole-2", partition=2, rollouts=2)])
    assert _assembled(store) == (4, 2)
    assert [batch.group_id for batch in store.batches()] == ["whole-0", "whole-2"]
    assert store.dead_letters() == []


def test_publisher_killed_in_a_rollout_keeps_its_group_open(store: Store) -> None:
    """The group's other rollout is whole, but a group is compared as a whole: nothing of it is trained."""
    host = _start("publish", store.url)
    group_id = _line(host)
    assert _line(host) == "ready"
    _kill(host)
    store.append(whole_group("whole", rollouts=2))
    assert _assembled(store) == (1, 1)
    batches = store.batches()
    assert [batch.group_id for batch in batches] == ["whole"]
    assert group_id not in {sample.sample_id.partition("/")[0] for batch in batches for sample in batch.samples}


def test_publisher_killed_while_it_sends_yields_samples_of_whole_rollouts_alone(store: Store) -> None:
    host = _start("stream", store.url)
    while int(_line(host)) < 25:
        pass
    _kill(host)
    started, whole = _rollouts(store)
    opened, _ = _assembled(store)
    assert len(whole) >= 20
    assert opened == len(started) - len(whole)
    batches = store.batches()
    assert sorted(batch.group_id for batch in batches) == sorted(whole)
    assert {len(batch.samples) for batch in batches} == {2}


# An assembler that goes on ends what the hosts left open. Short limits: the hosts are dead for good.


def _live(store: Store, **limits: object) -> Command:
    settings = {"grace_s": 0.5, "min_group": 1, "status_interval_s": 0.5, **limits}
    return assemble(store.url, until_end=False, **settings)


def _ends(store: Store) -> dict[str, tuple[str, str | None]]:
    """State and reason of each published rollout."""
    return {each.rollout_id: (each.status, each.reason) for batch in store.batches() for each in batch.rollouts}


def _ended(store: Store, assembler: Command, count: int) -> dict[str, tuple[str, str | None]]:
    wait_until(lambda: len(_ends(store)) >= count, f"{count} rollouts published")
    assembler.terminate()
    assert assembler.finish() == 0, assembler.stderr
    return _ends(store)


def test_group_of_a_killed_host_is_published_with_its_survivors(store: Store) -> None:
    assembler = _live(store, idle_s=2)
    host = _start("publish", store.url)
    group_id = _line(host)
    assert _line(host) == "ready"
    _kill(host)
    found = _ended(store, assembler, 2)
    assert sorted(found.values()) == [("emitted", None), ("expired", "idle")]
    (batch,) = store.batches()
    assert (batch.group_id, batch.closed_reason, len(batch.samples)) == (group_id, "complete", 1)
    assert "ended because they waited for too long: 1 idle" in assembler.stderr


def test_hosts_that_all_died_are_taken_for_cut_off_until_their_rollouts_are_too_old(store: Store) -> None:
    assembler = _live(store, idle_s=1, age_s=4)
    hosts = [_start("append", store.url, f"killed-{partition}", str(partition)) for partition in (0, 1)]
    assert [_line(host) for host in hosts] == ["ready", "ready"]
    for host in hosts:
        _kill(host)
    found = _ended(store, assembler, 4)
    assert set(found.values()) == {("expired", "age")}
    assert "2 of 2 running rollouts are silent for idle_s (1 s)" in assembler.stderr


def test_group_that_lacks_a_rollout_is_published_when_it_is_old(store: Store) -> None:
    """The host was killed before it began the second one; the assembler comes back after that, and is killed once."""
    lacking = whole_group("lacking", rollouts=2)[:4]
    store.append(lacking)
    assembler = _live(store, group_age_s=2)
    assembler.wait_for_steps(0, "decide")
    assembler.kill()
    assembler.finish()
    assembler = _live(store, group_age_s=1)
    assert _ended(store, assembler, 1) == {"lacking-r0": ("emitted", None)}
    assert [batch.closed_reason for batch in store.batches()] == ["age"]


def _rollouts(store: Store) -> tuple[set[str], set[str]]:
    """Rollouts of which anything is stored, and those of which everything is, by their numbers."""
    sequences: dict[str, set[int]] = {}
    last: dict[str, int] = {}
    for record in store.events():
        header = parse_header(dict(record.headers)[HEADER])
        if header.rollout_id:
            sequences.setdefault(header.rollout_id, set()).add(header.sequence)
            if header.kind == "RolloutCompleted":
                last[header.rollout_id] = header.sequence
    whole = {rollout for rollout, end in last.items() if sequences[rollout] == set(range(end + 1))}
    return set(sequences), whole
