"""How long a publish call takes in the calling thread: `python tests/benchmarks/publish_call.py [events a second]`.

Prints percentiles in microseconds, by the wall clock and by the thread's own processor time: on a busy machine only
the second tells what the call costs. `spin` is a loop of about 10 us without any of our code, for comparison; `dead`
records on a log that never answers.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np

from rolloutlog.eventstore import EventPublisher, LogUnavailable, PublisherSettings
from rolloutlog.eventstore.log import Log, open_log

ROLLOUTS, EVENTS_EACH, TOKENS = 200, 20, 3_000


class Watch:
    """Times of one kind of call."""

    def __init__(self, name: str, pause_s: float) -> None:
        self._name, self._pause_s = name, pause_s
        self._wall: list[float] = []
        self._thread: list[float] = []

    def time(self, call: Callable[[], object]) -> None:
        wall, thread = time.perf_counter(), time.thread_time()
        call()
        self._thread.append(time.thread_time() - thread)
        self._wall.append(time.perf_counter() - wall)
        time.sleep(self._pause_s)

    def report(self) -> None:
        for name, seconds in (("wall", self._wall), ("thread", self._thread)):
            p50, p99 = np.percentile(np.array(seconds) * 1e6, (50, 99))
            print(f"{self._name:34} {name:7} p50 {p50:7.1f}  p99 {p99:7.1f}  us  ({len(seconds)} calls)")


def spin() -> int:
    return sum(range(700))


def random_tokens(count: int) -> list[int]:
    return [random.randrange(150_000) for _ in range(count)]


def measure(url: str, pause_s: float, label: str, *, dead: bool = False) -> None:
    spinning, spans, rewards = (Watch(f"{label}{name}", pause_s) for name in ("spin", "span", "reward"))
    answers = Watch(f"{label}call, lists of {TOKENS:,} tokens", pause_s)

    async def opener(url: str, create: bool) -> Log:
        log = await open_log(url, create=create)
        if dead:
            log.append = unavailable  # type: ignore[method-assign]
        return log

    async def unavailable(records: Sequence[object]) -> list[object]:
        raise LogUnavailable("no answer")

    EventPublisher.open(url, create=True).close()
    settings = PublisherSettings(memory_bytes_max=2**31, close_deadline_s=1.0 if dead else 60.0)
    events = EventPublisher.open(url, settings=settings, opener=opener)
    for _ in range(ROLLOUTS):
        with events.rollout("task") as rollout:
            for _ in range(EVENTS_EACH):
                spinning.time(spin)
                tool = rollout.tool("sql").__enter__()
                spans.time(lambda tool=tool: tool.__exit__(None, None, None))
                rewards.time(lambda rollout=rollout: rollout.reward(0.5))
    for _ in range(ROLLOUTS):
        prompt: list[int] = random_tokens(200)
        with events.rollout("task") as rollout:
            for _ in range(4):
                response = random_tokens(TOKENS // 4)
                logprobs = [-random.random() for _ in response]
                prompt = prompt[: TOKENS - len(response)]
                call = rollout.call().__enter__()

                def record(call=call, response=response, logprobs=logprobs, prompt=prompt) -> None:
                    call.record(prompt_ids=prompt, response_ids=response, logprobs=logprobs)
                    call.__exit__(None, None, None)

                answers.time(record)
                prompt = prompt + response
    try:
        events.close()
    except Exception as error:
        print(f"{label}close: {str(error)[:100]}")
    for watch in (spinning, spans, rewards, answers):
        watch.report()


if __name__ == "__main__":
    pause_s = 1 / float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    with tempfile.TemporaryDirectory() as folder:
        measure(f"sqlite:///{folder}/a.db", pause_s, "")
        measure(f"sqlite:///{folder}/b.db", pause_s, "dead: ", dead=True)
