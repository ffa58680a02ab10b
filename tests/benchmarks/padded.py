"""How long a padded batch of 256 x (2048 + 2048) tokens takes: `PYTHONPATH=tests python tests/benchmarks/padded.py
[rows tokens]`.

Side by side in one run, taking turns: `padded` from packed bytes; `copy`, numpy alone, the same arrays copied; `lists`,
Python lists of tokens padded one by one, as trainers do that read JSON, to numpy and, where torch is installed, to
tensors. Medians in milliseconds, their ratios, and the peak of memory over the arrays' size.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from support.batches import batch, sample

from rolloutlog.consumers.stream.padding import Padded
from rolloutlog.consumers.stream.step import Step

ROUNDS = 15


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
    ways: dict[str, Callable[[], object]] = {
        "padded": lambda: step.padded(tokens, tokens, 0),
        "copy": lambda: copied(whole),
        "lists": lambda: padded_lists(as_lists, tokens),
    }
    try:
        import torch
    except ImportError:
        print("torch is not installed: its part is left out")
    else:
        ways["tensors"] = lambda: padded_tensors(torch, as_lists, tokens)
        ways["padded to tensors"] = lambda: to_tensors(torch, step.padded(tokens, tokens, 0))
    took = timed(ways)
    for name, seconds in took.items():
        print(f"{name:17} {seconds * 1e3:8.2f} ms")
    print(f"padded / copy {took['padded'] / took['copy']:.2f}; lists / padded {took['lists'] / took['padded']:.0f}")
    if "tensors" in took:
        print(f"lists to tensors / padded to tensors {took['tensors'] / took['padded to tensors']:.0f}")
    print(f"peak / arrays {peak(step, tokens):.2f}")


def copied(whole: Padded) -> list[object]:
    return [getattr(whole, name).copy() for name in Padded.__slots__]


def padded_lists(rows: list[tuple[list[int], list[int], list[int], list[float]]], tokens: int) -> list[object]:
    prompts = np.array([[0] * (tokens - len(prompt)) + prompt for prompt, _, _, _ in rows], np.int32)
    prompt_mask = np.array([[0] * (tokens - len(prompt)) + [1] * len(prompt) for prompt, _, _, _ in rows], np.uint8)
    responses = np.array([response + [0] * (tokens - len(response)) for _, response, _, _ in rows], np.int32)
    masks = np.array([mask + [0] * (tokens - len(mask)) for _, _, mask, _ in rows], np.uint8)
    logprobs = np.array([each + [0.0] * (tokens - len(each)) for _, _, _, each in rows], np.float32)
    return [prompts, prompt_mask, responses, masks, masks.copy(), logprobs]


def padded_tensors(torch: Any, rows: list[tuple[list[int], list[int], list[int], list[float]]], tokens: int) -> object:
    """As trainers make them: a padded list a row, then one tensor of all."""
    return [
        torch.tensor([[0] * (tokens - len(prompt)) + prompt for prompt, _, _, _ in rows]),
        torch.tensor([[0] * (tokens - len(prompt)) + [1] * len(prompt) for prompt, _, _, _ in rows]),
        torch.tensor([response + [0] * (tokens - len(response)) for _, response, _, _ in rows]),
        torch.tensor([mask + [0] * (tokens - len(mask)) for _, _, mask, _ in rows]),
        torch.tensor([each + [0.0] * (tokens - len(each)) for _, _, _, each in rows]),
    ]


def to_tensors(torch: Any, padded: Padded) -> object:
    """The same types as the lists give: ids and masks int64."""
    ids = (padded.prompt_ids, padded.prompt_mask, padded.response_ids, padded.response_mask)
    return [*(torch.from_numpy(each).to(torch.int64) for each in ids), torch.from_numpy(padded.logprobs)]


def peak(step: Step, tokens: int) -> float:
    tracemalloc.start()
    padded = step.padded(tokens, tokens, 0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / sum(int(getattr(padded, name).nbytes) for name in Padded.__slots__)


def timed(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, work in ways.items():
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    return {name: median(each) for name, each in times.items()}


if __name__ == "__main__":
    main(*(map(int, sys.argv[1:]) if len(sys.argv) > 1 else (256, 2048)))
