"""Releasing a version, and that what is released never changes."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutlog.schemas import by_fingerprint
from rolloutlog.schemas import release as module
from rolloutlog.schemas.release import FOLDER, NotReleased, pin_faults, pin_of, read_pins, read_raw, release

PINNED = sorted(read_pins(FOLDER))
NEXT = "StepAwaited.v3"


@pytest.mark.parametrize("stem", PINNED)
def test_released_version_is_as_it_was_released(stem: str):
    raws = read_raw(FOLDER)
    assert stem in raws, f"{stem}.avsc is gone: a released version stays for ever"
    assert pin_of(FOLDER, stem, raws[stem]) == read_pins(FOLDER)[stem], f"{stem} changed: put it back, add a version"
    assert by_fingerprint(bytes.fromhex(read_pins(FOLDER)[stem]["fingerprint"])) is not None


def test_every_version_is_released():
    missing = read_raw(FOLDER).keys() - read_pins(FOLDER).keys()
    assert not missing, f"run python -m rolloutlog.schemas.release: {', '.join(sorted(missing))} is not pinned"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what is released."""
    copy = tmp_path / "schemas"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for stem in read_raw(copy).keys() - read_pins(copy).keys():
        (copy / f"{stem}.avsc").unlink()
    return copy


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs `python -m rolloutlog.schemas.release` on the copy."""
    monkeypatch.setattr(module, "FOLDER", folder)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["release", *arguments])
        return module.main()

    return run


def add(folder: Path, *fields: dict[str, object], golden: dict[str, object] | None = None, stem: str = NEXT) -> None:
    """A new version with more fields, and its golden value."""
    older = json.loads((folder / "StepAwaited.v2.avsc").read_text(encoding="utf-8"))
    older["fields"] += fields
    (folder / f"{stem}.avsc").write_text(json.dumps(older), encoding="utf-8")
    if golden is not None:
        value = json.loads((folder / "golden/StepAwaited.v2.json").read_text(encoding="utf-8")) | golden
        (folder / f"golden/{stem}.json").write_text(json.dumps(value), encoding="utf-8")


FOR_S = {"name": "for_s", "type": "long", "default": 0, "doc": "Since when it waits. Seconds."}


def test_release_writes_golden_bytes_and_pin_of_the_new_version_alone(folder: Path):
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "released.json"}
    pins = read_pins(folder)
    add(folder, FOR_S, golden={"for_s": 7})
    assert release(folder) == [NEXT]
    assert (folder / f"golden/{NEXT}.bin").read_bytes().endswith(b"\x0e")
    assert {file: file.read_bytes() for file in before} == before
    assert {**pins, NEXT: read_pins(folder)[NEXT]} == read_pins(folder)
    assert release(folder) == []


@pytest.mark.parametrize(
    ("field", "golden", "text"),
    [
        ({**FOR_S, "default": None}, {"for_s": 7}, "default_invalid"),
        ({"name": "for_s", "type": "long", "doc": "How long. Seconds."}, {"for_s": 7}, "field_without_default"),
        ({**FOR_S, "doc": "How long"}, {"for_s": 7}, "unit_missing"),
        (FOR_S, None, "golden/StepAwaited.v3.json is missing: write one value of StepAwaited.v3 with every field set"),
        (FOR_S, {}, "expected every field set, got none of for_s"),
        (FOR_S, {"for_s": "seven"}, "golden/StepAwaited.v3.json: "),
        (FOR_S, {"for_s": 7, "other": 1}, "golden/StepAwaited.v3.json: "),
    ],
)
def test_release_of_what_is_not_right_is_refused_by_name_and_writes_nothing(folder, field, golden, text):
    add(folder, field, golden=golden)
    pins = (folder / "released.json").read_bytes()
    with pytest.raises(NotReleased, match=text):
        release(folder)
    assert (folder / "released.json").read_bytes() == pins
    assert not (folder / f"golden/{NEXT}.bin").exists()


@pytest.mark.parametrize("file", ["Span.v1.avsc", "golden/Span.v1.bin"])
def test_released_file_that_is_gone_or_changed_is_named(folder: Path, file: str):
    (folder / file).write_bytes((folder / file).read_bytes().replace(b"chat", b"talk").replace(b"Text", b"text"))
    assert list(pin_faults(folder)) == [f"{file} is not as it was released: put it back, and add a version instead"]
    (folder / file).unlink()
    (gone,) = pin_faults(folder)
    assert gone.startswith(f"{file} is gone")
    with pytest.raises(NotReleased, match="is gone"):
        release(folder)


def test_released_file_with_other_line_ends_is_the_same(folder: Path):
    file = folder / "Span.v1.avsc"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert list(pin_faults(folder)) == []


def test_release_of_named_versions_leaves_the_others(folder: Path):
    add(folder, FOR_S, golden={"for_s": 7})
    add(folder, FOR_S, {**FOR_S, "name": "at_s"}, stem="StepAwaited.v4")
    assert release(folder, [NEXT]) == [NEXT]
    with pytest.raises(NotReleased, match=r"Nothing\.v1\.avsc: expected a schema of that name, got none"):
        release(folder, ["Nothing.v1"])


def test_command_says_what_it_released_and_what_not(folder: Path, command, capsys):
    assert command() == 0
    assert capsys.readouterr().out == "nothing to release: every version is pinned\n"
    add(folder, FOR_S, golden={"for_s": 7})
    assert command() == 0
    assert capsys.readouterr().out == "released StepAwaited.v3\n"
    add(folder, {**FOR_S, "name": "at_s"}, golden={"at_s": 7}, stem="StepAwaited.v4")
    assert command() == 1
    assert capsys.readouterr().err == (
        "StepAwaited, $.for_s: field_renamed: v3 to v4: expected for_s, got at_s: its old bytes would be lost\n"
    )
