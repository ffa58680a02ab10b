"""How long closing a rollout of one conversation takes, by its calls: `python tests/benchmarks/merging.py [tokens]`.

The same number of tokens in 100 and in 1,000 calls, each prompt stored as a base and what is new; with `merge=none`,
with `merge=trajectory`, and with `merge=trajectory` on prompts that are stored whole. Medians in milliseconds, peaks in
MB (Python's own allocations), and the merged row's size.
"""

import sys
import time
import tracemalloc
from collections.abc import Iterator
from statistics import median

from support.building import call, completed, ids, started
from unit.consumers.folding import Partition

from rolloutlog.eventstore.events import Span

ROUNDS = 3


def main(tokens: int) -> None:
    for name, merge, whole in (("none", "none", False), ("trajectory", "trajectory", False),
                               ("trajectory, whole prompts", "trajectory", True)):  # fmt: skip
        for turns in (100, 1_000):
            calls = list(conversation(turns, tokens, whole=whole))
            took = median(closed(calls, merge)[0] for _ in range(ROUNDS))
            tracemalloc.start()
            _, partition = closed(calls, merge)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            size_bytes = sum(each.size_bytes for each in partition.batch.samples)
            figures = f"{took * 1e3:8.1f} ms {peak / 1e6:8.1f} MB  samples {size_bytes / 1e6:.1f} MB"
            print(f"{name:26} {turns:5} calls {figures}")


def conversation(turns: int, tokens: int, *, whole: bool) -> Iterator[Span]:
    new = tokens // turns // 2
    part = ids(*range(new))
    for number in range(turns):
        fields = {"prompt_ids": part}
        if number and whole:
            fields = {"prompt_ids": part * (2 * number + 1)}
        elif number:
            fields |= {"prompt_base": f"c{number - 1}", "prompt_base_tokens": 2 * new * number}
        yield call(f"c{number}", number + 1, response_ids=part, **fields)


def closed(calls: list[Span], merge: str) -> tuple[float, Partition]:
    partition = Partition(merge=merge)
    partition.add(started(), *calls)
    began = time.perf_counter()
    partition.add(completed(len(calls) + 1))
    return time.perf_counter() - began, partition


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64_000)
