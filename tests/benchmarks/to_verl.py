"""How long a step of 256 rows of 2048 + 2048 tokens takes to become what verl trains on: in the environment that
`make test-verl` makes, `PYTHONPATH=tests python tests/benchmarks/to_verl.py [groups rows tokens]`.

`padded`, our arrays; `torch`, those as tensors; `verl`, a DataProto; `queue`, all groups as verl's fully-async trainer
pulls them, pickled; `assembled`, those unpickled and joined by verl. Medians in milliseconds, and the bytes pickled.
"""

import contextlib
import io
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from ray import cloudpickle
from support.batches import batch, sample
from verl.experimental.fully_async_policy.detach_utils import assemble_batch_from_rollout_samples

from rolloutlog.consumers.adapters.torch import to_torch
from rolloutlog.consumers.adapters.verl import to_verl
from rolloutlog.consumers.adapters.verl_queue import to_rollout_samples
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.events import PolicyVersionRun
from rolloutlog.eventstore.extra_info import encode_extra_info

ROUNDS = 7


def main(groups: int, rows: int, tokens: int) -> None:
    step = made_step(groups, rows, tokens)
    shape = {"prompt_tokens": tokens, "response_tokens": tokens, "pad_id": 0}
    pickled = [cloudpickle.dumps(each) for each in to_rollout_samples(step, **shape)]

    def assembled() -> object:
        with contextlib.redirect_stdout(io.StringIO()):
            return assemble_batch_from_rollout_samples([cloudpickle.loads(each) for each in pickled], None, None)

    ways: dict[str, Callable[[], object]] = {
        "padded": lambda: step.padded(tokens, tokens, 0),
        "torch": lambda: to_torch(step.padded(tokens, tokens, 0)),
        "verl": lambda: to_verl(step, **shape),
        "queue": lambda: [cloudpickle.dumps(each) for each in to_rollout_samples(step, **shape)],
        "assembled": assembled,
    }
    for name, work in ways.items():
        print(f"{name:10} {timed(work) * 1e3:8.1f} ms")
    print(f"pickled    {sum(map(len, pickled)) / 1e6:8.1f} MB")


def made_step(groups: int, rows: int, tokens: int) -> Step:
    rng = np.random.default_rng(7)
    batches, samples, indices = [], [], []
    for group in range(groups):
        made = []
        for row in range(rows):
            prompt, response = rng.integers(tokens // 2, tokens + 1, 2)
            made.append(
                sample(
                    f"g{group}/0/{row}",
                    prompt_ids=rng.integers(0, 150_000, prompt, "<i4").tobytes(),
                    response_ids=rng.integers(0, 150_000, response, "<i4").tobytes(),
                    response_mask=b"\x01" * int(response),
                    logprobs=(-rng.random(response, "<f4")).tobytes(),
                    policy_version_runs=(PolicyVersionRun(3, int(response)),),
                    reward_token_index=np.array([response - 1], "<i4").tobytes(),
                    extra_info=encode_extra_info({"acc": 1.0} if row % 2 else {"acc": 0.0, "pred": "42"}),
                )
            )
        batches.append(batch(f"g{group}", made))
        samples += made
        indices += [group] * rows
    return Step(0, tuple(batches), tuple(samples), tuple(indices), (0,) * groups, 3)


def timed(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


if __name__ == "__main__":
    main(*(map(int, sys.argv[1:]) if len(sys.argv) > 1 else (32, 8, 2048)))
