"""Which calls become one row, by rule, and that a merge is undone without loss."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.building import call, completed, floats, ids, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers import closing
from rolloutlog.consumers.batches import decode_part, encode_parts
from rolloutlog.consumers.samples import Sample, split_calls
from rolloutlog.eventstore.events import Span, Target, TokenArray


def folded(*calls: Span, merge: str = "trajectory", **options: Any) -> Partition:
    partition = Partition(merge=merge, **options)
    partition.add(started(), *calls, completed(len(calls) + 1))
    return partition


def rows(*calls: Span) -> list[tuple[str, ...]]:
    """Span ids of each row. Calls are numbered and started in the order given."""
    numbered = [replace(each, sequence=at, start_ns=at, end_ns=at) for at, each in enumerate(calls, 1)]
    return [each.span_ids for each in folded(*numbered).batch.samples]


def turn(span_id: str, prompt: Sequence[int], response: Sequence[int], **fields: Any) -> Span:
    return call(span_id, prompt_ids=ids(*prompt), response_ids=ids(*response), **fields)


def test_call_whose_prompt_begins_with_the_line_goes_on_with_it():
    assert rows(turn("a", [1], [2]), turn("b", [1, 2, 3], [4]), turn("c", [1, 2, 3, 4, 5], [6])) == [("a", "b", "c")]


def test_call_whose_prompt_changes_what_was_said_begins_a_row():
    assert rows(turn("a", [1], [2]), turn("b", [1, 9, 3], [4])) == [("a",), ("b",)]


def test_observation_of_no_tokens_goes_on_with_the_line():
    (row,) = folded(turn("a", [1], [2]), turn("b", [1, 2], [3], sequence=2)).batch.samples
    assert (row.span_ids, row.response_ids, row.response_mask) == (("a", "b"), ids(2, 3), b"\x01\x01")
    assert row.call_ranges == ((0, 1), (1, 2))


def test_equal_prompts_are_two_rows():
    assert rows(turn("a", [1], [2]), turn("b", [1], [3])) == [("a",), ("b",)]


def test_equal_prompts_and_responses_are_two_rows_and_the_one_that_grew_last_goes_on():
    assert rows(turn("a", [1], [2]), turn("b", [1], [2]), turn("c", [1, 2, 3], [4])) == [("a",), ("b", "c")]


def test_shorter_prompt_begins_a_row():
    assert rows(turn("a", [1, 2], [3]), turn("b", [1], [2])) == [("a",), ("b",)]


def test_shorter_prompt_goes_on_with_another_line_that_it_begins_with():
    calls = [turn("x", [7], [8]), turn("a", [1, 2], [3]), turn("b", [1, 2, 3, 4, 5], [6]), turn("y", [7, 8, 9], [9])]
    assert rows(*calls) == [("x", "y"), ("a", "b")]


def test_longest_of_several_lines_is_gone_on_with():
    calls = [turn("a", [1], [2]), turn("b", [1, 2, 3], [4]), turn("c", [1], [2]), turn("d", [1, 2, 3, 4, 5], [6])]
    assert rows(*calls) == [("a", "b", "d"), ("c",)]


def test_branch_from_an_earlier_turn_is_a_row_of_its_own():
    calls = [
        turn("a", [1], [2]),
        turn("b", [1, 2, 3], [4]),
        turn("retry", [1, 2, 5], [6]),
        turn("c", [1, 2, 3, 4], [7]),
    ]
    assert rows(*calls) == [("a", "b", "c"), ("retry",)]


def test_interleaved_sub_agents_go_on_each_with_its_own_line():
    calls = [
        turn("p1", [1], [2]), turn("q1", [1, 7], [8]), turn("p2", [1, 2, 3], [4]),
        turn("q2", [1, 7, 8, 9], [9]), turn("p3", [1, 2, 3, 4, 5], [6]), turn("q3", [1, 7, 8, 9, 9], [7]),
    ]  # fmt: skip
    assert rows(*calls) == [("p1", "p2", "p3"), ("q1", "q2", "q3")]


def test_call_with_an_empty_response_has_no_place_in_a_row():
    calls = [turn("a", [1], [2]), turn("empty", [1, 2, 3], []), turn("b", [1, 2, 3], [4])]
    assert rows(*calls) == [("a", "b")]


def test_call_that_is_not_selected_is_observed_like_a_tool():
    calls = [
        turn("a", [1], [2]), turn("other", [1, 2], [3], trainable=False, sequence=2, start_ns=2, end_ns=2),
        turn("b", [1, 2, 3], [4], sequence=3, start_ns=3, end_ns=3),
    ]  # fmt: skip
    (row,) = folded(*calls).batch.samples
    assert (row.span_ids, row.response_ids, row.response_mask) == (("a", "b"), ids(2, 3, 4), b"\x01\x00\x01")


def test_lines_are_found_in_turn_order_whatever_the_order_in_the_log():
    late, early = turn("b", [1, 2, 3], [4], start_ns=9, end_ns=9), turn("a", [1], [2], sequence=2)
    assert [each.span_ids for each in folded(late, early).batch.samples] == [("a", "b")]


def test_call_without_log_probs_does_not_join_calls_that_have_them():
    calls = [turn("a", [1], [2], logprobs=floats(-1)), turn("b", [1, 2], [3]), turn("c", [1, 2, 3], [4])]
    assert rows(*calls) == [("a",), ("b", "c")]


def test_call_goes_on_with_a_shorter_line_where_the_longer_one_is_unlike_it():
    with_logprobs = {"logprobs": floats(-1)}
    calls = [turn("a", [1], [2], **with_logprobs), turn("b", [1, 2], [3]), turn("c", [1, 2, 3], [4], **with_logprobs)]
    assert rows(*calls) == [("a", "c"), ("b",)]


@pytest.mark.parametrize(
    "other", [(), (TokenArray("n", "<i4", (1,), ids(7)),), (TokenArray("n", "<f4", (1,), floats(1)),),
              (TokenArray("m", "<i4", (1, 2), ids(7, 8)),)],
    ids=["none", "shape", "dtype", "name"],
)  # fmt: skip
def test_call_with_unlike_arrays_begins_a_row(other: tuple[TokenArray, ...]):
    array = TokenArray("n", "<i4", (1, 2), ids(7, 8))
    assert rows(turn("a", [1], [2], arrays=(array,)), turn("b", [1, 2], [3], arrays=other)) == [("a",), ("b",)]


def test_line_that_would_become_too_large_ends_and_another_begins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closing, "LINE_BYTES_MAX", 4 + 3 * 9 + 2 * (4 + 40))
    calls = [turn("a", [1], [2]), turn("b", [1, 2, 3], [4]), turn("c", [1, 2, 3, 4], [5])]
    assert rows(*calls) == [("a", "b"), ("c",)]


@pytest.mark.parametrize(
    ("room", "expected"), [(2 * 420, [("a", "b")]), (2 * 420 - 1, [("a",), ("b",)])], ids=["enough", "a byte less"]
)
def test_names_of_rewards_count_for_how_large_a_line_is(
    monkeypatch: pytest.MonkeyPatch, room: int, expected: list[tuple[str, ...]]
):
    """Each call's own row has room for its rewards: that they do not fit into one costs no rollout."""
    monkeypatch.setattr(closing, "LINE_BYTES_MAX", 4 + 3 * 9 + 2 * (4 + 40) + room)
    partition = Partition(merge="trajectory")
    rewards = [reward(at, name="n" * 100, target=Target("span_id", "b")) for at in (3, 4)]
    partition.add(started(), turn("a", [1], [2]), turn("b", [1, 2, 3], [4], sequence=2), *rewards, completed(5))
    assert [each.span_ids for each in partition.batch.samples] == expected


