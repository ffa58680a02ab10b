"""docs/verl.md with the real verl: its first file prints what it states, its second is what verl's main takes."""

import asyncio
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.batches import records_of
from support.store import Store
from unit.consumers.adapters.stepping import step

verl = pytest.importorskip("verl", reason="verl and torch are large, and not installed here: make test-verl runs this")

from ray import cloudpickle  # noqa: E402

PAGE = (Path(__file__).resolve().parents[2] / "docs/verl.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.timeout(180)


def written(name: str, folder: Path, **replaced: str) -> Path:
    """A file of the page."""
    (code,) = re.findall(rf"^```py\n(# {name}\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for old, new in replaced.items():
        code, count = re.subn(rf'^{old} = ".*"$', f'{old} = "{new}"', code, flags=re.MULTILINE)
        assert count == 1
    path = folder / name
    path.write_text(code, encoding="utf-8")
    return path


def run(path: Path, *arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, path, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_file_prints_what_the_page_states(tmp_path: Path):
    (stated,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert run(written("as_verl.py", tmp_path), cwd=tmp_path) == stated


def test_second_file_takes_the_settings_of_verls_own_main(tmp_path: Path):
    shown = run(written("train_async.py", tmp_path), "--cfg", "job", cwd=Path(verl.__file__).parents[1])
    assert "trigger_parameter_sync_step: 4" in shown


def test_trainer_of_the_second_file_saves_and_loads_where_reading_goes_on_with_its_checkpoints(tmp_path, monkeypatch):
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=1) as store:
        for each in step({name: [1.0, 0.0] for name in "abcd"}).batches:
            store.append(records_of(each))
        recipe = runpy.run_path(str(written("train_async.py", tmp_path, URL=store.url)), run_name="recipe")
        base = recipe["VerlTrainer"]
        saved: list[int] = []

        async def load_checkpoint(self: Any) -> int:
            self.current_param_version = 1 if saved else 0
            return int(self.current_param_version)

        monkeypatch.setattr(base, "_save_checkpoint", lambda self: saved.append(self.current_param_version))
        monkeypatch.setattr(base, "load_checkpoint", load_checkpoint)

        def started(**resume: str) -> Any:
            resume = resume or {"resume_mode": "auto"}
            made = object.__new__(recipe["Trainer"].__ray_metadata__.modified_class)
            made.required_samples, made.trigger_parameter_sync_step, made.current_param_version = 1, 2, 0
            made.config = SimpleNamespace(
                data=SimpleNamespace(max_prompt_length=3, max_response_length=4),
                trainer=SimpleNamespace(default_local_dir=str(tmp_path / "checkpoints"), **resume),
            )
            made.tokenizer = SimpleNamespace(pad_token_id=0)
            made.set_message_queue_client(None)
            asyncio.run(made.load_checkpoint())
            return made

        def take(trainer: Any) -> str:
            sample, _ = asyncio.run(trainer.message_queue_client.get_sample())
            return str(cloudpickle.loads(sample).sample_id)

        failed = started()
        assert [take(failed), take(failed)] == ["a", "b"]
        failed.message_queue_client.close()

        trainer = started()
        assert [take(trainer), take(trainer)] == ["a", "b"]
        trainer.current_param_version = 1
        trainer._save_checkpoint()
        assert saved == [1]
        assert (tmp_path / "checkpoints/global_step_1/rolloutlog.json").exists()
        assert take(trainer) == "c"
        trainer.message_queue_client.close()

        moved = (tmp_path / "checkpoints/global_step_1").rename(tmp_path / "global_step_1")
        again = started(resume_mode="resume_path", resume_from_path=str(moved))
        assert take(again) == "c"
        again.message_queue_client.close()

        moved.rename(tmp_path / "checkpoints/global_step_1")
        again = started()
        assert take(again) == "c"
        again.message_queue_client.close()
