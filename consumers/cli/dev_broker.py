"""`rolloutlog dev-broker`: one Kafka broker on this machine, for development, without a container engine.

The same broker that the tests use: deploy.kafka. It listens on 127.0.0.1 alone, holds one copy of everything and asks
for no login. It ends with this command, however that one ends.

Order     port, folder, jars (the first time Maven fetches them), start, topics, wait for SIGINT or SIGTERM, stop
"""

import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event

import click
from rich.console import Console

from rolloutlog.consumers.cli.options import run
from rolloutlog.deploy.kafka import Broker, BrokerError, KafkaMissing, broker_jars, kafka_version
from rolloutlog.deploy.kafka.broker import HOST, is_free
from rolloutlog.deploy.kafka.jars import java, libs_dir
from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable
from rolloutlog.eventstore.log import open_log, parse_url
from rolloutlog.eventstore.topics import PARTITIONS_EMBEDDED, create_topics

PORT = 9092
LOSES_TRANSACTIONS = ("4.3.", "4.4.")  # docs/decisions/0002
ENDING = tuple(  # a terminal that closes too, unless `nohup` says that it is not to
    name for name in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(name) is not signal.SIG_IGN
)
VERSION_VARIABLE = "ROLLOUTLOG_KAFKA_VERSION"
ALIVE_S = 0.5  # how often we look whether the broker still runs
LINES_S = 10.0  # between two lines of progress where no terminal shows a moving one


@click.command("dev-broker")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="Port on 127.0.0.1.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to keep topics in between starts. Default: a temporary one, removed at the end.",
)
@click.option("--version", "version", metavar="X.Y.Z", help="Kafka version. Default: the one that tests run with.")
@click.option("--prefix", metavar="NAME", help="Create the topics of kafka://127.0.0.1:PORT/NAME, with 4 partitions.")
def dev_broker(port: int, data: Path | None, version: str | None, prefix: str | None) -> None:
    """Run one Kafka broker for development until Ctrl-C or SIGTERM. Needs Java 17; the first time Maven, too.

    It is no place for data you care about: one copy, no login, this machine only.
    """
    if prefix is not None:
        parse_url(_url(port, prefix))  # a wrong prefix is refused before anything starts
    if version is not None:
        os.environ[VERSION_VARIABLE] = version
    try:
        running = kafka_version()
    except KafkaMissing as error:
        raise InvalidSettings(str(error)) from error
    if running.startswith(LOSES_TRANSACTIONS):
        click.echo(f"Kafka {running} can lose an acknowledged transaction when it is killed", err=True)
    # Until the broker runs, all of them end the command at once.
    for name in ENDING:
        signal.signal(name, signal.default_int_handler)
    with ExitStack() as stack:
        if not is_free(port):
            raise InvalidSettings(
                f"port {port}: {HOST}:{port} is not free to listen on; stop what uses it, or choose another with --port"
            )
        folder = stack.enter_context(_folder(data))
        _fetch_jars()
        broker = stack.enter_context(started(folder, port))
        stop = Event()
        for name in (signal.SIGINT, *ENDING):
            signal.signal(name, lambda *_: stop.set())
        if prefix is not None:
            run(_create_topics(_url(port, prefix)))
        _say_how(broker, data, port, prefix)
        while not stop.wait(ALIVE_S):
            if broker.pid is None:
                raise LogUnavailable(f"the broker on {broker.bootstrap} ended by itself; it said:\n{broker.log_tail()}")
        click.echo("stopping")
    click.echo(f"stopped; topics are kept in {data}" if data else "stopped; topics are removed")


def _url(port: int, prefix: str) -> str:
    return f"kafka://{HOST}:{port}/{prefix}"


async def _create_topics(url: str) -> None:
    log = await open_log(url)
    try:
        await create_topics(log, partitions=PARTITIONS_EMBEDDED)
    finally:
        await log.close()


def _say_how(broker: Broker, data: Path | None, port: int, prefix: str | None) -> None:
    where = f"data in {data}" if data else "data is removed at the end (--data FOLDER keeps it)"
    click.echo(f"Kafka {kafka_version()} on {broker.bootstrap}, ready in {broker.start_s:.1f} s; {where}")
    if prefix is None:
        click.echo(f"topics:  rolloutlog topics create --partitions {PARTITIONS_EMBEDDED} --log {_url(port, 'NAME')}")
    else:
        click.echo(f"log:     {_url(port, prefix)}, {PARTITIONS_EMBEDDED} partitions of events")
    click.echo("Ctrl-C stops it")


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    """The folder for the broker's files, ours alone for as long as the block runs."""
    if data is None:
        with tempfile.TemporaryDirectory(prefix="rolloutlog-broker-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    try:
        data.mkdir(parents=True, exist_ok=True)
        handle = (data / ".in-use").open("w")
    except OSError as error:
        raise InvalidSettings(
            f"folder {data}: expected one that this user can write, got: {error.strerror or error}; choose another "
            "with --data"
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it when we die
        except OSError:
            raise InvalidSettings(
                f"folder {data}: another dev-broker uses it; stop that one, or choose another with --data"
            ) from None
        yield data


@contextmanager
def started(folder: Path, port: int | None = None) -> Iterator[Broker]:
    """A broker with its files in `folder`; `port` None = a free one. Raises InvalidSettings, LogUnavailable."""
    try:
        broker = Broker.start(folder, port=port)
    except KafkaMissing as error:
        raise InvalidSettings(str(error)) from error
    except BrokerError as error:
        raise LogUnavailable(str(error)) from error
    with broker:
        yield broker


def _fetch_jars() -> None:
    """Let Maven fetch the jars, once for each version, and show that it does. Raises InvalidSettings."""
    try:
        java()
        if libs_dir().is_dir():
            return
        with _progress(f"fetching Kafka {kafka_version()} into {libs_dir()}, once (about 50 files)") as progress:
            broker_jars(progress)
    except KafkaMissing as error:
        raise InvalidSettings(str(error)) from error


@contextmanager
def _progress(what: str) -> Iterator["_Progress"]:
    console = Console(stderr=True)
    if not console.is_terminal:
        click.echo(what, err=True)
        yield _Progress(lambda text: click.echo(text, err=True), LINES_S)
        return
    with console.status(what) as status:
        yield _Progress(lambda text: status.update(f"{what}: {text}"), 0.0)


class _Progress:
    """Counts the files that Maven tells of, and says so, at most every `pause_s`."""

    def __init__(self, say: Callable[[str], None], pause_s: float) -> None:
        self._say, self._pause_s = say, pause_s
        self._files, self._said_s = 0, time.monotonic()

    def __call__(self, line: str) -> None:
        _, found, rest = line.partition("Downloaded from ")
        if not found:
            return
        self._files += 1
        if time.monotonic() - self._said_s >= self._pause_s:
            with suppress(IndexError):
                self._say(f"{self._files} files, {rest.split()[1].rpartition('/')[2]}")
            self._said_s = time.monotonic()
