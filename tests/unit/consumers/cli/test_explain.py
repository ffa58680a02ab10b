"""`rolloutlog explain`: what it prints and its exit codes, on an embedded log."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store import Store
from support.workload import whole_group

from rolloutlog.consumers.cli import main as entry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=2) as opened:
        opened.append([*whole_group("group-1", rollouts=2), *whole_group("group-2", partition=1)])
        yield opened


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: Store):
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rolloutlog", "explain", "--log", store.url, *arguments])
        with pytest.raises(SystemExit) as caught:
            entry()
        return int(caught.value.code or 0), *capsys.readouterr()

    return run


def test_explain_prints_the_rollout_without_colours_into_a_pipe(explain):
    code, out, _ = explain("group-1-r1")
    assert code == 0
    assert out.startswith("rollout group-1-r1, attempt 0, task t, group group-1, split train\n")
    assert "\x1b" not in out


def test_explain_finds_a_rollout_of_any_partition_by_its_beginning(explain):
    code, out, _ = explain("group-2", "--json")
    assert (code, json.loads(out)["rollout_id"]) == (0, "group-2-r0")


def test_explain_of_an_unknown_rollout_exits_1_and_says_where_it_looked(explain):
    code, out, err = explain("nothing")
    assert (code, out) == (1, "")
    assert "rollout nothing: expected one of 0 published rollouts or of 3 starts in the events, got none" in err


def test_explain_of_a_beginning_that_several_share_exits_1_and_names_them(explain):
    code, _, err = explain("group-1")
    assert code == 1
    assert "got that of 2: group-1-r0, group-1-r1" in err
