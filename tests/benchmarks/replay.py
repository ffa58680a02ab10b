"""How fast history is replayed: `PYTHONPATH=tests python tests/benchmarks/replay.py [groups] [sqlite|kafka]`.

Side by side in one run, taking turns, each in a process of its own: `read`, which takes the records as bytes (with
Kafka by the driver's getmany alone, else by our reader); `dry-run`, which folds, attributes and makes samples of them;
and `replay`, which writes the output too. Events have 17 kB on average: a group has 4 rollouts, each of 8 calls of
24 kB and three small events. Medians of megabytes of events a second by the wall clock and by the process's processor
time (on a busy machine the second tells more), and the ratios to `read`. Starts a broker of its own.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from support.building import call, completed, reward, started
from support.driver import read_by_driver
from support.store import Store
from support.workload import new_record

from rolloutlog.consumers.replaying.job import Wish, plan, run_share
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.deploy.kafka import Broker, KafkaMissing, broker_jars
from rolloutlog.eventstore.log import EVENTS, NewRecord, open_log

ROUNDS = 3
PARTITIONS = 4
ROLLOUTS, CALLS = 4, 8
PROMPT_TOKENS, RESPONSE_TOKENS = 1_100, 2_400  # 4,400 + 8 x 2,400 bytes a call
APPENDED = 200  # events at once


def main(groups: int, kinds: list[str]) -> None:
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            if kind == "kafka":
                try:
                    broker_jars()
                except KafkaMissing as error:
                    print(f"no Kafka, so that it is not measured: {error}")
                    continue
                url = f"kafka://{stack.enter_context(Broker.start(Path(folder))).bootstrap}/bench"
            else:
                url = f"sqlite:///{folder}/bench.db"
            measure(kind, url, groups)


def measure(kind: str, url: str, groups: int) -> None:
    size_bytes = fill(url, groups)
    print(f"{kind}: {groups} groups, {size_bytes / 1e6:.0f} MB of events in {PARTITIONS} partitions")
    found: dict[str, list[dict[str, float]]] = {"read": [], "dry-run": [], "replay": []}
    for number in range(ROUNDS):
        for way, runs in found.items():
            runs.append(run(way, url, str(size_bytes), str(number)))
    medians = {}
    for way, runs in found.items():
        wall, cpu = (median(size_bytes / 1e6 / each[name] for each in runs) for name in ("wall_s", "cpu_s"))
        print(f"{way:8} {wall:7.0f} MB/s   {cpu:7.0f} MB per second of processor")
        medians[way] = wall, cpu
    for way in ("dry-run", "replay"):
        wall, cpu = (ours / theirs for ours, theirs in zip(medians[way], medians["read"], strict=True))
        print(f"{way} / read {wall:.2f}, by processor time {cpu:.2f}")


def fill(url: str, groups: int) -> int:
    """Write the events. Returns the size of all values."""
    with Store(url, partitions=PARTITIONS) as store:
        size_bytes, waiting = 0, list[NewRecord]()
        for record in events(groups):
            size_bytes += len(record.value or b"")
            waiting.append(record)
            if len(waiting) == APPENDED:
                store.append(waiting)
                waiting.clear()
        store.append(waiting)
    return size_bytes


def events(groups: int) -> Iterator[NewRecord]:
    rng = np.random.default_rng(7)
    for group in range(groups):
        group_id, partition = f"g{group}", group % PARTITIONS
        for index in range(ROLLOUTS):
            rollout_id = f"{group_id}-{index}"
            made: list[Any] = [started(rollout_id, group_id=group_id, group_size=ROLLOUTS)]
            for turn in range(CALLS):
                made.append(
                    call(
                        f"{rollout_id}-{turn}",
                        len(made),
                        rollout_id,
                        prompt_ids=rng.integers(0, 150_000, PROMPT_TOKENS, "<i4").tobytes(),
                        response_ids=rng.integers(0, 150_000, RESPONSE_TOKENS, "<i4").tobytes(),
                        logprobs=(-rng.random(RESPONSE_TOKENS, "<f4")).tobytes(),
                    )
                )
            made += [reward(len(made), rollout_id, scope="rollout"), completed(len(made) + 1, rollout_id)]
            yield from (new_record(event, key=group_id, partition=partition) for event in made)


def run(way: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, f"--{way}", *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


async def read_log(url: str, size_bytes: int) -> None:
    log = await open_log(url)
    try:
        began = time.perf_counter(), time.process_time()
        reader = await log.reader(EVENTS, dict.fromkeys(range(PARTITIONS), 0))
        read = 0
        while read < size_bytes:
            read += sum(len(record.value or b"") for record in await reader.fetch(wait_s=1.0))
        report(*began)
        await reader.close()
    finally:
        await log.close()


async def replay(url: str, name: str | None) -> None:
    job = await plan(Wish(url, name, FoldSettings(), dry_run=name is None))
    began = time.perf_counter(), time.process_time()
    summary = await run_share(job, job.partitions, stop=asyncio.Event())
    report(*began)
    assert summary.counts["samples"] == summary.counts["groups"] * ROLLOUTS * CALLS, summary


def report(wall_s: float, cpu_s: float) -> None:
    """Time since then, on standard output."""
    print(json.dumps({"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}))


if __name__ == "__main__":
    way, *given = sys.argv[1:] or ["500"]
    if way == "--read":
        url, size_bytes = given[0], int(given[1])
        if url.startswith("kafka"):
            asyncio.run(read_by_driver(url, EVENTS, PARTITIONS, size_bytes, report))
        else:
            asyncio.run(read_log(url, size_bytes))
    elif way in ("--dry-run", "--replay"):
        asyncio.run(replay(given[0], None if way == "--dry-run" else f"bench-{given[2]}"))
    else:
        main(int(way), given or ["sqlite", "kafka"])
