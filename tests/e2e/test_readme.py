"""README and docs say what happens: their code runs, their commands print what stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(command: str, folder: Path) -> str:
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=120, env=environment()
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def environment() -> dict[str, str]:
    import os

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTLOG_LOG")},
        "PATH": path,
    }


def test_readme_code_and_commands_give_the_output_shown(tmp_path: Path):
    readme = ROOT / "README.md"
    for code in blocks(readme, "python"):
        name = re.match(r"# (\w+\.py)\n", code)
        assert name, "a python block begins with the name of its file"
        (tmp_path / name[1]).write_text(code)
    consoles = blocks(readme, "console")
    assert consoles
    for console in consoles:
        for command, expected in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", console, re.MULTILINE):
            assert run(command, tmp_path) == expected, command


def test_readme_shows_the_demo_as_it_is(tmp_path: Path):
    """By the shape of its lines: numbers, ids and names differ from run to run."""
    shown = (block for block in blocks(ROOT / "README.md", "") if "mean final reward" in block)
    printed = shapes(run("rolloutlog demo", tmp_path))
    assert shapes(next(shown)) - printed == set()


def shapes(output: str) -> set[str]:
    """Lines without what differs: numbers and ids, names of tasks, lengths of bars."""
    lines = (re.sub(r"task [\w-]+", "task", line).rstrip(" █▏▎▍▌▋▊▉") for line in output.splitlines())
    return {re.sub(r"\b[0-9a-f]{16,32}\b|\d[\d,.]*(-\d+)?", "N", re.sub(r" +", " ", line)) for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_names_only_commands_that_exist(page: Path):
    from rolloutlog.consumers.cli.main import COMMANDS

    for command in re.findall(r"rolloutlog ([a-z]+(?:-[a-z]+)*)\b", page.read_text(encoding="utf-8")):
        assert command in COMMANDS or command in ("is",), command


def test_docs_name_every_setting_of_the_assembler():
    from rolloutlog.consumers.attribution import AttributionSettings
    from rolloutlog.consumers.cli.configuration import Configuration

    settings = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    rewards = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")
    for name in Configuration.model_fields:
        assert f"`{name}`" in settings, name
    for name in AttributionSettings.__dataclass_fields__:
        assert f"`{name}`" in rewards, name


def test_docs_name_every_exit_code_and_command():
    from rolloutlog.consumers.cli.main import COMMANDS

    settings = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"`rolloutlog {command}" in settings, command
