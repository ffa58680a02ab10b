"""Ids as they are asked for, and what may have been meant."""

from pathlib import Path

import pytest

from rolloutlog.consumers.replaying.ids import hinted, read_ids
from rolloutlog.eventstore.errors import InvalidSettings

FAILURE = '{"group_id": "g", "rollout_id": "r", "attempt": 0, "scorer": "judge", "reason": "no\\nanswer"}'


@pytest.mark.parametrize(("option", "ids"), [("--rollout", ("r", "s")), ("--group", ("g", "s"))])
def test_ids_in_a_file_are_lines_or_lines_of_failures(option: str, ids: tuple[str, ...], tmp_path: Path):
    file = tmp_path / "ids"
    file.write_text(f"{FAILURE}\n\n s \n{FAILURE}\n")
    assert read_ids(option, [f"@{file}"]) == ids


@pytest.mark.parametrize("line", ["{", '{"other": 1}', '{"rollout_id": 1}', "{x}"])
def test_id_that_only_looks_like_a_failure_is_an_id(line: str, tmp_path: Path):
    (tmp_path / "ids").write_text(line)
    assert read_ids("--rollout", [f"@{tmp_path}/ids", "a"]) == tuple(sorted(["a", line]))


def test_ids_of_an_empty_file_are_refused(tmp_path: Path):
    (tmp_path / "ids").write_text("\n")
    with pytest.raises(InvalidSettings, match="--group: expected ids, got none in @"):
        read_ids("--group", [f"@{tmp_path}/ids"])


def test_id_that_is_the_name_of_a_file_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "groups.txt").touch()
    assert hinted("group groups.txt") == "group groups.txt (did you mean @groups.txt? There is a file of that name)"
    assert hinted("group g") == "group g"
    assert hinted(f"rollout {'x' * 5_000}\0") == f"rollout {'x' * 5_000}\0"
