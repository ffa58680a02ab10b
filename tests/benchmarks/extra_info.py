"""How long columns of extra info take: `PYTHONPATH=tests python tests/benchmarks/extra_info.py [rows keys]`.

`decode` reads the rows' bytes, `assemble` makes columns of them, `step` does both; a third of the rows lacks one key.
`frame` is numpy alone: `np.array` of each key's list of values. Medians in milliseconds of the thread's processor time.
"""

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from support.batches import batch, sample

from rolloutlog.consumers.extra_info import assemble_extra_info
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.extra_info import decode_extra_info, encode_extra_info

ROUNDS = 9


def main(rows: int, keys: int) -> None:
    rng = np.random.default_rng(7)
    infos = [{f"key{key}": value(rng, key) for key in range(keys)} for _ in range(rows)]
    for info in infos[::3]:
        del info["key0"]
    encoded = [encode_extra_info(info) for info in infos]
    made = batch("g", [sample(f"g/0/{row}", extra_info=each) for row, each in enumerate(encoded)])
    step = Step(0, (made,), made.samples, (0,) * rows, (0,), 3)
    ways: dict[str, Callable[[], object]] = {
        "decode": lambda: [decode_extra_info(each) for each in encoded],
        "assemble": lambda: assemble_extra_info(infos),
        "step": step.extra_info,
        "frame": lambda: [np.array([info.get(f"key{key}", 0) for info in infos]) for key in range(keys)],
    }
    took = {name: timed(work) for name, work in ways.items()}
    for name, seconds in took.items():
        print(f"{name:9} {seconds * 1e3:7.1f} ms  ({rows} rows, {keys} keys)")
    print(f"assemble / frame {took['assemble'] / took['frame']:.1f}")


def value(rng: np.random.Generator, key: int) -> Any:
    return (float(rng.random()), int(rng.integers(9)), f"answer {rng.integers(9)}", bool(rng.integers(2)))[key % 4]


def timed(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return median(times)


if __name__ == "__main__":
    main(*(map(int, sys.argv[1:]) if len(sys.argv) > 1 else (4_096, 20)))
