"""What an archive needs, and what it does not: Parquet is written with pyarrow, and read by nobody of ours."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.archive import archive

WITHOUT = """
import sys
for name in ("pyarrow", "fsspec"):
    sys.modules[name] = None
"""


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--log", "sqlite:///x.db", "--to", "a"], ["verify", "a"]])
def test_archive_without_its_extra_names_it(arguments):
    done = run(f"sys.argv[1:] = ['archive', *{arguments}]\nfrom rolloutlog.consumers.cli import main\nmain()")
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs pyarrow, which is not installed: pip install 'rolloutlog[archive]'" in done.stderr


def test_url_without_the_extra_names_it():
    done = run("""
import asyncio
from rolloutlog.consumers.archiving import open_archive
try:
    asyncio.run(open_archive("s3://bucket/archive"))
except Exception as error:
    print(type(error).__name__, error)
""")
    assert done.stdout.startswith("InvalidSettings ")
    assert "needs fsspec, which is not installed: pip install 'rolloutlog[archive]'" in done.stdout


async def test_folder_is_read_without_the_extra(log, tmp_path: Path):
    await archive(log, tmp_path / "a")
    done = run(f"""
import asyncio
from rolloutlog.consumers.archiving import open_archive
print(asyncio.run(open_archive({str(tmp_path / "a")!r})).run_id)
""")
    assert done.stdout == "run\n", done.stderr
