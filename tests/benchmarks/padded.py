"""How long a padded batch of 256 x (2048 + 2048) tokens takes: `python tests/benchmarks/padded.py [rows tokens]`.

Three ways, side by side in one run: `padded` from packed bytes; `copy`, numpy alone, the same arrays copied; `lists`,
Python lists of tokens padded one by one, as trainers do that read JSON. Medians in milliseconds, and their ratios.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from support.batches import batch, sample

from rolloutlog.consumers.padding import Padded
from rolloutlog.consumers.step import Step

ROUNDS = 7


def main(rows: int, tokens: int) -> None:
    rng = np.random.default_rng(7)
    lengths = rng.integers(tokens // 2, tokens + 1, (rows, 2))
    samples = []
    for row, (prompt, response) in enumerate(lengths):
        samples.append(
            sample(
                f"r/0/{row}",
                prompt_ids=rng.integers(0, 150_000, prompt, "<i4").tobytes(),
                response_ids=rng.integers(0, 150_000, response, "<i4").tobytes(),
                response_mask=b"\x01" * int(response),
                logprobs=(-rng.random(response, "<f4")).tobytes(),
                reward_token_index=np.array([response - 1], "<i4").tobytes(),
            )
        )
    made = batch("g", samples)
    step = Step(0, (made,), made.samples, (0,) * rows, (0,), 3)
    whole = step.padded(tokens, tokens, 0)
    as_lists = [
        (np.frombuffer(each.prompt_ids, "<i4").tolist(), np.frombuffer(each.response_ids, "<i4").tolist(),
         list(each.response_mask), np.frombuffer(each.logprobs or b"", "<f4").tolist())
        for each in samples
    ]  # fmt: skip
    took = {
        "padded": timed(lambda: step.padded(tokens, tokens, 0)),
        "copy": timed(lambda: copied(whole)),
        "lists": timed(lambda: padded_lists(as_lists, tokens)),
    }
    for name, seconds in took.items():
        print(f"{name:7} {seconds * 1e3:8.2f} ms")
    print(f"padded / copy {took['padded'] / took['copy']:.2f}; lists / padded {took['lists'] / took['padded']:.0f}")


def copied(whole: Padded) -> list[object]:
    return [getattr(whole, name).copy() for name in Padded.__slots__]


def padded_lists(rows: list[tuple[list[int], list[int], list[int], list[float]]], tokens: int) -> list[object]:
    prompts = np.array([[0] * (tokens - len(prompt)) + prompt for prompt, _, _, _ in rows], np.int32)
    prompt_mask = np.array([[0] * (tokens - len(prompt)) + [1] * len(prompt) for prompt, _, _, _ in rows], np.uint8)
    responses = np.array([response + [0] * (tokens - len(response)) for _, response, _, _ in rows], np.int32)
    masks = np.array([mask + [0] * (tokens - len(mask)) for _, _, mask, _ in rows], np.uint8)
    logprobs = np.array([each + [0.0] * (tokens - len(each)) for _, _, _, each in rows], np.float32)
    return [prompts, prompt_mask, responses, masks, masks.copy(), logprobs]


def timed(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


if __name__ == "__main__":
    main(*(map(int, sys.argv[1:]) if len(sys.argv) > 1 else (256, 2048)))
