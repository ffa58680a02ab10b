"""Run one Kafka broker as a child process, from its jars.

`Broker.start(data_dir)` formats the directory when it is new, starts broker and controller in one Java process and
returns when the broker answers a metadata request that lists it. The broker ends with the process that started it,
however that one ends: a watching process kills it when our end of a pipe closes.

Order     jars, Java, ports, format, start, watch, ready
Files     data_dir/server.properties as used, data_dir/broker.log, data_dir/log (Kafka's own)
Not here  the settings and what they guarantee: server.properties; finding the jars: deploy.kafka.jars
"""

import base64
import os
import random
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Self

from rolloutlog.deploy.kafka.jars import broker_jars, java, last_lines
from rolloutlog.eventstore.errors import StoreError

HOST = "127.0.0.1"
NODE_ID = 1
HEAP_MB = 384
READY_S = 60.0  # about 2 s on an idle machine
STOP_S = 20.0  # a clean stop takes under 1 s
FORMAT_S = 60.0
POLL_S = 0.05
LOG_LINES = 30  # in the text of an error

# Below the range from which systems take ports for outgoing connections: a client that keeps connecting to a stopped
# broker's port may otherwise be given that very port as its own, and the broker cannot start there again.
PORTS = range(15_000, 32_000)

# Compiling lightly halves the time to start; a benchmark passes its own options.
JAVA_OPTIONS_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class BrokerError(StoreError):
    """The broker did not start or is not running; the text ends with the last lines of its log."""