def test_rollout_with_lines_above_the_limit_is_incomplete(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closing, "ROLLOUT_BYTES_MAX", 50)
    result = folded(turn("a", [1], [2]), turn("b", [9], [2], sequence=2)).result()
    assert (result.status, result.reason) == ("incomplete", "lines of conversation of 114 bytes, at most 50")


def test_call_with_a_base_that_is_missing_is_refused_and_others_are_merged():
    calls = [turn("a", [1], [2]), turn("x", [5], [6], prompt_base="no", prompt_base_tokens=1, sequence=2),
             turn("b", [1, 2], [3], sequence=3)]  # fmt: skip
    partition = folded(*calls, on_incomplete="keep")
    assert [each.span_ids for each in partition.batch.samples] == [("a", "b")]
    assert [each.reason for each in partition.letters] == ["prompt_base"]


def test_base_that_is_too_short_is_refused():
    calls = [turn("a", [1], [2]), turn("x", [5], [6], prompt_base="a", prompt_base_tokens=3, sequence=2)]
    assert [each.reason for each in folded(*calls).letters] == ["prompt_base_tokens"]


@pytest.mark.parametrize("others", [0, 12], ids=["alone", "many others between"])
def test_prompts_that_are_stored_whole_are_merged_as_those_with_a_base(others: int):
    between = [turn(f"x{number}", [9, number], [number]) for number in range(others)]
    assert rows(turn("a", [1, 2], [3]), *between, turn("b", [1, 2, 3, 4], [5]))[0] == ("a", "b")


# Undone without loss


