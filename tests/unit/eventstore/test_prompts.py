"""Any calls in, the same prompts out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Span
from rolloutlog.eventstore.prompts import (
    CANDIDATES_MAX,
    SHARED_TOKENS_MIN,
    PromptRestore,
    PromptShare,
    Shared,
    common_prefix_bytes,
)

MAIN = "main.00112233445566aa"


def packed(tokens) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def span(sequence: int, shared: Shared, response: bytes, *, source: str = MAIN, span_id: str | None = None) -> Span:
    return Span(
        rollout_id="r", attempt=0, source=source, sequence=sequence, time_ns=0, span_id=span_id or f"s{sequence}",
        name="chat", kind="call", start_ns=0, end_ns=0, response_ids=response, **shared._asdict(),
    )  # fmt: skip


def through(calls: list[tuple[bytes, bytes]]) -> tuple[list[Span], list[bytes]]:
    """Events of the calls, and the prompts they give back."""
    share, restore, events = PromptShare(), PromptRestore(), []
    for sequence, (prompt, response) in enumerate(calls):
        events.append(span(sequence, share.share(prompt), response))
        share.remember(f"s{sequence}", prompt, response)
    for event in events:
        restore.add(event)
    return events, [restore.prompt(event) for event in reversed(events)][::-1]


# Few different tokens, and prompts made of parts of earlier calls: long common prefixes at every possible length.
parts = st.lists(st.integers(0, 1), max_size=90)


@st.composite
def conversations(draw):
    calls: list[tuple[list[int], list[int]]] = []
    for _ in range(draw(st.integers(1, 24))):
        prompt: list[int] = []
        if calls and draw(st.booleans()):
            base = draw(st.sampled_from(calls))
            whole = base[0] + base[1]
            prompt = whole[: draw(st.integers(0, len(whole)))]
        calls.append((prompt + draw(parts), draw(parts)))
    return [(packed(prompt), packed(response)) for prompt, response in calls]


@settings(max_examples=300, deadline=None)
@given(conversations())
def test_prompts_of_any_calls_come_back_the_same(calls):
    _, prompts = through(calls)
    assert prompts == [prompt for prompt, _ in calls]


def test_prompt_that_repeats_a_call_and_its_answer_stores_only_the_rest():
    events, _ = through([(packed(range(100)), packed([7, 8])), (packed([*range(100), 7, 8, 9]), b"")])
    assert (events[1].prompt_base, events[1].prompt_base_tokens, events[1].prompt_ids) == ("s0", 102, packed([9]))


@pytest.mark.parametrize(("tokens", "base"), [(SHARED_TOKENS_MIN - 1, None), (SHARED_TOKENS_MIN, "s0")])
def test_prompt_is_shared_from_64_tokens_on(tokens, base):
    events, _ = through([(packed(range(tokens)), b""), (packed([*range(tokens), 5]), b"")])
    assert events[1].prompt_base == base


def test_two_agents_taking_turns_each_share_with_their_own_last_call():
    a, b = list(range(100)), list(range(500, 600))
    calls = []
    for turn in range(6):
        calls += [(packed(a), packed([turn])), (packed(b), packed([turn]))]
        a, b = [*a, turn, 1], [*b, turn, 2]
    events, prompts = through(calls)
    assert [event.prompt_base for event in events] == [None, None, *(f"s{i}" for i in range(10))]
    assert prompts == [prompt for prompt, _ in calls]


def test_share_of_one_long_conversation_keeps_one_call():
    """Otherwise a thousand rollouts in one process hold every prompt sixteen times."""
    share, prompt = PromptShare(), list(range(100))
    for turn in range(40):
        share.remember(f"s{turn}", packed(prompt), packed([turn]))
        prompt = [*prompt, turn, 1]
    assert share.span_ids == {"s39"}


def test_share_looks_at_the_newest_calls_only():
    share = PromptShare()
    for i in range(CANDIDATES_MAX + 1):
        share.remember(f"s{i}", packed([i] * 100), b"")
    assert share.share(packed([0] * 100)).prompt_base is None
    assert share.share(packed([1] * 100)).prompt_base == "s1"


def test_share_uses_only_usable_bases():
    share = PromptShare()
    share.remember("s0", packed(range(100)), packed([1]))
    share.remember("s1", packed(range(90)), packed([2]))
    assert share.share(packed(range(120)), usable=lambda span_id: span_id == "s1")[:2] == ("s1", 90)


def test_restore_with_missing_base_is_refused_by_name():
    restore = PromptRestore()
    call = span(1, Shared("s9", 70, b""), b"")
    restore.add(call)
    with pytest.raises(InvalidEvent, match=r"expected an earlier call of source main.*, got 's9' at \$.prompt_base"):
        restore.prompt(call)


@pytest.mark.parametrize("base", ["s1", "s2"])
def test_restore_with_itself_or_a_later_call_as_base_is_refused(base):
    restore = PromptRestore()
    call = span(1, Shared(base, 1, b""), b"")
    restore.add(call)
    restore.add(span(2, Shared("s1", 1, b""), b""))
    with pytest.raises(InvalidEvent, match="expected an earlier call"):
        restore.prompt(call)


def test_restore_with_base_of_another_source_is_refused():
    restore = PromptRestore()
    restore.add(span(0, Shared(None, 0, packed(range(80))), b"", source="gateway.0011223344556677"))
    call = span(1, Shared("s0", 70, b""), b"")
    restore.add(call)
    with pytest.raises(InvalidEvent, match="expected an earlier call"):
        restore.prompt(call)


def test_restore_with_base_shorter_than_repeated_is_refused():
    restore = PromptRestore()
    restore.add(span(0, Shared(None, 0, packed(range(80))), packed([1])))
    call = span(1, Shared("s0", 82, b""), b"")
    restore.add(call)
    with pytest.raises(
        InvalidEvent, match=r"expected at most the 81 tokens of call s0, got 82 at \$.prompt_base_tokens"
    ):
        restore.prompt(call)


def test_restore_of_a_chain_of_5000_calls_does_not_recurse():
    share, restore, prompt = PromptShare(), PromptRestore(), list(range(100))
    for i in range(5_000):
        call = span(i, share.share(packed(prompt)), packed([1]))
        share.remember(call.span_id, packed(prompt), packed([1]))
        restore.add(call)
        prompt = [*range(100), i]
    assert restore.prompt(call) == packed([*range(100), 4_998])


@given(st.lists(st.integers(0, 3), max_size=200), st.lists(st.integers(0, 3), max_size=9), st.integers(0, 200))
def test_common_prefix_is_the_longest_from_64_tokens_on(tokens, tail, cut):
    left, right = tokens, tokens[:cut] + tail
    length = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    expected = length * 4 if length >= SHARED_TOKENS_MIN else 0
    assert common_prefix_bytes(packed(left), packed(right)) == expected
