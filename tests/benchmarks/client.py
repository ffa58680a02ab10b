"""How fast a trainer reads batches from Kafka: `PYTHONPATH=tests python tests/benchmarks/client.py [groups [tokens]]`.

Side by side in one run, taking turns, each in a process of its own: `getmany`, the driver alone, which reads the
records as bytes, set up as our reader sets it up; `decoded`, our reader, which makes batches of them and does nothing
else; `client`, a BatchStream with steps of 64 groups, each padded and acknowledged. A group has 8 samples, each of
`tokens` response tokens (1,400: 17 kB) and 5/7 of that as prompt. Medians of megabytes a second by the wall clock and
by the process's processor time (on a busy machine the second tells more), the peak of memory, and the ratios to
`getmany`.

Then what the client does beyond `getmany`, piece by piece: processor time for a step of 64 groups, alone in a thread.
About half of `decode` and `pad` is the system's, for memory that is fresh. What the client takes above their sum is the
transaction of the acknowledgement, and threads that wait for each other. Starts a broker of its own.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
from support.batches import batch, end_records, records_of, sample
from support.driver import read_by_driver
from support.store import Store

from rolloutlog.consumers.batches import decode_part
from rolloutlog.consumers.published import Joiner, Published
from rolloutlog.consumers.stream.acked import Reached
from rolloutlog.consumers.stream.admission import EXCLUDE
from rolloutlog.consumers.stream.collector import Collector, StepSettings
from rolloutlog.consumers.trainer import BatchStream
from rolloutlog.deploy.kafka import Broker, KafkaMissing, broker_jars
from rolloutlog.eventstore.acks import StepAcknowledged, ack_records
from rolloutlog.eventstore.log import BATCHES, NewRecord, open_log

ROUNDS = 3
PARTITIONS = 4
SAMPLES = 8
TOKENS = 1_400  # of a response: with the prompt 4,000 + 9 x 1,400 bytes a sample, and its ids
GROUPS_PER_STEP = 64
APPENDED_BYTES = 7_000_000  # at once


def main(groups: int, tokens: int) -> None:
    try:
        broker_jars()
    except KafkaMissing as error:
        print(f"no Kafka, so that nothing is measured: {error}")
        return
    with tempfile.TemporaryDirectory() as folder, Broker.start(Path(folder)) as broker:
        url = f"kafka://{broker.bootstrap}/bench"
        size_bytes = fill(url, groups, tokens)
        print(
            f"{groups} groups of {SAMPLES} samples, {tokens} response tokens each, {size_bytes / 1e6:.0f} MB in "
            f"{PARTITIONS} partitions"
        )
        found: dict[str, list[dict[str, float]]] = {"getmany": [], "decoded": [], "client": []}
        for number in range(ROUNDS):
            for way, runs in found.items():
                more = [f"bench-{number}", str(tokens)] if way == "client" else [str(size_bytes)]
                runs.append(run(way, url, *more))
        medians = {}
        for way, runs in found.items():
            wall, cpu = (median(size_bytes / 1e6 / each[name] for each in runs) for name in ("wall_s", "cpu_s"))
            peak = max(each["peak_mb"] for each in runs)
            print(f"{way:8} {wall:7.0f} MB/s   {cpu:7.0f} MB per second of processor   peak {peak:5.0f} MB")
            medians[way] = wall, cpu
        for way in ("decoded", "client"):
            wall, cpu = (ours / theirs for ours, theirs in zip(medians[way], medians["getmany"], strict=True))
            print(f"{way} / getmany {wall:.2f}, by processor time {cpu:.2f}")
        steps = groups / GROUPS_PER_STEP
        print(f"processor time of a step of {GROUPS_PER_STEP} groups, ms")
        for way, runs in found.items():
            print(f"  {way:8} {median(each['cpu_s'] for each in runs) / steps * 1e3:6.1f}")
        for piece, took_s in run("pieces", str(tokens)).items():
            print(f"    {piece:22} {took_s * 1e3:6.1f}")


def fill(url: str, groups: int, tokens: int) -> int:
    """Write the groups and the end of the run. Returns the size of all values."""
    with Store(url, partitions=PARTITIONS) as store:
        size_bytes, waiting, waiting_bytes = 0, list[NewRecord](), 0
        for record in chain(batches(groups, tokens), end_records(PARTITIONS)):
            size_bytes += len(record.value or b"")
            waiting_bytes += len(record.value or b"")
            waiting.append(record)
            if waiting_bytes >= APPENDED_BYTES:
                store.append(waiting)
                waiting, waiting_bytes = [], 0
        store.append(waiting)
    return size_bytes


def batches(groups: int, tokens: int = TOKENS) -> Iterator[NewRecord]:
    rng, prompt_tokens = np.random.default_rng(7), prompt_of(tokens)
    for group in range(groups):
        samples = [
            sample(
                f"g{group}/0/{index}",
                prompt_ids=rng.integers(0, 150_000, prompt_tokens, "<i4").tobytes(),
                response_ids=rng.integers(0, 150_000, tokens, "<i4").tobytes(),
                response_mask=b"\x01" * tokens,
                logprobs=(-rng.random(tokens, "<f4")).tobytes(),
                policy_version_runs=(),
                reward_token_index=np.array([tokens - 1], "<i4").tobytes(),
            )
            for index in range(SAMPLES)
        ]
        yield from records_of(batch(f"g{group}", samples), group % PARTITIONS)


def prompt_of(tokens: int) -> int:
    return tokens * 5 // 7


def run(way: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, way, *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def read_client(url: str, reader: str, tokens: int = TOKENS) -> None:
    with BatchStream.open(
        url, reader=reader, groups_per_step=GROUPS_PER_STEP, max_staleness=None, missing_reward="exclude"
    ) as stream:
        began = time.perf_counter(), time.process_time()
        for step in stream:
            step.padded(prompt_of(tokens), tokens, pad_id=0)
            stream.ack(step, policy_version=step.number)
        report(*began)


async def read_decoded(url: str, size_bytes: int) -> None:
    log = await open_log(url)
    try:
        began = time.perf_counter(), time.process_time()
        reader = await log.reader(BATCHES, dict.fromkeys(range(PARTITIONS), 0))
        joiners = [Joiner() for _ in range(PARTITIONS)]
        read = 0
        while read < size_bytes:
            for record in await reader.fetch(wait_s=1.0):
                joiners[record.partition].add(record)
                read += len(record.value or b"")
        report(*began)
        await reader.close()
    finally:
        await log.close()


def measure_pieces(tokens: int) -> None:
    """Seconds of a step, of each piece, on standard output: the best of some."""
    values = [record.value or b"" for record in batches(GROUPS_PER_STEP, tokens)]
    settings = StepSettings(GROUPS_PER_STEP, None, EXCLUDE)
    decoded = [decode_part(value) for value in values]

    def collect() -> Collector:
        collector = Collector(settings, {0: Reached(0)}, number=0, origin="bench")
        for offset, each in enumerate(decoded):
            collector.add(Published(0, offset, offset + 1, 0, 0, each), None)
        return collector

    formed = collect().form(None)
    assert formed is not None
    step, taken = formed
    ack = StepAcknowledged("bench", 0, 0, taken.batch_ids, tuple(taken.samples), {0: 0}, 0)
    pieces: dict[str, Callable[[], object]] = {
        "decode": lambda: [decode_part(value) for value in values],
        "check and collect": collect,
        "pad": lambda: step.padded(prompt_of(tokens), tokens, pad_id=0),
        "write the ack": lambda: ack_records(ack),
    }
    took = {}
    for piece, work in pieces.items():
        runs = []
        for _ in range(20):
            began = time.process_time()
            work()
            runs.append(time.process_time() - began)
        took[piece] = min(runs)
    print(json.dumps(took))


def report(wall_s: float, cpu_s: float) -> None:
    """Time since then, on standard output."""
    took = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s, "peak_mb": peak_mb()}
    print(json.dumps(took))


def peak_mb() -> float:
    """Of this program: what getrusage tells holds that of the process which started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1e3


if __name__ == "__main__":
    if sys.argv[1:2] == ["getmany"]:
        asyncio.run(read_by_driver(sys.argv[2], BATCHES, PARTITIONS, int(sys.argv[3]), report))
    elif sys.argv[1:2] == ["decoded"]:
        asyncio.run(read_decoded(sys.argv[2], int(sys.argv[3])))
    elif sys.argv[1:2] == ["client"]:
        read_client(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["pieces"]:
        measure_pieces(int(sys.argv[2]))
    else:
        given = [int(each) for each in sys.argv[1:]]
        main(*given, *(1_000, TOKENS)[len(given) :])
