"""`rolloutlog explain --archive`: rollouts whose events the log no longer has, or whose log is gone."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.archive import archive
from support.store import Store
from support.workload import new_record, whole_group
from unit.consumers.cli.test_explain import own

from rolloutlog.consumers.cli import main as entry
from rolloutlog.eventstore.log import EVENTS, open_log
from rolloutlog.eventstore.topics import create_topics

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=2) as opened:
        yield opened


@pytest.fixture
def rolloutlog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.delenv("ROLLOUTLOG_LOG", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rolloutlog", *arguments])
        with pytest.raises(SystemExit) as caught:
            entry()
        return int(caught.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def kept(store: Store, rolloutlog: Run, tmp_path: Path) -> str:
    """An archive of a log whose groups are published."""
    store.append([new_record(each, key="own", partition=1) for each in own("own")])  # type: ignore[arg-type]
    assert rolloutlog("assemble", "--log", store.url, "--until-end")[0] == 0
    to = str(tmp_path / "a")
    store.run(archive(store.log, to, (0, 1)))
    return to


def test_explain_of_an_archive_whose_log_is_gone_tells_what_its_events_tell(kept: str, rolloutlog: Run):
    code, out, err = rolloutlog("explain", "own", "--archive", kept)
    assert (code, err) == (0, "")
    assert out.startswith("rollout own, attempt 0, task task-own, group own, split train\n")
    assert "its batch is not archived, and comes again with `rolloutlog replay --archive`" in out
    assert "critic" in out
    assert "unattributed: no call was recorded before it beneath agent critic" in out


def test_explain_names_the_archive_when_events_are_gone_and_reads_them_there(
    kept: str,
    rolloutlog: Run,
    store: Store,
):
    expected = rolloutlog("explain", "own", "--log", store.url)
    store.cut(EVENTS, 1, store.records(EVENTS, [1])[-1].offset)
    code, out, _ = rolloutlog("explain", "own", "--log", store.url)
    assert (code, "--archive URL reads them from an archive" in out) == (0, True)
    assert rolloutlog("explain", "own", "--log", store.url, "--archive", kept) == expected


def test_explain_of_a_missing_log_looks_at_the_archive_alone(kept: str, rolloutlog: Run, tmp_path: Path):
    code, out, err = rolloutlog("explain", "own", "--archive", kept, "--log", f"sqlite:///{tmp_path}/none.db")
    assert (code, "looking at the archive alone" in err) == (0, True)
    assert out.startswith("rollout own, ")


def test_explain_of_an_output_made_from_an_archive_reads_events_there(kept: str, rolloutlog: Run, tmp_path: Path):
    new = f"sqlite:///{tmp_path}/new.db"
    assert rolloutlog("replay", "--archive", kept, "--log", new, "--output", "again")[0] == 0
    with Store(new, partitions=2) as other:
        other.append(whole_group("elsewhere", partition=1))
    code, out, _ = rolloutlog("explain", "own", "--archive", kept, "--log", new, "--output", "again")
    assert code == 0
    assert "unattributed: no call was recorded before it beneath agent critic" in out
    assert "its events are gone" not in out
    code, _, err = rolloutlog("explain", "own", "--log", new, "--output", "again")
    assert (code, "give the archive with --archive; the output was made from" in err) == (2, True)


def test_explain_takes_nothing_of_a_log_of_another_run_for_the_archives(kept: str, rolloutlog: Run, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/other.db"

    async def make() -> None:
        log = await open_log(url, create=True)
        await create_topics(log, partitions=2, run_id="other")
        await log.append(whole_group("elsewhere"))
        await log.close()

    asyncio.run(make())
    assert rolloutlog("assemble", "--log", url, "--until-end")[0] == 0
    assert rolloutlog("explain", "elsewhere-r0", "--log", url)[0] == 0
    code, _, err = rolloutlog("explain", "elsewhere-r0", "--archive", kept, "--log", url)
    assert (code, "got none" in err) == (1, True)


def test_explain_of_events_that_were_lost_before_they_were_archived_says_so(
    store: Store,
    rolloutlog: Run,
    tmp_path: Path,
):
    store.append([new_record(each, key="own", partition=1) for each in own("own")])  # type: ignore[arg-type]
    assert rolloutlog("assemble", "--log", store.url, "--until-end")[0] == 0
    store.cut(EVENTS, 1, store.records(EVENTS, [1])[-2].offset)
    store.run(archive(store.log, tmp_path / "a", (0, 1), on_history_lost="skip"))
    _, out, _ = rolloutlog("explain", "own", "--log", store.url, "--archive", str(tmp_path / "a"))
    assert "they were lost before they were archived. What the batch says:" in out


def test_explain_of_a_comparison_over_all_rollouts_takes_no_archive(kept: str, rolloutlog: Run):
    code, _, err = rolloutlog("explain", "--diff", "none", "nearest", "--archive", kept)
    assert (code, "--archive says where the events of a ROLLOUT_ID are read" in err) == (2, True)
