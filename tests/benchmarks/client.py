"""How fast a trainer reads batches from Kafka: `PYTHONPATH=tests python tests/benchmarks/client.py [groups]`.

Side by side in one run, taking turns, each in a process of its own: `getmany`, the driver alone, which reads the
records as bytes; `decoded`, our reader, which makes batches of them and does nothing else; `client`, a BatchStream with
steps of 64 groups, each padded and acknowledged. A group has 8 samples of 17 kB. Medians of megabytes a second by the
wall clock and by the process's processor time (on a busy machine the second tells more), the peak of memory, and the
ratios to `getmany`. Starts a broker of its own.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from support.batches import batch, end_records, records_of, sample
from support.store import Store

from rolloutlog.consumers.published import Joiner
from rolloutlog.consumers.trainer import BatchStream
from rolloutlog.deploy.kafka import Broker, KafkaMissing, broker_jars
from rolloutlog.eventstore.log import BATCHES, NewRecord, open_log

ROUNDS = 3
PARTITIONS = 4
SAMPLES, PROMPT_TOKENS, RESPONSE_TOKENS = 8, 1_000, 1_400  # 4,000 + 9 x 1,400 bytes a sample, and its ids
GROUPS_PER_STEP = 64
APPENDED = 50  # groups at once


def main(groups: int) -> None:
    try:
        broker_jars()
    except KafkaMissing as error:
        print(f"no Kafka, so that nothing is measured: {error}")
        return
    with tempfile.TemporaryDirectory() as folder, Broker.start(Path(folder)) as broker:
        url = f"kafka://{broker.bootstrap}/bench"
        size_bytes = fill(url, groups)
        print(f"{groups} groups of {SAMPLES} samples, {size_bytes / 1e6:.0f} MB in {PARTITIONS} partitions")
        found: dict[str, list[dict[str, float]]] = {"getmany": [], "decoded": [], "client": []}
        for number in range(ROUNDS):
            for way, runs in found.items():
                runs.append(run(way, url, str(number if way == "client" else size_bytes)))
        medians = {}
        for way, runs in found.items():
            wall, cpu = (median(size_bytes / 1e6 / each[name] for each in runs) for name in ("wall_s", "cpu_s"))
            peak = max(each["peak_mb"] for each in runs)
            print(f"{way:8} {wall:7.0f} MB/s   {cpu:7.0f} MB per second of processor   peak {peak:5.0f} MB")
            medians[way] = wall, cpu
        for way in ("decoded", "client"):
            wall, cpu = (ours / theirs for ours, theirs in zip(medians[way], medians["getmany"], strict=True))
            print(f"{way} / getmany {wall:.2f}, by processor time {cpu:.2f}")


def fill(url: str, groups: int) -> int:
    """Write the groups and the end of the run. Returns the size of all values."""
    with Store(url, partitions=PARTITIONS) as store:
        size_bytes, waiting = 0, list[NewRecord]()
        for record in (*batches(groups), *end_records(PARTITIONS)):
            size_bytes += len(record.value or b"")
            waiting.append(record)
            if len(waiting) == APPENDED:
                store.append(waiting)
                waiting.clear()
        store.append(waiting)
    return size_bytes


def batches(groups: int) -> Iterator[NewRecord]:
    rng = np.random.default_rng(7)
    for group in range(groups):
        samples = [
            sample(
                f"g{group}/0/{index}",
                prompt_ids=rng.integers(0, 150_000, PROMPT_TOKENS, "<i4").tobytes(),
                response_ids=rng.integers(0, 150_000, RESPONSE_TOKENS, "<i4").tobytes(),
                response_mask=b"\x01" * RESPONSE_TOKENS,
                logprobs=(-rng.random(RESPONSE_TOKENS, "<f4")).tobytes(),
                policy_version_runs=(),
                reward_token_index=np.array([RESPONSE_TOKENS - 1], "<i4").tobytes(),
            )
            for index in range(SAMPLES)
        ]
        yield from records_of(batch(f"g{group}", samples), group % PARTITIONS)


def run(way: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, way, *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def read_client(url: str, number: str) -> None:
    with BatchStream.open(
        url, reader=f"bench-{number}", groups_per_step=GROUPS_PER_STEP, max_staleness=None, missing_reward="exclude"
    ) as stream:
        began = time.perf_counter(), time.process_time()
        for step in stream:
            step.padded(PROMPT_TOKENS, RESPONSE_TOKENS, pad_id=0)
            stream.ack(step, policy_version=step.number)
        report(*began)


async def read_plain(url: str, size_bytes: int) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    make: Any = AIOKafkaConsumer  # without types
    consumer = make(
        bootstrap_servers=url.split("/")[2],
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_bytes=16 * 2**20,
        max_partition_fetch_bytes=4 * 2**20,
    )
    await consumer.start()
    try:
        began = time.perf_counter(), time.process_time()
        consumer.assign([TopicPartition(f"bench.{BATCHES}", partition) for partition in range(PARTITIONS)])
        read = 0
        while read < size_bytes:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                read += sum(len(each.value) for each in records)
        report(*began)
    finally:
        await consumer.stop()


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
        asyncio.run(read_plain(sys.argv[2], int(sys.argv[3])))
    elif sys.argv[1:2] == ["decoded"]:
        asyncio.run(read_decoded(sys.argv[2], int(sys.argv[3])))
    elif sys.argv[1:2] == ["client"]:
        read_client(sys.argv[2], sys.argv[3])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
