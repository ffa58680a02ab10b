"""Verdicts that were paid for: kept for the next run, by many processes at once, and never at the cost of one."""

import logging
import multiprocessing
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.consumers.scoring.making import loaded, run, score_with
from unit.consumers.scoring.rollouts import conversation, view

from rolloutlog.consumers.scoring import Cache, Reward, RolloutView, cache_path, view_of
from rolloutlog.eventstore.errors import InvalidSettings

from .rollouts import closed


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    opened = Cache(tmp_path / "deeper" / "scores.db")
    yield opened
    opened.close()


def judge(rollout: RolloutView) -> list[Reward]:
    return [Reward(0.5), Reward(None, "style", extra_info={"why": "none"})]


def never(rollout: RolloutView) -> None:
    raise AssertionError


def test_verdict_is_paid_for_once(cache: Cache):
    (first,) = run(score_with([loaded(judge)], view(*conversation()), cache=cache))
    (second,) = run(score_with([loaded(never)], view(*conversation()), cache=cache))
    assert second.rewards == first.rewards
    assert second.record == first.record, "from the cache or not, it is to be recorded"
    assert ((first.made, first.cached), (second.made, second.cached)) == ((1, 0), (0, 1))


def test_verdict_of_nothing_is_kept_too(cache: Cache):
    run(score_with([loaded(lambda rollout: None)], view(), cache=cache))
    (found,) = run(score_with([loaded(never)], view(), cache=cache))
    assert (found.rewards, found.failures, found.cached) == ((), (), 1)


def test_failure_is_not_kept(cache: Cache):
    run(score_with([loaded(lambda rollout: 7)], view(), cache=cache))
    (found,) = run(score_with([loaded(judge)], view(), cache=cache))
    assert (found.made, len(found.rewards)) == (1, 2)


def test_verdict_of_another_version_scorer_or_run_is_another(cache: Cache):
    run(score_with([loaded(judge)], view(), cache=cache))
    for scorer, run_id in ((loaded(judge, version="2"), "run"), (loaded(judge, "other"), "run"), (loaded(judge), "b")):
        (found,) = run(score_with([scorer], view(), cache=cache, run_id=run_id))
        assert (found.made, found.cached) == (1, 0)


def test_verdict_from_the_cache_has_the_time_at_which_the_rollouts_group_closed(cache: Cache):
    run(score_with([loaded(judge)], view(), cache=cache))
    later = view_of(closed(), 0, closed_ns=77)
    (found,) = run(score_with([loaded(never)], later, cache=cache))
    assert {each.time_ns for each in found.rewards} == {77}


def test_cache_that_fails_costs_no_verdict_and_is_told_once(cache: Cache, caplog: pytest.LogCaptureFixture):
    cache._file.execute("DROP TABLE verdicts")
    with caplog.at_level(logging.WARNING):
        found = run(score_with([loaded(judge)], view(), view(), cache=cache))
    assert [len(each.rewards) for each in found] == [2, 2]
    assert [each.message for each in caplog.records] == [
        f"score cache {cache.path}: no such table: verdicts; scores go on without it where it fails"
    ]


def test_cached_bytes_that_are_no_verdict_of_the_rollout_are_replaced(cache: Cache):
    """Kept, they would be paid for in every run."""
    run(score_with([loaded(judge)], view(), cache=cache, run_id="other"))
    (whole,) = cache._file.execute("SELECT verdicts FROM verdicts").fetchone()
    run(score_with([loaded(judge)], view(), cache=cache))
    for bad in (b"\xff" * 9, "text", 5, whole[:30], whole[whole.index(b"style") :], whole + whole):
        cache._file.execute("UPDATE verdicts SET verdicts=? WHERE run_id='run'", (bad,))
        (again,) = run(score_with([loaded(judge)], view(), cache=cache))
        (found,) = run(score_with([loaded(never)], view(), cache=cache))
        assert (again.made, len(again.rewards)) == (1, 2)
        assert (found.cached, found.rewards) == (1, again.rewards)


def test_cached_verdict_about_another_rollout_is_none_of_this_one(cache: Cache):
    run(score_with([loaded(judge)], view(), cache=cache))
    cache._file.execute("UPDATE verdicts SET version='2'")
    (found,) = run(score_with([loaded(judge, version="2")], view(), cache=cache))
    assert (found.made, {each.scorer_version for each in found.rewards}) == (1, {"2"})


def test_cache_file_that_is_none_is_refused_by_name(tmp_path: Path):
    (tmp_path / "scores.db").write_text("x" * 4_096)
    with pytest.raises(InvalidSettings, match=r"score cache .*scores\.db: expected a file of scores, or none yet"):
        Cache(tmp_path / "scores.db")


def test_cache_of_a_newer_format_is_refused(tmp_path: Path):
    with sqlite3.connect(tmp_path / "scores.db") as file:
        file.execute("PRAGMA user_version=9")
    with pytest.raises(InvalidSettings, match="format 9, this version knows 1"):
        Cache(tmp_path / "scores.db")


def _score(path: Path, ids: range) -> None:
    opened = Cache(path)
    for number in ids:
        rewards = opened.get("run", "judge", "1", f"r{number}", 0)
        assert rewards in (None, [])
        opened.put("run", "judge", "1", f"r{number}", 0, ())
    opened.close()


def test_cache_serves_many_processes_at_once(tmp_path: Path):
    path = tmp_path / "scores.db"
    started = multiprocessing.get_context("spawn")
    workers = [started.Process(target=_score, args=(path, range(n, 200 + n))) for n in (0, 100)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    opened = Cache(path)
    assert all(opened.get("run", "judge", "1", f"r{number}", 0) == [] for number in range(300))
    opened.close()


def test_cache_path_is_below_the_users_cache_by_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_path("run-1") == tmp_path / "rolloutlog" / "scores" / "run-1.db"
    assert cache_path("../../etc").parent == tmp_path / "rolloutlog" / "scores"
    assert cache_path("..").name != "...db"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_path("run-1") == Path.home() / ".cache" / "rolloutlog" / "scores" / "run-1.db"
