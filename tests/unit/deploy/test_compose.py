"""deploy/compose.yaml and deploy/Dockerfile, as far as they can be checked without an engine: what they name exists."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from rolloutlog import __version__
from rolloutlog.consumers.cli.configuration import Configuration
from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.deploy.kafka import broker_jars, kafka_version
from rolloutlog.deploy.kafka.jars import java
from rolloutlog.eventstore.log import parse_url

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / "deploy/compose.yaml"
DOCKERFILE = ROOT / "deploy/Dockerfile"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("rolloutlog:")}
WHO_AND_WHERE = {  # of server.properties, what an address decides
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "controller.quorum.voters",
    "log.dirs",
}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with what follows them, lines joined, comments left out."""
    text = re.sub(r"\\\n", " ", "".join(f"{line}\n" for line in _lines(DOCKERFILE) if not line.startswith("#")))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def build_copies() -> list[list[str]]:
    """Paths of COPY that come from the project, the last of each being where they go."""
    return [rest.split() for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]


def accept(arguments: list[str]) -> None:
    """Parse a command line without running it. Raises click's error for what the command does not take."""
    context = rolloutlog.make_context("rolloutlog", list(arguments))
    command: click.Command = rolloutlog
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


@pytest.mark.parametrize("name", OURS)
def test_command_line_of_each_service_is_one_that_the_command_takes(name: str):
    accept(OURS[name]["command"])


def test_command_lines_in_both_files_comments_are_ones_that_the_command_takes():
    lines = [line for path in (COMPOSE, DOCKERFILE) for line in _lines(path)]
    found = [
        match[1]
        for line in lines
        if (match := re.match(r"#   (?:docker run .*)?\brolloutlog (\w.*?)(?:   .*)?$", line))
    ]
    assert len(found) == 2
    for line in found:
        accept(shlex.split(line))


def test_an_unknown_flag_of_a_service_is_noticed():
    with pytest.raises(click.UsageError):
        accept(["assemble", "--nothing"])


@pytest.mark.parametrize("name", OURS)
def test_environment_of_each_service_names_settings_that_exist(name: str):
    for variable in OURS[name]["environment"]:
        if variable.startswith("ROLLOUTLOG_"):
            assert variable.removeprefix("ROLLOUTLOG_").lower() in Configuration.model_fields, variable
        else:
            assert variable == "OMP_NUM_THREADS"


@pytest.mark.parametrize("name", OURS)
def test_log_of_each_service_is_the_brokers_address_for_containers(name: str):
    url = parse_url(OURS[name]["environment"]["ROLLOUTLOG_LOG"])
    assert [f"BROKER://{server}" for server in url.servers] == kafka()["KAFKA_ADVERTISED_LISTENERS"].split(",")[:1]


def kafka() -> dict[str, str]:
    environment: dict[str, str] = SERVICES["kafka"]["environment"]
    return environment


def test_image_of_kafka_has_the_version_in_the_pom(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ROLLOUTLOG_KAFKA_VERSION", raising=False)
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{kafka_version()}"


def test_image_of_ours_has_the_packages_version():
    assert {service["image"] for service in OURS.values()} == {f"rolloutlog:{__version__}"}


def test_build_of_ours_names_files_that_exist():
    for service in OURS.values():
        context = (COMPOSE.parent / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).resolve() == DOCKERFILE


def test_mounted_files_exist_and_volumes_are_declared():
    declared = yaml.safe_load(COMPOSE.read_text("utf-8"))["volumes"]
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (COMPOSE.parent / source).is_file() if source.startswith(".") else source in declared, volume


def test_services_wait_for_services_that_exist():
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_kafka_of_compose_changes_nothing_in_server_properties_but_who_and_where():
    """The rest is the guarantee."""
    changed = {
        name.removeprefix("KAFKA_").lower().replace("_", ".")
        for name in kafka()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }
    assert changed == WHO_AND_WHERE
    given = {line.partition("=")[0] for line in _lines(ROOT / "deploy/kafka/server.properties") if "=" in line[:60]}
    assert given >= WHO_AND_WHERE


@pytest.mark.kafka
def test_kafka_images_own_start_program_makes_a_valid_configuration_of_it(tmp_path: Path):
    """The image runs this program before the broker: it joins mounted file and environment, and formats the volume."""
    mounted, final, data = tmp_path / "mounted", tmp_path / "final", tmp_path / "data"
    for folder in (mounted, final):
        folder.mkdir()
    shutil.copy(ROOT / "deploy/kafka/server.properties", mounted)
    for name in ("log4j2.yaml", "tools-log4j2.yaml"):
        (mounted / name).write_text("Configuration:\n  Loggers:\n    Root:\n      level: WARN\n")
    environment = {**kafka(), "KAFKA_LOG_DIRS": str(data)}
    command = [java(), "-cp", os.pathsep.join(map(str, broker_jars())), "kafka.docker.KafkaDockerWrapper", "setup"]
    command += ["--default-configs-dir", mounted, "--mounted-configs-dir", mounted, "--final-configs-dir", final]
    done = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split("=", 1) for line in _lines(final / "server.properties") if re.match(r"[a-z]", line))
    assert found["advertised.listeners"] == environment["KAFKA_ADVERTISED_LISTENERS"]
    assert found["offsets.retention.minutes"] == "43200"
    assert f"cluster.id={environment['CLUSTER_ID']}" in _lines(data / "meta.properties")


def test_dockerfile_copies_paths_that_exist_and_that_the_ignore_file_lets_in():
    let_in = {line[1:] for line in _lines(ROOT / "deploy/Dockerfile.dockerignore") if line.startswith("!")}
    for *sources, _ in build_copies():
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in let_in, source


def test_dockerfile_copies_all_that_a_wheel_with_its_data_is_built_from(tmp_path: Path):
    source = tmp_path / "src"
    source.mkdir()
    for *paths, target in build_copies():
        for path in paths:
            if (ROOT / path).is_dir():
                shutil.copytree(ROOT / path, source / target, dirs_exist_ok=True)
            else:
                to = source / target / Path(path).name if target.endswith("/") else source / target
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, to)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        source,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    names = zipfile.ZipFile(next(tmp_path.glob("rolloutlog-*.whl"))).namelist()
    for name in ("consumers/cli/main.py", "schemas/Span.v1.avsc", "deploy/kafka/pom.xml", "consumers/demo/shop.sql"):
        assert f"rolloutlog/{name}" in names


def test_dockerfile_pins_its_base_runs_as_no_root_and_its_commands_are_ones_that_exist():
    found = instructions()
    bases = {rest.split()[0] for word, rest in found if word == "FROM"}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases.pop())
    assert [rest for word, rest in found if word == "USER"] == ["10001:10001"]
    health = next(rest for word, rest in found if word == "HEALTHCHECK")
    program, *arguments = yaml.safe_load(health.partition("CMD ")[2])
    assert program == "rolloutlog"
    accept(arguments)
    accept(yaml.safe_load(next(rest for word, rest in found if word == "CMD")))
