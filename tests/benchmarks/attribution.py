"""How long attribution takes as rollouts grow: `python tests/benchmarks/attribution.py [spans ...]`.

One rollout of each shape and size, under every policy. Of 10 entries 8 are spans, half of them calls, and 2 rewards; in
`rewards` 2 are spans and 8 are rewards. The size counts both. Times are microseconds an entry, the best of some rounds.
Growth is the time an entry takes at the largest size ÷ at the smallest. 1.0 is linear in a machine without caches, so a
`bare` pass stands beside: an object made of each entry and put into a dict by its id, and looked up by its parent's.

chain    operations one within the other, a call in each; rewards emitted at any depth
wide     all calls directly beneath one agent
agents   an agent for each two calls
rewards  few calls, many rewards
late     wide, each call ends before the one that began before it: 0.3's matching walks far back
links    every reward with a target: a call, its response id, or an operation
"""

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rolloutlog.consumers.attribution import AttributionSettings, Entry, PolicyView, RewardEntry, SpanEntry, attribute
from rolloutlog.consumers.attribution.settings import POLICIES

SIZES = (1_000, 10_000, 100_000)
ROUNDS, ROUNDS_S = 3, 0.1  # at least
CUSTOM = f"{Path(__file__).stem if __name__ == '__main__' else __name__}:last_earlier"
LAST_NS = 10**9


def last_earlier(view: PolicyView) -> str | None:
    """A policy of one's own that does what `nearest` does."""
    return view.earlier[-1].span_id if view.earlier else None


def chain(size: int, chance: random.Random) -> Iterator[Entry]:
    yield SpanEntry("agent", None, "agent", "solver", 0, LAST_NS)
    for i in range(4 * size // 10):
        yield SpanEntry(f"o{i}", f"o{i - 1}" if i else "agent", "operation", f"deep{i % 100}", i, LAST_NS)
        yield _call(i, f"o{i}")
        if i % 2:
            yield RewardEntry(f"w{i}", 1.0, parent_id=f"o{chance.randrange(i)}", time_ns=i + 1)


def wide(size: int, chance: random.Random) -> Iterator[Entry]:
    yield SpanEntry("agent", None, "agent", "solver", 0, LAST_NS)
    for i in range(4 * size // 10):
        yield _call(i, "agent")
        yield SpanEntry(f"t{i}", "agent", "tool", "run", i, i + 1)
        if i % 2:
            yield RewardEntry(f"w{i}", 1.0, parent_id=f"t{chance.randrange(i)}", time_ns=i + 1)


def agents(size: int, chance: random.Random) -> Iterator[Entry]:
    for i in range(4 * size // 10):
        if not i % 2:
            yield SpanEntry(f"a{i}", None, "agent", f"worker{i % 50}", i, LAST_NS)
            yield SpanEntry(f"o{i}", f"a{i}", "operation", "work", i, LAST_NS)
        yield _call(i, f"o{i - i % 2}")
        if i % 2:
            yield RewardEntry(f"w{i}", 1.0, parent_id=f"o{2 * chance.randrange(i // 2 + 1)}", time_ns=i + 1)


def rewards(size: int, chance: random.Random) -> Iterator[Entry]:
    yield SpanEntry("agent", None, "agent", "solver", 0, LAST_NS)
    for i in range(size // 10):
        yield SpanEntry(f"o{i}", f"o{chance.randrange(i)}" if i else "agent", "operation", "check", i, LAST_NS)
        yield _call(i, f"o{i}")
        for j in range(8):
            name = f"w{i}.{j}"
            yield RewardEntry(name, 1.0, f"name{j}", parent_id=f"o{chance.randrange(i + 1)}", time_ns=i + 1)


def late(size: int, chance: random.Random) -> Iterator[Entry]:
    for entry in wide(size, chance):
        if isinstance(entry, SpanEntry) and entry.kind == "call":
            entry = entry._replace(end_ns=LAST_NS - entry.start_ns)
        elif isinstance(entry, RewardEntry):
            entry = replace(entry, time_ns=LAST_NS - entry.time_ns % 1_000)
        yield entry


def links(size: int, chance: random.Random) -> Iterator[Entry]:
    targets: tuple[Callable[[int], tuple[str, str]], ...] = (
        lambda i: ("span_id", f"c{i}"),
        lambda i: ("span_id", f"o{i}"),
        lambda i: ("response_id", f"r{i}"),
        lambda i: ("operation", f"deep{i % 100}"),
    )
    for i, entry in enumerate(chain(size, chance)):
        if isinstance(entry, RewardEntry):
            target = targets[chance.randrange(4)](chance.randrange(i // 3 + 1))
            entry = RewardEntry(entry.reward_id, 1.0, target=target, time_ns=entry.time_ns)
        yield entry


def _call(i: int, parent_id: str) -> SpanEntry:
    return SpanEntry(f"c{i}", parent_id, "call", "chat", i, i + 1, response_id=f"r{i}", token_count=3)


SHAPES = (chain, wide, agents, rewards, late, links)


def microseconds(log: Sequence[Entry], work: Callable[[Sequence[Entry]], object]) -> float:
    """Processor time a span or reward takes, the best of some rounds."""
    took: list[float] = []
    gc.collect()
    while sum(took) < ROUNDS_S or len(took) < ROUNDS:
        began = time.process_time()  # what others do on this machine is not counted
        work(log)
        took.append(time.process_time() - began)
    return min(took) / len(log) * 1e6


def work_of(policy: str) -> Callable[[Sequence[Entry]], object]:
    if policy == "bare":
        return bare
    settings = AttributionSettings(policy=policy)
    return lambda log: attribute(log, settings)


def bare(log: Sequence[Entry]) -> int:
    """The least that any attribution does."""
    ids = {getattr(entry, "span_id", None) or getattr(entry, "reward_id", ""): [entry] for entry in log}
    return sum(entry.parent_id in ids for entry in log)


def main(sizes: Sequence[int]) -> None:
    print(f"{'µs an entry':24}" + "".join(f"{size:>10,}" for size in sizes) + "    growth   all of the largest")
    for shape in SHAPES:
        logs = [list(shape(size, random.Random(size))) for size in sizes]
        policies = ("enclosing",) if shape is links else ("bare", *POLICIES, CUSTOM)
        for policy in policies:
            took = [microseconds(log, work_of(policy)) for log in logs]
            label = f"{shape.__name__} {'custom' if policy == CUSTOM else policy}"
            whole_s = took[-1] * len(logs[-1]) / 1e6
            print(f"{label:24}" + "".join(f"{each:10.2f}" for each in took), end="")
            print(f"{took[-1] / took[0]:9.2f}x{whole_s:9.2f} s", flush=True)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or SIZES)
