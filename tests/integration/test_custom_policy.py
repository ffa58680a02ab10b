"""A policy of the user's own in a real assembler: a wrong one stops it at the start, a failing one never does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolloutlog.eventstore import EventPublisher


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log with two rollouts, each a call and a step reward."""
    url = f"sqlite:///{tmp_path}/run.db"
    with EventPublisher.open(url, create=True, partitions=1) as events:
        for name in ("u-1", "u-2"):
            with events.rollout("count-users", rollout_id=name) as rollout:
                with rollout.call() as call:
                    call.record(prompt_ids=[1, 2], response_ids=[3, 4])
                rollout.reward(0.25, name=name)
                rollout.finish(1.0)
    return url


def rolloutlog(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTLOG")}
    return subprocess.run(
        [str(Path(sys.executable).parent / "rolloutlog"), *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (None, "No module named 'own_policy'; install it, or run in the folder that holds it, or put that on"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("policy = 3", "expected a function policy in own_policy, got 'own_policy:policy': it is of type int"),
        ("def policy(reward, rollout): ...", "expected a function of one argument, the view"),
    ],
)
def test_assembler_with_a_policy_that_cannot_be_used_exits_2_and_says_why(
    tmp_path: Path, url: str, source: str | None, text: str
) -> None:
    if source is not None:
        (tmp_path / "own_policy.py").write_text(source)
    done = rolloutlog(tmp_path, "assemble", "--log", url, "--until-end", "--policy", "own_policy:policy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: attribution setting 'policy' is unusable: expected ")
    assert text in done.stderr
    assert rolloutlog(tmp_path, "batches", "rollouts", "--log", url).stdout == ""


def test_assembler_whose_policy_fails_for_one_rollout_emits_the_others(tmp_path: Path, url: str) -> None:
    (tmp_path / "own_policy.py").write_text(
        "import sys\n\n\ndef policy(view):\n"
        "    if view.reward.name == 'u-1':\n        sys.exit('no such tool')\n"
        "    return view.earlier[-1].span_id\n"
    )
    (tmp_path / "run.toml").write_text('[attribution]\npolicy = "own_policy:policy"\n')
    done = rolloutlog(tmp_path, "assemble", "--log", url, "--until-end", "--settings", "run.toml")
    assert done.returncode == 0, done.stderr
    failed, emitted = map(json.loads, rolloutlog(tmp_path, "batches", "rollouts", "--log", url).stdout.splitlines())
    assert (failed["status"], emitted["status"]) == ("incomplete", "emitted")
    assert failed["reason"].startswith("policy own_policy:policy failed for 1 of 1 rewards, first for reward ")
    assert failed["reason"].endswith(
        ": Traceback (most recent call last):\n"
        "  own_policy, line 6, in policy\n    sys.exit('no such tool')\n"
        "SystemExit: no such tool"
    )
    assert [each["rule"] for each in emitted["outcomes"].values()] == ["own_policy:policy", "final"]
