"""Jars of the Kafka broker, resolved once into a cache.

`broker_jars()` gives the jar files of the Kafka version named in pom.xml. The first call lets Maven copy them into
`{cache}/kafka/{version}/libs`; later calls need no Maven and no network.

Order     lock, look again, copy into a folder beside the final one, rename: whoever finds `libs` finds all of it
Not here  starting a broker with them: deploy.kafka.broker
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

from rolloutlog.eventstore.errors import StoreError

JAVA_VERSION_MIN = 17  # Kafka 4 brokers do not run on less
RESOLVE_TIMEOUT_S = 600.0  # about 40 MB on the first call
OUTPUT_LINES = 15  # of a failed command, in the error's text
POM_NAMESPACE = "{http://maven.apache.org/POM/4.0.0}"

VERSION = re.compile(r"[0-9]+(\.[0-9]+){1,3}(-[A-Za-z0-9]+)?")

OnLine = Callable[[str], None]


class KafkaMissing(StoreError):
    """The machine lacks something to run a broker with; the text names it and what to install."""


def broker_jars(on_line: OnLine | None = None) -> list[Path]:
    """Return the broker's jar files, sorted, resolving them first when the cache has none.

    on_line  told each line that Maven writes meanwhile, such as which file it downloads
    Raises   KafkaMissing when Maven or Java is missing, or when Maven cannot resolve the jars
    """
    libs = libs_dir()
    if not libs.is_dir():
        try:
            with _locked(libs.parent):
                if not libs.is_dir():  # another process may have resolved them while this one waited
                    _resolve(libs, on_line)
        except OSError as error:
            raise KafkaMissing(
                f"jars of Kafka {kafka_version()}: expected {libs.parent} to be a folder that can be written, got: "
                f"{error.strerror or error} ({error.filename}); name another cache with ROLLOUTLOG_CACHE"
            ) from error
    return sorted(libs.glob("*.jar"))


def libs_dir() -> Path:
    """Folder of the jars, whether it exists or not. `ROLLOUTLOG_CACHE` names another cache than ~/.cache/rolloutlog."""
    cache = os.environ.get("ROLLOUTLOG_CACHE")
    root = Path(cache) if cache else Path.home() / ".cache" / "rolloutlog"
    # Maven and the broker run in folders of their own, from which a relative path leads elsewhere.
    return root.expanduser().absolute() / "kafka" / kafka_version() / "libs"


def kafka_version() -> str:
    """Kafka version to run: `ROLLOUTLOG_KAFKA_VERSION` if set, else the one in pom.xml. Raises KafkaMissing."""
    wanted = os.environ.get("ROLLOUTLOG_KAFKA_VERSION")
    if wanted:
        if not VERSION.fullmatch(wanted):  # it becomes part of a path
            raise KafkaMissing(f"Kafka version: expected one such as 4.2.2, got {wanted!r}")
        return wanted
    pom = ElementTree.fromstring(resources.files(__package__).joinpath("pom.xml").read_text("utf-8"))
    version = pom.findtext(f"{POM_NAMESPACE}properties/{POM_NAMESPACE}kafka.version")
    if not version:
        raise KafkaMissing("pom.xml names no Kafka version: expected properties/kafka.version, got none")
    return version


def java() -> str:
    """Path of a Java that runs the broker: that of `JAVA_HOME` if set, else `java` on the path.

    Raises  KafkaMissing when there is none or it is older than JAVA_VERSION_MIN
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise KafkaMissing(f"java not found {where}: install a Java runtime, {JAVA_VERSION_MIN} or newer")
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r'version "(\d+)', answer.stderr)
    if match is None or int(match[1]) < JAVA_VERSION_MIN:
        got = match[1] if match else last_lines(answer.stderr, 1) or "no answer"
        raise KafkaMissing(f"{found} is too old: expected Java {JAVA_VERSION_MIN} or newer, got {got}; install that")
    return found


def last_lines(text: str, count: int = OUTPUT_LINES) -> str:
    """The last lines of a command's output that say something, without colour codes."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return "\n".join([line for line in plain.splitlines() if line.strip()][-count:])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock between processes. The system releases it when its holder dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _resolve(libs: Path, on_line: OnLine | None) -> None:
    java()  # Maven's own words for a missing Java are less clear
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaMissing(
            f"mvn not found on PATH: Maven resolves the jars of Kafka {kafka_version()}, which {libs} lacks; "
            "install Maven 3.6 or newer"
        )
    for stale in libs.parent.glob("libs-*"):  # of a process that died at it; the lock is ours
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="libs-", dir=libs.parent) as work:
        # A pom of its own folder: Maven writes beside the pom, and an installed package may not be writable.
        pom = Path(work) / "pom.xml"
        pom.write_text(resources.files(__package__).joinpath("pom.xml").read_text("utf-8"), "utf-8")
        target = Path(work) / "libs"
        command = [maven, "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        command += [f"-DoutputDirectory={target}", f"-Dkafka.version={kafka_version()}"]
        code, output = _run_maven(command if on_line is not None else [*command, "-q"], on_line)
        if code != 0 or not target.is_dir():
            raise KafkaMissing(
                f"Maven could not resolve Kafka {kafka_version()} (exit code {code}); it said:\n" + last_lines(output)
            )
        target.rename(libs)


def _run_maven(command: Sequence[str], on_line: OnLine | None) -> tuple[int, str]:
    """Run Maven within its time; returns its exit code and what it wrote."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as maven:
        assert maven.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            maven.kill()

        alarm = threading.Timer(RESOLVE_TIMEOUT_S, give_up)
        alarm.start()
        try:
            lines = []
            for line in maven.stdout:
                lines.append(line)
                if on_line is not None:
                    on_line(line.rstrip("\n"))
            code = maven.wait()
        except BaseException:
            maven.kill()
            raise
        finally:
            alarm.cancel()
    if late.is_set():
        raise KafkaMissing(
            f"Maven did not resolve Kafka {kafka_version()} within {RESOLVE_TIMEOUT_S:.0f} s; "
            "check that it reaches its registry"
        )
    return code, "".join(lines)
