"""What is refused, and that the text names field, expected and got."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schemas.make_golden import EVENTS

from rolloutlog.eventstore.checks import check_agreement, check_event
from rolloutlog.eventstore.codec import decode_event, encode_event, header_of
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import MissingEvents, PolicyVersionRun, Target, TokenArray

START, SPAN, REWARD, COMPLETED, SOURCE_ENDED, HEARTBEAT, RUN_ENDED, EXPIRED, GROUP_CLOSED = EVENTS
NAN = np.array([0.0, np.nan, 0.0], "<f4").tobytes()
PROBABILITIES = np.array([0.0, 0.5, 1.0], "<f4").tobytes()
NEGATIVE = np.array([1, -5], "<i4").tobytes()


@pytest.mark.parametrize(
    ("event", "changes", "field", "text"),
    [
        (SPAN, {"attempt": -1}, "attempt", "expected an integer from 0 to 2147483647, got -1 at $.attempt"),
        (SPAN, {"attempt": True}, "attempt", "expected an integer from 0 to 2147483647, got True at $.attempt"),
        (SPAN, {"sequence": 1.0}, "sequence", "got 1.0 at $.sequence"),
        (SPAN, {"source": "main"}, "source", "expected `name.16 hex digits`, got 'main' at $.source"),
        (SPAN, {"rollout_id": ""}, "rollout_id", "expected text that is not empty, got '' at $.rollout_id"),
        (SPAN, {"rollout_id": "x" * 513}, "rollout_id", "expected at most 512 characters, got 513 characters"),
        (SPAN, {"time_ns": 2**63}, "time_ns", "got 9223372036854775808 at $.time_ns"),
        (SPAN, {"span_id": None}, "span_id", "expected text, got None at $.span_id"),
        (SPAN, {"name": "\ud800"}, "name", "expected text that UTF-8 can hold, got '\\ud800' at $.name"),
        (SPAN, {"kind": "Call"}, "kind", "expected one of agent, operation, call, tool, evaluator, other, got 'Call'"),
        (SPAN, {"end_ns": 5}, "end_ns", "expected an end not before the start 1700000000123456789, got 5 at $.end_ns"),
        (SPAN, {"status": "OK"}, "status", "expected one of ok, error, got 'OK' at $.status"),
        (SPAN, {"links": ("",)}, "links", "expected text that is not empty, got '' at $.links"),
        (SPAN, {"links": "s-1"}, "links", "expected a list of texts, got 's-1' at $.links"),
        (
            SPAN,
            {"logprobs": b"\0" * 8},
            "logprobs",
            "expected 3 log-probs, one per response token, got 2 at $.logprobs",
        ),
        (SPAN, {"logprobs": NAN}, "logprobs", "expected finite float32, got nan at $.logprobs[1]"),
        (SPAN, {"logprobs": PROBABILITIES}, "logprobs", "got 0.5 at $.logprobs[1]; were probabilities passed?"),
        (SPAN, {"logprobs": b"\0"}, "logprobs", "expected 4 bytes a log-prob, got 1 bytes at $.logprobs"),
        (
            SPAN,
            {"prompt_ids": NEGATIVE},
            "prompt_ids",
            "expected token ids from 0 to 2**31 - 1, got -5 at $.prompt_ids[1]",
        ),
        (SPAN, {"prompt_ids": b"\0\0"}, "prompt_ids", "expected 4 bytes a token, got 2 bytes at $.prompt_ids"),
        (SPAN, {"prompt_ids": [1]}, "prompt_ids", "expected bytes, got list at $.prompt_ids"),
        (SPAN, {"kind": "tool"}, "prompt_ids", "expected none in a span of kind tool, got some at $.prompt_ids"),
        (SPAN, {"prompt_base": None}, "prompt_base_tokens", "expected prompt_base and a count, or neither, got 70"),
        (SPAN, {"prompt_base_tokens": 0}, "prompt_base_tokens", "expected prompt_base and a count, or neither, got 0"),
        (
            SPAN,
            {"policy_version_runs": (PolicyVersionRun(1, 2),)},
            "policy_version_runs",
            "expected runs of 3 response tokens in all, got 2 at $.policy_version_runs",
        ),
        (
            SPAN,
            {"policy_version_runs": (PolicyVersionRun(-1, 3),)},
            "policy_version_runs",
            "got -1 at $.policy_version_runs",
        ),
        (
            SPAN,
            {"arrays": (TokenArray("x", "<f4", (2,), bytes(8)),)},
            "arrays.x",
            "expected a shape whose first axis is 3 response tokens, got (2,) at $.arrays.x",
        ),
        (
            SPAN,
            {"arrays": (TokenArray("x", "<f4", (3,), bytes(8)),)},
            "arrays.x",
            "expected 12 bytes, got 8 at $.arrays.x",
        ),
        (
            SPAN,
            {"arrays": (TokenArray("x", "|O", (3,), b""),)},
            "arrays.x",
            "expected a little-endian dtype of numbers",
        ),
        (
            SPAN,
            {"arrays": (TokenArray("x", "<f1", (3,), b""),)},
            "arrays.x",
            "expected a dtype that numpy knows, got '<f1'",
        ),
        (SPAN, {"arrays": (*SPAN.arrays, *SPAN.arrays)}, "arrays", "expected each array once"),
        (SPAN, {"trainable": 1}, "trainable", "expected true or false, got 1 at $.trainable"),
        (START, {"attempt": 3}, "attempt", "expected an attempt below attempts_max 3, got 3 at $.attempt"),
        (START, {"group_size": 0}, "group_size", "expected an integer from 1 to 2147483647, got 0 at $.group_size"),
        (START, {"split": "dev"}, "split", "expected one of train, val, test, got 'dev' at $.split"),
        (START, {"metadata": b"[1]"}, "metadata", "expected a JSON object, got list at $.metadata"),
        (START, {"metadata": b"{"}, "metadata", "expected a JSON object in UTF-8, got b'{' at $.metadata"),
        (REWARD, {"value": float("nan")}, "value", "got nan at $.value"),
        (REWARD, {"value": True}, "value", "got True at $.value"),
        (REWARD, {"value": "0.5"}, "value", "got '0.5' at $.value"),
        (REWARD, {"scope": "rollout"}, "target", "expected no target on a reward of scope 'rollout'"),
        (REWARD, {"target": Target("span", "x")}, "target", "expected exactly one of span_id, response_id, operation"),
        (REWARD, {"supersedes": ""}, "supersedes", "expected text that is not empty, got '' at $.supersedes"),
        (COMPLETED, {"status": "done"}, "status", "expected one of completed, failed, got 'done' at $.status"),
        (COMPLETED, {"error": "\udfff"}, "error", "expected text that UTF-8 can hold, got '\\udfff' at $.error"),
        (COMPLETED, {"awaited_rewards": "format"}, "awaited_rewards", "expected a list of texts, got 'format'"),
        (EXPIRED, {"reason": "late"}, "reason", "expected one of idle, age, grace, retry, got 'late' at $.reason"),
        (EXPIRED, {"as_of": -1}, "as_of", "got -1 at $.as_of"),
        (
            EXPIRED,
            {"missing_events": (MissingEvents("main.00112233445566aa", 5, 3),)},
            "missing_events",
            "expected an integer from 5 to 9223372036854775807, got 3 at $.missing_events",
        ),
        (RUN_ENDED, {"rollout_id": "r-7"}, "rollout_id", "expected no rollout and attempt 0, got 'r-7', 0"),
        (GROUP_CLOSED, {"group_id": ""}, "group_id", "expected text that is not empty, got '' at $.group_id"),
        (
            GROUP_CLOSED,
            {"reason": "done"},
            "reason",
            "expected one of complete, requested, age, replay_bytes, got 'done'",
        ),
    ],
)
def test_event_with_bad_field_is_refused_naming_field_expected_and_got(event, changes, field, text):
    with pytest.raises(InvalidEvent) as caught:
        check_event(replace(event, **changes))
    assert text in str(caught.value)
    assert caught.value.field == f"$.{field}"


def test_refusal_names_event_rollout_attempt_and_place():
    with pytest.raises(InvalidEvent) as caught:
        check_event(replace(REWARD, value=float("inf")), where="offset 3:88213")
    assert str(caught.value).startswith("RewardRecorded refused: expected a finite number or null, got inf at $.value")
    assert str(caught.value).endswith("(rollout r-7, attempt 1, offset 3:88213)")


@pytest.mark.parametrize("field", ["rollout_id", "attempt", "source", "sequence"])
def test_header_and_body_that_disagree_are_refused(field):
    other = {"rollout_id": "r-8", "attempt": 2, "source": "main.0000000000000000", "sequence": 99}[field]
    with pytest.raises(InvalidEvent, match="expected header and body to agree") as caught:
        check_agreement(header_of(SPAN)._replace(**{field: other}), SPAN, b"g-1")
    assert (caught.value.reason, caught.value.field) == ("header_disagrees", f"$.{field}")


@pytest.mark.parametrize("event", [START, GROUP_CLOSED], ids=lambda e: e.record)
def test_key_that_is_not_the_group_is_refused(event):
    with pytest.raises(InvalidEvent, match="expected the key to be the group, got key b'g-2' and 'g-1'"):
        check_agreement(header_of(event), event, b"g-2")


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()), st.binary(max_size=12),
    st.lists(st.text(), max_size=2).map(tuple), st.dictionaries(st.text(), st.text(), max_size=1),
)  # fmt: skip


@settings(max_examples=400)
@given(st.sampled_from(EVENTS), st.data())
def test_event_with_any_fields_that_passes_can_be_encoded_and_comes_back(event, data):
    names = [
        name for name in event.__dict__ if name not in ("target", "policy_version_runs", "arrays", "missing_events")
    ]
    changes = data.draw(st.dictionaries(st.sampled_from(names), anything, max_size=2))
    changed = replace(event, **changes)
    try:
        check_event(changed)
    except InvalidEvent:
        return
    decoded = decode_event(changed.record, encode_event(changed))
    check_event(decoded)
    assert decoded == changed
