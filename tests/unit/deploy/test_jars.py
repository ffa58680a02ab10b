"""Resolving the broker's jars: what is missing is named, and the cache is whole or absent. No network."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rolloutlog.deploy.kafka import KafkaMissing, broker_jars, jars
from rolloutlog.deploy.kafka.jars import java, kafka_version

SLOW_MAVEN = """#!/bin/sh
for argument; do case "$argument" in -DoutputDirectory=*) target="${argument#*=}";; esac; done
echo run >> "$RUNS"
mkdir -p "$target"; sleep 0.3; echo a > "$target/a.jar"; sleep 0.3; echo b > "$target/b.jar"
"""
FAILING_MAVEN = "#!/bin/sh\nprintf '[\\033[1;31mERROR\\033[m] Could not find artifact kafka_2.13'; exit 1\n"
JAVA_17 = "#!/bin/sh\necho 'openjdk version \"17.0.15\"' >&2\n"
JAVA_11 = "#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n"


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder of tools that comes before nothing but the shell's own."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "mkdir", "sleep"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("ROLLOUTLOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ROLLOUTLOG_KAFKA_VERSION", "4.2.2")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def test_jars_without_java_names_java_and_the_version_to_install() -> None:
    with pytest.raises(KafkaMissing, match="java not found on PATH: install a Java runtime, 17 or newer"):
        broker_jars()


def test_jars_with_old_java_names_the_version_found(tools: Path) -> None:
    add_tool(tools, "java", JAVA_11)
    with pytest.raises(KafkaMissing, match="is too old: expected Java 17 or newer, got 11; install that"):
        java()


def test_jars_without_maven_names_maven_and_the_cache(tools: Path, tmp_path: Path) -> None:
    add_tool(tools, "java", JAVA_17)
    with pytest.raises(KafkaMissing, match=r"mvn not found on PATH: .*Kafka 4\.2\.2, which .* lacks; install Maven"):
        broker_jars()


def test_jars_when_maven_fails_shows_its_words_and_leaves_no_cache(tools: Path, tmp_path: Path) -> None:
    add_tool(tools, "java", JAVA_17)
    add_tool(tools, "mvn", FAILING_MAVEN)
    with pytest.raises(KafkaMissing, match=r"exit code 1\); it said:\n\[ERROR\] Could not find artifact kafka_2\.13"):
        broker_jars()
    assert [path.name for path in (tmp_path / "cache/kafka/4.2.2").iterdir()] == [".lock"]


def test_jars_resolved_by_two_processes_at_once_are_whole_and_resolved_once(tools: Path, tmp_path: Path) -> None:
    add_tool(tools, "java", JAVA_17)
    add_tool(tools, "mvn", SLOW_MAVEN)
    code = "from rolloutlog.deploy.kafka import broker_jars; print([path.name for path in broker_jars()])"
    environment = {**os.environ, "RUNS": str(tmp_path / "runs")}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["['a.jar', 'b.jar']"] * 2
    assert (tmp_path / "runs").read_text() == "run\n"


def test_jars_being_fetched_tells_each_line_that_maven_writes(tools: Path):
    add_tool(tools, "java", JAVA_17)
    add_tool(
        tools, "mvn", SLOW_MAVEN.replace('echo run >> "$RUNS"', "echo Downloaded from central: a.jar; echo done >&2")
    )
    lines: list[str] = []
    assert len(broker_jars(lines.append)) == 2
    assert lines == ["Downloaded from central: a.jar", "done"]


def test_jars_that_maven_does_not_fetch_in_time_are_given_up(tools: Path, monkeypatch: pytest.MonkeyPatch):
    add_tool(tools, "java", JAVA_17)
    add_tool(tools, "mvn", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(jars, "RESOLVE_TIMEOUT_S", 0.3)
    with pytest.raises(KafkaMissing, match=r"Maven did not resolve Kafka 4\.2\.2 within 0 s"):
        broker_jars()


def test_jars_left_half_copied_by_a_dead_process_are_removed(tools: Path, tmp_path: Path) -> None:
    add_tool(tools, "java", JAVA_17)
    add_tool(tools, "mvn", SLOW_MAVEN.replace('echo run >> "$RUNS"', ""))
    half = tmp_path / "cache/kafka/4.2.2/libs-dead/libs"
    half.mkdir(parents=True)
    assert [path.name for path in broker_jars()] == ["a.jar", "b.jar"]
    assert not half.exists()


def test_kafka_version_without_override_is_the_poms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLOUTLOG_KAFKA_VERSION")
    assert kafka_version() == "4.2.2"


def add_tool(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_jars_in_a_cache_that_cannot_be_written_name_the_folder_and_the_variable(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLLOUTLOG_CACHE", str(tmp_path / "file"))
    with pytest.raises(KafkaMissing) as caught:
        broker_jars()
    assert str(caught.value).startswith(
        f"jars of Kafka 4.2.2: expected {tmp_path}/file/kafka/4.2.2 to be a folder that"
    )
    assert str(caught.value).endswith("name another cache with ROLLOUTLOG_CACHE")


def test_jars_in_a_cache_with_a_relative_name_are_where_everyone_finds_them(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maven and the broker run in other folders."""
    add_tool(tools, "java", JAVA_17)
    add_tool(tools, "mvn", SLOW_MAVEN)
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("ROLLOUTLOG_CACHE", "here")
    monkeypatch.chdir(tmp_path)
    assert broker_jars() == [tmp_path / "here/kafka/4.2.2/libs" / name for name in ("a.jar", "b.jar")]


@pytest.mark.parametrize("version", ["4", "../4.2.2", "4.2/2", "4.2.2 ", "latest"])
def test_kafka_version_that_is_none_is_refused_before_it_becomes_a_path(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTLOG_KAFKA_VERSION", version)
    with pytest.raises(KafkaMissing, match=r"Kafka version: expected one such as 4\.2\.2, got "):
        kafka_version()
