"""Samples as a Parquet file, read back with the real pyarrow."""

import errno
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.batches import batch, records_of, sample
from support.building import ids
from support.store import Store
from unit.consumers.adapters.stepping import step

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test installs it")
pq = pytest.importorskip("pyarrow.parquet")

from rolloutlog.consumers.adapters.parquet import SCHEMA, ParquetFile  # noqa: E402
from rolloutlog.consumers.batches import Batch  # noqa: E402
from rolloutlog.consumers.cli.main import rolloutlog  # noqa: E402
from rolloutlog.eventstore.errors import InvalidSettings  # noqa: E402
from rolloutlog.eventstore.events import PolicyVersionRun  # noqa: E402


def rows_of(path: Path, *batches: Batch, **settings: Any) -> list[dict[str, Any]]:
    with ParquetFile(path, **settings) as file:
        for each in batches:
            file.add(each)
    return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]


def test_row_holds_what_its_sample_holds(tmp_path: Path):
    made = sample(
        "g/0/c",
        response_mask=b"\x01\x00\x01",
        policy_version_runs=(PolicyVersionRun(3, 2), PolicyVersionRun(None, 1)),
        step={"tool": 0.5},
        final={"judge": 0.5},
        extra_info=b'{"acc":1.0}',
    )
    assert rows_of(tmp_path / "a.parquet", batch("g", [made])) == [
        {
            "sample_id": "g/0/c", "batch_id": "id-g", "group_id": "g", "rollout_id": "g", "task_id": "t", "attempt": 0,
            "split": "train", "turn_index": 0, "turn_count": 1, "span_ids": ["c"], "prompt_ids": [1, 2],
            "response_ids": [3, 4, 5], "response_mask": [1, 0, 1], "logprobs": [-0.5, -0.25, -1.0],
            "policy_version_runs": [{"policy_version": 3, "tokens": 2}, {"policy_version": None, "tokens": 1}],
            "total": 1.0, "step": [("tool", 0.5)], "final": [("judge", 0.5)], "rollout_final": [],
            "reward_token_index": [2], "reward_token_value": [1.0], "extra_info": '{"acc":1.0}', "metadata": "{}",
            "model": None, "finish_reason": None,
        }
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{"prompt_ids": b"abcde"}, {"rollout_index": 1}, {"response_mask": b"\x01"}])
def test_bad_sample_of_another_writer_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any]
):
    """Its tokens would be written as those of the rows that follow."""
    made = [sample("g/0/a", **wrong), sample("g/0/b", extra_info=b"\xff")]
    (row,) = rows_of(tmp_path / "a.parquet", batch("g", made))
    assert (row["sample_id"], row["prompt_ids"], row["response_mask"]) == ("g/0/b", [1, 2], [1, 1, 1])
    assert f"sample g/0/a of group g is left out: {next(iter(wrong))}: expected" in caplog.text


def test_missing_reward_and_log_probs_are_null_and_not_empty(tmp_path: Path):
    made = [sample("g/0/a", total=None, logprobs=None), sample("g/0/b", total=0.0)]
    first, second = rows_of(tmp_path / "a.parquet", batch("g", made))
    assert (first["total"], first["logprobs"], first["reward_token_index"]) == (None, None, [])
    assert (second["total"], second["logprobs"]) == (0.0, [-0.5, -0.25, -1.0])


def test_samples_of_unequal_length_keep_their_tokens(tmp_path: Path):
    made = [sample(f"g/0/{n}", prompt_ids=ids(*range(n))) for n in range(4)]
    assert [row["prompt_ids"] for row in rows_of(tmp_path / "a.parquet", batch("g", made))] == [
        [],
        [0],
        [0, 1],
        [0, 1, 2],
    ]


def test_row_groups_are_written_as_samples_come(tmp_path: Path):
    made = batch("g", 10)
    size = made.samples[0].size_bytes
    rows = rows_of(tmp_path / "a.parquet", made, row_group_bytes=3 * size)
    meta = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert [meta.row_group(index).num_rows for index in range(meta.num_row_groups)] == [3, 3, 3, 1]
    assert [row["sample_id"] for row in rows] == [f"g/0/{index}" for index in range(10)]


def test_memory_stays_that_of_some_row_groups_however_many_batches_come(tmp_path: Path):
    tokens = ids(*range(25_000))  # a batch is 100 kB, all of them 20 MB
    tracemalloc.start()
    try:
        with ParquetFile(tmp_path / "a.parquet", row_group_bytes=500_000) as file:
            for index in range(200):
                made = sample(f"g{index}/0/c", prompt_ids=bytes(bytearray(tokens)))
                file.add(batch(f"g{index}", [made]))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert pa.default_memory_pool().max_memory() < 10_000_000
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == 200