class Broker:
    """One Kafka broker on 127.0.0.1, on a data directory of its own.

    bootstrap  "127.0.0.1:port", the same after a restart
    log_path   what the broker wrote, over all starts
    start_s    seconds from start to ready, format included, of the latest start

    Methods block; from a coroutine call them with `asyncio.to_thread`. As a context manager it stops at the end.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int,
        controller_port: int,
        java_options: Sequence[str],
        properties: Mapping[str, str],
    ) -> None:
        """Describe a broker without starting it; use `Broker.start`."""
        self.data_dir = data_dir
        self.bootstrap = f"{HOST}:{port}"
        self.log_path = data_dir / "broker.log"
        self.start_s = 0.0
        self._port = port
        self._controller_port = controller_port
        self._java_options = tuple(java_options)
        self._own_properties = dict(properties)
        self._properties = data_dir / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # size of the log before the latest start, in bytes

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        port: int | None = None,
        java_options: Sequence[str] = JAVA_OPTIONS_QUICK,
        properties: Mapping[str, str] | None = None,
    ) -> "Broker":
        """Start a broker and wait until it is ready.

        data_dir      made when missing; one that a broker used before continues with its topics
        port          to listen on; None takes a free one
        java_options  beside the heap's
        properties    settings of the broker that go before those of server.properties; `{broker}` and `{controller}`
                      in them stand for the two addresses
        Raises        KafkaMissing when the machine lacks Java, Maven or the jars; BrokerError when the port is taken or
                      the broker does not get ready
        """
        port = free_port() if port is None else port
        broker = cls(data_dir.resolve(), port, free_port(but=port), java_options, properties or {})
        broker._start()
        return broker

    @property
    def pid(self) -> int | None:
        """Process id of the running broker, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def stop(self) -> None:
        """Stop it cleanly: SIGTERM, and SIGKILL after STOP_S. A broker that does not run is left as it is."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again on the same data and port, after a clean stop if it runs.

        Raises  BrokerError when it does not get ready
        """
        self.stop()
        self._start()

    def log_tail(self, count: int = LOG_LINES) -> str:
        """Last lines that the broker wrote since its latest start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return last_lines(log.read().decode("utf-8", "replace"), count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        began = time.monotonic()
        for port in (self._port, self._controller_port):
            if not is_free(port):  # else the answer of whoever listens there could pass for ours
                raise BrokerError(f"broker {self.bootstrap} in {self.data_dir}: not started; {HOST}:{port} is taken")
        classpath = os.pathsep.join(map(str, broker_jars()))
        command = [java(), f"-Xmx{HEAP_MB}m", *self._java_options, "-Dlog4j2.level=INFO", "-cp", classpath]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._write_properties()
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._format(command, log.fileno())
            # A session of its own: an interrupt typed at the terminal must not stop the broker before its clients.
            self._process = subprocess.Popen(
                [*command, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_dir,
                start_new_session=True,
            )
        self._watch = _kill_when_we_die(self._process.pid)
        try:
            self._wait_ready(began + READY_S)
        except BaseException:
            self.kill()
            raise
        self.start_s = time.monotonic() - began

    def _write_properties(self) -> None:
        template = resources.files(__package__).joinpath("server.properties").read_text("utf-8")
        endpoint, controller = f"{HOST}:{self._port}", f"{HOST}:{self._controller_port}"
        self._properties.write_text(
            template
            + "\n# This run; the keys above are overridden.\n"
            + f"node.id={NODE_ID}\n"
            + f"controller.quorum.voters={NODE_ID}@{controller}\n"
            + f"listeners=BROKER://{endpoint},CONTROLLER://{controller}\n"
            + f"advertised.listeners=BROKER://{endpoint}\n"
            + f"log.dirs={self.data_dir / 'log'}\n"
            + "".join(
                f"{name}={value.format(broker=endpoint, controller=controller)}\n"
                for name, value in self._own_properties.items()
            ),
            "utf-8",
        )

    def _format(self, command: Sequence[str], log: int) -> None:
        if (self.data_dir / "log" / "meta.properties").exists():
            return
        format_storage = ["kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._properties)]
        try:
            code = subprocess.run(
                [*command, *format_storage], stdout=log, stderr=log, timeout=FORMAT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired as late:
            raise BrokerError(self._failure(f"formatting took more than {FORMAT_S:.0f} s")) from late
        if code != 0:
            raise BrokerError(self._failure(f"formatting ended with exit code {code}"))

    def _wait_ready(self, deadline: float) -> None:
        process = self._process
        assert process is not None
        last: Exception | None = None
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise BrokerError(self._failure(f"ended with exit code {process.returncode} before it was ready"))
            try:
                if NODE_ID in _listed_nodes(self._port):
                    return
                last = None
            except OSError as error:
                last = error
            time.sleep(POLL_S)
        why = f"last try: {last}" if last else "it answers, but does not list itself"
        raise BrokerError(self._failure(f"not ready within {READY_S:.0f} s ({why}); killed"))

    def _failure(self, what: str) -> str:
        return f"broker {self.bootstrap} in {self.data_dir}: {what}; last lines of {self.log_path}:\n{self.log_tail()}"

    def _end(self, how: signal.Signals) -> None:
        process, watch = self._process, self._watch
        self._process = self._watch = None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if watch is not None:
            watch.kill()
            watch.wait()
            assert watch.stdin is not None
            watch.stdin.close()


def _kill_when_we_die(pid: int) -> subprocess.Popen[bytes]:
    """Start a shell that waits for the end of its input, which comes when this process is gone, then kills `pid`.

    A pipe rather than PR_SET_PDEATHSIG: that one fires when the thread that started the broker ends.
    """
    return subprocess.Popen(
        ["sh", "-c", 'read -r _; kill -9 "$0"', str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port(*, but: int | None = None) -> int:
    """A port of PORTS on which nothing listens now, other than `but`."""
    for port in random.sample(PORTS, 200):
        if port != but and is_free(port):
            return port
    raise BrokerError(f"no free port found on {HOST} in 200 tries between {PORTS.start} and {PORTS.stop - 1}")


def is_free(port: int) -> bool:
    """Whether the port can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _cluster_id() -> str:
    """A random id as Kafka writes them: 16 bytes in URL-safe base64, not starting with a dash, no padding."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _listed_nodes(port: int) -> list[int]:
    """Ask for the cluster's metadata without topics (Metadata v1) and return the ids of the brokers that serve.

    A broker lists itself once the controller has let it serve clients, some time after its port opens.
    Raises  OSError when the port is closed or the answer breaks off
    Source  the Kafka protocol guide, "Metadata API"
    """
    client = b"rolloutlog"
    body = struct.pack(">hhih", 3, 1, 1, len(client)) + client + struct.pack(">i", 0)
    with socket.create_connection((HOST, port), timeout=2.0) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", _read(stream.read(4), 4))
            answer = _read(stream.read(size), size)
    count = struct.unpack_from(">i", answer, 4)[0]  # after the correlation id
    at, nodes = 8, []
    for _ in range(count):  # node id int32, host string, port int32, rack nullable string
        node, host_size = struct.unpack_from(">ih", answer, at)
        at += 6 + host_size + 4
        rack_size = struct.unpack_from(">h", answer, at)[0]
        at += 2 + max(rack_size, 0)
        nodes.append(node)
    return nodes


def _read(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ConnectionResetError(f"answer broke off: expected {size} bytes, got {len(data)}")
    return data
