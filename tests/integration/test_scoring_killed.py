"""A scored replay with --record, killed with SIGKILL at any moment, records each verdict once."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from support.processes import assemble
from support.store import Store
from support.workload import make_workload

from rolloutlog.consumers.replaying.outputs import topic_of
from rolloutlog.eventstore.codec import HEADER
from rolloutlog.eventstore.log import REWARDS

from .conftest import NewUrl
from .test_replay_killed import SCORER, STEPS_BEFORE_KILL_MAX, Killer, replay, stored

pytestmark = pytest.mark.slow_on_kafka

KILLS = 3


@pytest.mark.timeout(180)
def test_replay_that_records_and_is_killed_stores_each_verdict_once(
    new_url: NewUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("SEED", "0"))
    print(f"SEED={seed}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "judging.py").write_text(SCORER)
    rng = random.Random(seed)
    scored = ("--scorer", "judging:judge")
    with Store(new_url()) as store:
        store.append(make_workload(seed, groups=60).records)
        command = assemble(store.url)
        assert command.finish() == 0, command.stderr
        whole = replay(store, tmp_path, "--output", "whole", *scored, "--no-cache")
        assert whole.finish() == 0, whole.stderr
        for _ in range(KILLS):
            killer = Killer(rng.randint(1, STEPS_BEFORE_KILL_MAX))
            replay(store, tmp_path, "--output", "killed", *scored, "--record", on_step=killer).finish()
        last = replay(store, tmp_path, "--output", "killed", *scored, "--record")
        assert last.finish() == 0, last.stderr
        assert stored(store.records(topic_of("killed"))) == stored(store.records(topic_of("whole")))
        verdicts = Counter(dict(each.headers)[HEADER] for each in store.records(REWARDS))
    assert verdicts
    assert set(verdicts.values()) == {1}