def conversation(seed: int) -> list[Span]:
    """Random calls of several agents that take turns, go on, branch, repeat and start anew, over few tokens."""
    rng = random.Random(seed)
    calls: list[Span] = []
    full: list[tuple[list[int], list[int]]] = []
    for number in range(rng.randint(1, 12)):
        prompt = [rng.randint(0, 2) for _ in range(rng.randint(0, 3))]
        if full and rng.random() < 0.8:
            before, answer = rng.choice(full)
            repeated = (before + answer)[: rng.choice([len(before), len(before) + len(answer), rng.randint(0, 9)])]
            prompt = repeated + prompt
        response = [rng.randint(0, 2) for _ in range(rng.randint(0, 3))]
        stored: dict[str, Any] = {"prompt_ids": ids(*prompt)}
        if full and rng.random() < 0.7:
            base = rng.randrange(len(full))
            tokens = full[base][0] + full[base][1]
            same = next((at for at, pair in enumerate(zip(tokens, prompt, strict=False)) if pair[0] != pair[1]),
                        min(len(tokens), len(prompt)))  # fmt: skip
            if same:
                stored = {"prompt_base": f"c{base}", "prompt_base_tokens": same, "prompt_ids": ids(*prompt[same:])}
        full.append((prompt, response))
        start_ns = rng.randint(1, 6)
        calls.append(
            call(
                f"c{number}",
                number + 1,
                response_ids=ids(*response),
                start_ns=start_ns,
                end_ns=start_ns,
                logprobs=floats(*(-rng.random() for _ in response)) if rng.random() < 0.8 else None,
                arrays=(TokenArray("n", "<i2", (len(response), 2), rng.randbytes(4 * len(response))),)
                if rng.random() < 0.8
                else (),
                trainable=rng.random() < 0.9,
                **stored,
            )
        )
    return calls


def expected_lines(singles: Sequence[Sample]) -> list[list[str]]:
    """The rule itself, on full prompts: the longest line of like calls that the prompt begins with."""
    lines: list[tuple[bytes, list[Sample]]] = []
    for each in singles:
        fits = [
            line for line in lines
            if each.prompt_ids.startswith(line[0]) and (each.logprobs is None) == (line[1][0].logprobs is None)
            and len(each.arrays) == len(line[1][0].arrays)
        ]  # fmt: skip
        before = max(reversed(fits), key=lambda line: len(line[0]), default=(b"", []))
        if before[1]:
            lines.remove(before)
        lines.append((each.prompt_ids + each.response_ids, [*before[1], each]))
    order = {each.span_ids[0]: at for at, each in enumerate(singles)}
    return sorted(([each.span_ids[0] for each in line] for _, line in lines), key=lambda line: order[line[0]])


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_random_conversation_is_merged_by_the_rule_and_undone_without_loss(seed: int):
    calls = conversation(seed)
    singles = folded(*calls, merge="none").batch.samples
    (value,) = encode_parts(folded(*calls).batch)
    merged = decode_part(value).samples
    assert [list(each.span_ids) for each in merged] == expected_lines(singles)
    parts = {part.span_id: part for row in merged for part in split_calls(row)}
    assert len(parts) == len(singles)
    for single in singles:
        part = parts[single.span_ids[0]]
        assert (part.prompt_ids, part.response_ids) == (single.prompt_ids, single.response_ids)
        assert (part.logprobs, part.arrays) == (single.logprobs, single.arrays)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_row_of_a_random_conversation_has_ones_exactly_where_its_calls_wrote(seed: int):
    for row in folded(*conversation(seed)).batch.samples:
        mask = np.zeros(len(row.response_mask), np.uint8)
        for start, end in row.call_ranges:
            mask[start:end] += 1
        assert mask.tobytes() == row.response_mask
        assert len(row.response_ids) == 4 * len(mask)


@pytest.mark.slow
def test_cost_of_merging_grows_with_new_tokens_not_with_prompts():
    def took(turns: int) -> float:
        """One line of 64,000 tokens in so many calls."""
        new = 64_000 // turns // 2
        calls = [call("c0", 1, prompt_ids=ids(*range(new)), response_ids=ids(*range(new)))]
        for number in range(1, turns):
            base = {"prompt_base": f"c{number - 1}", "prompt_base_tokens": 2 * new * number}
            calls.append(
                call(f"c{number}", number + 1, prompt_ids=ids(*range(new)), response_ids=ids(*range(new)), **base)
            )
        partition = Partition(merge="trajectory")
        partition.add(started(), *calls)
        began = time.process_time()
        partition.add(completed(turns + 1))
        assert len(partition.batch.samples[0].span_ids) == turns
        return time.process_time() - began

    assert min(took(1_000) for _ in range(3)) < 20 * min(took(100) for _ in range(3))