def test_rollout_of_a_row_is_its_own(tmp_path: Path):
    (made,) = step({"g": [1.0, 0.0]}).batches
    assert [row["rollout_id"] for row in rows_of(tmp_path / "a.parquet", made)] == ["g-0", "g-1"]


def test_no_batches_give_a_file_without_rows(tmp_path: Path):
    assert rows_of(tmp_path / "a.parquet") == []
    assert "prompt_ids" in pq.read_schema(tmp_path / "a.parquet").names


def test_file_of_an_interrupted_export_is_not_there_and_an_older_one_stays(tmp_path: Path):
    path = tmp_path / "a.parquet"
    rows_of(path, batch("g", 1))

    def interrupted() -> None:
        with ParquetFile(path) as file:
            file.add(batch("h", 2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [each.name for each in tmp_path.iterdir()] == ["a.parquet"]
    assert pq.read_metadata(path).num_rows == 1


def test_row_group_beyond_what_lists_can_count_is_refused(tmp_path: Path):
    with pytest.raises(InvalidSettings, match="row_group_bytes"):
        ParquetFile(tmp_path / "a.parquet", row_group_bytes=2**31)


def test_export_command_writes_the_samples_that_dump_prints(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/log.db"
    with Store(url, partitions=2) as store:
        store.append(records_of(batch("a", 2), 1))
        store.append(records_of(batch("b", 1), 0))
    path = tmp_path / "samples.parquet"
    done = CliRunner().invoke(rolloutlog, ["batches", "export", str(path), "--log", url])
    assert (done.exit_code, done.stdout) == (0, f"{path}: 3 samples\n")
    dumped = CliRunner().invoke(rolloutlog, ["batches", "dump", "--log", url])
    lines = [json.loads(line) for line in dumped.stdout.splitlines()]
    for line, row in zip(lines, pq.read_table(path).to_pylist(), strict=True):
        shared = line.keys() & row.keys() - {"step", "final", "rollout_final", "extra_info"}
        assert len(shared) >= 15
        assert {name: line[name] for name in shared} == {name: row[name] for name in shared}


def test_page_reads_what_was_exported_and_names_every_column(tmp_path: Path):
    page = (Path(__file__).resolve().parents[4] / "docs/export.md").read_text(encoding="utf-8")
    rows_of(tmp_path / "samples.parquet", batch("g", 1))
    (code,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "{'sample_id': 'g/0/0', 'response_ids': [3, 4, 5], 'total': 1.0}\n", done.stderr
    for name in SCHEMA.names:
        assert f"`{name}`" in page, name


def test_two_exports_of_one_file_at_once_do_not_mix_their_rows(tmp_path: Path):
    path = tmp_path / "a.parquet"
    with ParquetFile(path, row_group_bytes=1) as first:
        first.add(batch("g", 3))
        with ParquetFile(path, row_group_bytes=1) as second:
            second.add(batch("h", 1))
            first.add(batch("i", 1))
        assert [row["group_id"] for row in pq.read_table(path).to_pylist()] == ["h"]
    assert [row["group_id"] for row in pq.read_table(path).to_pylist()] == ["g", "g", "g", "i"]
    assert [each.name for each in tmp_path.iterdir()] == ["a.parquet"]


def test_full_disk_is_said_of_the_file_and_an_older_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.parquet"
    rows_of(path, batch("g", 1))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="could not be written: No space left on device") as caught:
        rows_of(path, batch("h", 1))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["a.parquet"]
    assert pq.read_table(path).to_pylist()[0]["group_id"] == "g"


def test_export_into_a_folder_that_is_not_there_names_the_file(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="could not be written: No such file") as caught:
        rows_of(tmp_path / "no/a.parquet")
    assert caught.value.filename == f"{tmp_path}/no/a.parquet"


def test_file_that_a_link_leads_to_is_overwritten_and_the_link_stays(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "a.parquet"
    link.symlink_to(tmp_path / "disk/b.parquet")
    assert len(rows_of(link, batch("g", 1))) == 1
    assert link.is_symlink()
    assert [each.name for each in (tmp_path / "disk").iterdir()] == ["b.parquet"]


def test_what_is_no_file_is_refused_and_stays(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidSettings, match="expected a file"):
        rows_of(pipe)
    assert pipe.is_fifo()
