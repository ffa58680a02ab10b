"""The package installs beside a project that has folders of the same names, and loads no more than it needs."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def build_wheel(folder: Path) -> Path:
    # From a copy: building leaves files behind, which a later build would take for the project's.
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "*.db", "tests", "docs", "build"), symlinks=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, copy]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return next(folder.glob("rolloutlog-*.whl"))


def test_wheel_beside_folders_of_the_same_names_runs_from_its_own_files(tmp_path: Path):
    installed, project = tmp_path / "installed", tmp_path / "project"
    zipfile.ZipFile(build_wheel(tmp_path)).extractall(installed)
    for name in ("schemas", "consumers", "eventstore", "deploy"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"OWN = '{name}'\n")
    code = """
import sys
sys.path.insert(1, sys.argv[1])
import consumers, deploy, eventstore, schemas
assert [m.OWN for m in (consumers, deploy, eventstore, schemas)] == ["consumers", "deploy", "eventstore", "schemas"]
import rolloutlog.consumers.assembler, rolloutlog.eventstore, rolloutlog.deploy.kafka
from rolloutlog.schemas import versions
assert len(versions()) >= 16
from rolloutlog.eventstore import EventPublisher
with EventPublisher.open("sqlite:///own.db", create=True) as events, events.rollout(task_id="t") as rollout:
    rollout.finish(reward=1.0)
print(rolloutlog.__file__)
"""
    assert Path(python(code, project, str(installed))).is_relative_to(installed)


def test_assembler_on_the_embedded_log_loads_no_broker_client(tmp_path: Path):
    code = """
import asyncio, sys
from rolloutlog.consumers.assembler import Assembler, AssemblerSettings
from rolloutlog.eventstore import open_log
from rolloutlog.eventstore.topics import create_topics

async def main():
    log = await open_log("sqlite:///a.db", create=True)
    await create_topics(log)
    await Assembler(log, AssemblerSettings()).run(range(4), until_end=True)
    await log.close()

asyncio.run(main())
print([name for name in sys.modules if "kafka" in name])
"""
    assert python(code, tmp_path) == "[]"


def test_assembler_names_no_kafka():
    assert "kafka" not in (ROOT / "consumers/assembler.py").read_text(encoding="utf-8").lower()
