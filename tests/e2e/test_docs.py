"""The python blocks of docs run, each in a folder of its own, and print what stands below them."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from e2e.test_readme import ROOT, blocks, run

from rolloutlog.consumers.trainer import PREFETCH_BYTES, BatchStream, Padded, Step
from rolloutlog.eventstore import PublisherSettings
from rolloutlog.eventstore.rollout import Rollout
from rolloutlog.eventstore.spans import CallBlock

ONE_FOLDER = {ROOT / "docs/intermediate-rewards.md": 6, ROOT / "docs/archive.md": 5}  # with its commands, at least
PAGES = sorted({*(ROOT / "docs").glob("*.md")} - {*ONE_FOLDER})
PUBLISHING = ROOT / "docs/publishing.md"
TRAINING = ROOT / "docs/training.md"


def examples(page: Path) -> Iterator[tuple[str, str, str]]:
    """Name, code, and the console blocks up to the next example: a page's blocks in their order."""
    name, code, console = "", "", ""
    for block in [*blocks(page, "(?:python|console)"), "# end.py\n"]:
        if begin := re.match(r"# (\w+\.py)\n", block):
            if name:
                yield name, code, console
            name, code, console = begin[1], block, ""
        else:
            assert block.startswith("$ "), f"{page.name}: a python block begins with the name of its file: {block[:60]}"
            console += block


EXAMPLES = [(page, *example) for page in PAGES for example in examples(page)]


@pytest.mark.parametrize(("page", "name", "code", "console"), EXAMPLES, ids=[f"{e[0].stem}-{e[1]}" for e in EXAMPLES])
def test_example_of_a_page_prints_what_the_page_states(page: Path, name: str, code: str, console: str, tmp_path: Path):
    if not code.strip() or not console:
        pytest.fail(f"{page.name}: {name} is followed by no console block that runs it and shows what it prints")
    (tmp_path / name).write_text(code, encoding="utf-8")
    commands = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", console, re.MULTILINE)
    assert commands[0][0] == f"python {name}"
    for command, expected in commands:
        assert run(command, tmp_path) == expected, command
    assert any(expected for _, expected in commands), "a result that the page states"


@pytest.mark.parametrize("page", ONE_FOLDER, ids=lambda page: page.stem)
def test_page_whose_files_share_a_folder_prints_what_it_states(page: Path, tmp_path: Path):
    for code in blocks(page, "python"):
        name = re.match(r"# (\w+\.py)\n", code)
        assert name, "a python block begins with the name of its file"
        (tmp_path / name[1]).write_text(code, encoding="utf-8")
    console = "".join(blocks(page, "console"))
    commands = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", console, re.MULTILINE)
    assert len(commands) >= ONE_FOLDER[page]
    for command, expected in commands:
        assert run(command, tmp_path) == expected, command


def test_publishing_names_every_setting_of_a_publisher_with_its_default():
    text = PUBLISHING.read_text(encoding="utf-8")
    for field in fields(PublisherSettings):
        assert f"`{field.name}`" in text, field.name
    assert re.findall(r"^\| `memory_bytes_max` \| (.*?) \|", text, re.MULTILINE) == ["64 MiB"]
    assert PublisherSettings().memory_bytes_max == 64 * 2**20


@pytest.mark.parametrize(
    "method", [CallBlock.record, Rollout.reward, Rollout.finish], ids=lambda method: method.__name__
)
def test_publishing_names_every_argument(method):
    text = PUBLISHING.read_text(encoding="utf-8")
    for name in method.__kwdefaults__ or method.__code__.co_varnames[1 : method.__code__.co_argcount]:
        assert f"`{name}`" in text or f"{name}=" in text or f"finish({name})" in text, name


def test_training_names_every_setting_of_a_stream_with_its_default():
    text = TRAINING.read_text(encoding="utf-8")
    defaults = BatchStream.open.__kwdefaults__
    names = set(BatchStream.open.__annotations__) - {"url", "return", "clock", "opener"}
    for name in names:
        assert f"`{name}`" in text, name
    assert PREFETCH_BYTES == 256 * 2**20
    shown = (defaults["wait_s"], defaults["warn_s"], defaults["ack_s"], defaults["reader"], defaults["on_history_lost"])
    assert shown == (1800.0, 60.0, 120.0, "trainer", "fail")
    for line in ("| `wait_s`, `warn_s` | 1800, 60 |", "| `ack_s` | 120 |", "| `prefetch_bytes` | 256 MiB |"):
        assert line in text


@pytest.mark.parametrize("of", [Step, Padded])
def test_training_names_what_a_step_and_its_arrays_hold(of):
    text = TRAINING.read_text(encoding="utf-8")
    for field in fields(of):
        if field.name not in ("origin", "missing_reward"):  # the stream's own
            assert f"`{field.name}`" in text, field.name
