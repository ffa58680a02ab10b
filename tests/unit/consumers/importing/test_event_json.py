"""Events as JSON lines and back: every kind, and what no event is."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.building import MAIN, call, completed, floats, group_closed, ids, record, reward, started

from rolloutlog.consumers.importing.contents import event_entry
from rolloutlog.consumers.importing.event_json import header_for, make_event, parse_headers, record_line
from rolloutlog.consumers.importing.jsonl import parse_line
from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.codec import HEADER, decode_event, encode_event, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    EXPIRY_REASONS,
    SPAN_KINDS,
    Event,
    GroupClosed,
    MissingEvents,
    PolicyVersionRun,
    RewardRecorded,
    RolloutCompleted,
    RolloutExpired,
    RolloutHeartbeat,
    RolloutStarted,
    RunEnded,
    SourceEnded,
    Span,
    Target,
    TokenArray,
)
from rolloutlog.eventstore.log import EVENTS, Record


def line(stored: Record) -> dict[str, Any]:
    return json.loads(record_line(stored))


def back(stored: Record) -> Event:
    """The event of the line that is written of a record."""
    parsed = parse_line(record_line(stored).encode())
    assert parsed.fields is not None
    return make_event(parsed.kind, parsed.fields)


def refusal(**given: Any) -> str:
    try:
        parsed = parse_line(json.dumps(given).encode())
        make_event(parsed.kind, parsed.fields or {})
    except InvalidEvent as error:
        return str(error)
    pytest.fail("it was taken")


# Every kind of event

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = texts.filter(bool)
sources = st.builds("{}.{:016x}".format, st.sampled_from(["main", "judge-1"]), st.integers(0, 2**64 - 1))
int64 = st.integers(0, 2**63 - 1)
int31 = st.integers(0, 2**31 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_texts = st.builds(
    lambda value, compact, plain: json.dumps(
        value, ensure_ascii=plain, separators=(",", ":") if compact else None
    ).encode(),
    json_values,
    st.booleans(),
    st.booleans(),
)
any_bytes = st.one_of(st.just(b""), json_texts, st.binary(max_size=20))
objects = st.just(b"") | st.dictionaries(texts, json_values, max_size=3).map(lambda value: json.dumps(value).encode())
envelope = {
    "rollout_id": names,
    "attempt": st.just(0),
    "source": sources,
    "sequence": int64,
    "time_ns": int64,
}
without_rollout = {**envelope, "rollout_id": st.just("")}


@st.composite
def spans(draw: Any) -> Span:
    kind = draw(st.sampled_from(SPAN_KINDS))
    start_ns, end_ns = sorted((draw(int64), draw(int64)))
    tokens: dict[str, Any] = {}
    if kind == "call":
        count = draw(st.integers(0, 4))
        logprobs = st.floats(max_value=0, allow_nan=False, allow_infinity=False, width=32)
        array = np.array(draw(st.lists(st.floats(width=32), min_size=count * 2, max_size=count * 2)), "<f4")
        shared = draw(st.booleans())
        tokens = {
            "model": draw(st.none() | texts),
            "response_id": draw(st.none() | texts),
            "choice_index": draw(int31),
            "prompt_base": draw(names) if shared else None,
            "prompt_base_tokens": draw(st.integers(1, 2**31 - 1)) if shared else 0,
            "prompt_ids": draw(st.none() | st.lists(int31, max_size=4).map(lambda each: ids(*each))),
            "response_ids": ids(*draw(st.lists(int31, min_size=count, max_size=count))),
            "logprobs": draw(
                st.none() | st.lists(logprobs, min_size=count, max_size=count).map(lambda each: floats(*each))
            ),
            "policy_version_runs": (PolicyVersionRun(draw(st.none() | int64), count),) if count else (),
            "finish_reason": draw(st.none() | texts),
            "messages": draw(st.none() | any_bytes),
            "arrays": (TokenArray("experts", "<f4", (count, 2), array.tobytes()),) if draw(st.booleans()) else (),
            "trainable": draw(st.booleans()),
        }
    return Span(
        **{name: draw(each) for name, each in envelope.items()},
        span_id=draw(names.map(lambda each: each.replace("/", "-"))),
        parent_id=draw(st.none() | names),
        name=draw(names),
        kind=kind,
        start_ns=start_ns,
        end_ns=end_ns,
        status=draw(st.sampled_from(["ok", "error"])),
        attributes=draw(any_bytes),
        links=tuple(draw(st.lists(names, max_size=2))),
        **tokens,
    )


@st.composite
def rewards(draw: Any) -> RewardRecorded:
    target = draw(st.none() | st.builds(Target, st.sampled_from(["span_id", "response_id", "operation"]), texts))
    return RewardRecorded(
        **{name: draw(each) for name, each in envelope.items()},
        reward_id=draw(st.none() | names),
        name=draw(names),
        value=draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        scope="step" if target is not None else draw(st.sampled_from(["step", "rollout"])),
        target=target,
        parent_id=draw(st.none() | names),
        after_call=draw(st.none() | texts),
        supersedes=draw(st.none() | names),
        scorer=draw(st.none() | texts),
        scorer_version=draw(st.none() | texts),
        extra_info=draw(any_bytes),
    )


gaps = st.builds(
    lambda source, ends: MissingEvents(source, *sorted(ends)), sources, st.lists(int64, min_size=2, max_size=2)
)
some_names = st.lists(names, max_size=2).map(tuple)
events = st.one_of(
    st.builds(
        RolloutStarted,
        **envelope,
        run_id=texts,
        task_id=names,
        group_id=names,
        group_size=st.none() | st.integers(1, 2**31 - 1),
        split=st.sampled_from(["train", "val", "test"]),
        attempts_max=st.integers(1, 2**31 - 1),
        policy_version=st.none() | int64,
        metadata=objects,
    ),
    spans(),
    rewards(),
    st.builds(
        RolloutCompleted,
        **envelope,
        status=st.sampled_from(["completed", "failed"]),
        error=st.none() | texts,
        awaited_names=some_names,
        awaited_rewards=some_names,
    ),
    st.builds(SourceEnded, **envelope),
    st.builds(RolloutHeartbeat, **envelope),
    st.builds(RunEnded, **without_rollout, run_id=texts),
    st.builds(
        RolloutExpired,
        **envelope,
        reason=st.sampled_from(EXPIRY_REASONS),
        as_of=int64,
        missing_events=st.lists(gaps, max_size=2).map(tuple),
        missing_names=some_names,
        missing_rewards=some_names,
    ),
    st.builds(
        GroupClosed,
        **without_rollout,
        group_id=names,
        reason=st.sampled_from(["age", "replay_bytes"]),
        as_of=int64,
    ),
)


@settings(max_examples=400, deadline=None)
@given(events, st.booleans())
def test_event_of_any_kind_comes_back_with_the_same_bytes(event: Event, resend: bool):
    check_event(event)
    key = event.group_id if isinstance(event, RolloutStarted | GroupClosed) else "g"
    stored = record(event, 7, key=key, resend=resend)
    text = record_line(stored)
    assert "\n" not in text
    parsed = parse_line(text.encode())
    assert parsed.fields is not None
    made = make_event(parsed.kind, parsed.fields)
    assert (made, encode_event(made)) == (event, stored.value)
    assert event_entry(made, key.encode(), header_for(made, parsed.log["flags"])).headers == stored.headers


# Values


def test_line_has_every_field_by_its_name_and_where_the_record_stood():
    assert line(record(completed(3), 88, key="g", log_time_ns=5)) == {
        "event": "RolloutCompleted",
        "rollout_id": "r",
        "attempt": 0,
        "source": MAIN,
        "sequence": 3,
        "time_ns": 0,
        "status": "completed",
        "error": None,
        "awaited_names": [],
        "awaited_rewards": [],
        "log": {"partition": 0, "offset": 88, "time_ns": 5, "key": "g", "flags": "-"},
    }


def test_line_of_a_call_has_token_ids_as_integers_and_logprobs_as_numbers():
    found = line(record(call(prompt_ids=ids(1, 2), response_ids=ids(3), logprobs=floats(-0.5)), 0))
    assert (found["prompt_ids"], found["response_ids"], found["logprobs"]) == ([1, 2], [3], [-0.5])


def test_logprob_of_any_float32_comes_back_as_it_was():
    values = np.array([-0.1, -1e-45, -3.4028235e38, -0.0, -1.17549435e-38], "<f4").tobytes()
    made = back(record(call(response_ids=ids(1, 2, 3, 4, 5), logprobs=values), 0))
    assert isinstance(made, Span)
    assert made.logprobs == values


@pytest.mark.parametrize(
    ("packed", "written"),
    [
        (b"", None),
        (b'{"a":[1,2.5,"\xc3\xa9"]}', {"a": [1, 2.5, "é"]}),
        (b'{"a": 1}', {"$text": '{"a": 1}'}),
        (b'{"a":1.10}', {"$text": '{"a":1.10}'}),
        (b'{"a":1,"a":2}', {"$text": '{"a":1,"a":2}'}),
        (b'{"a":NaN}', {"$text": '{"a":NaN}'}),
        (b'"text"', {"$text": '"text"'}),
        (b'{"$text":"x"}', {"$text": '{"$text":"x"}'}),
        (b"\xff", {"$base64": "/w=="}),
        (b"[" * 101 + b"]" * 101, {"$text": "[" * 101 + "]" * 101}),
        (b"[" * 100_000, {"$text": "[" * 100_000}),
    ],
    ids=["empty", "json", "spaces", "number", "twice", "nan", "string", "mark", "bytes", "deep", "deeper"],
)
def test_json_of_a_field_is_written_as_json_only_where_the_same_bytes_come_back(packed: bytes, written: Any):
    stored = record(call(attributes=packed), 0)
    assert line(stored)["attributes"] == written
    assert encode_event(back(stored)) == stored.value


def test_messages_tell_none_from_no_bytes():
    assert line(record(call(messages=None), 0))["messages"] is None
    assert line(record(call(messages=b""), 0))["messages"] == {"$text": ""}


# What is no event


def test_record_that_does_not_decode_is_written_raw_with_the_reason():
    found = line(Record(EVENTS, 2, 5, 9, b"\xff", b"junk", (("e", b"x"), ("n", None), ("b", b"\xfe"))))
    assert found == {
        "raw": {
            "value": {"$base64": "anVuaw=="},
            "reason": "event refused: expected kind/flags/attempt/sequence/source/rollout_id, got 'x' in header e",
        },
        "log": {
            "partition": 2,
            "offset": 5,
            "time_ns": 9,
            "key": {"$base64": "/w=="},
            "headers": [["e", "x"], ["n", None], ["b", {"$base64": "/g=="}]],
        },
    }


def test_event_that_the_checks_refuse_is_written_raw():
    stored = record(call(), 0)._replace(value=encode_event(call(response_ids=b"\1\2\3")))
    assert line(stored)["raw"]["reason"].startswith("Span refused: expected 4 bytes a token, got 3 bytes")


def test_record_without_value_is_written_raw():
    assert line(record(completed(1), 0)._replace(value=None))["raw"]["value"] is None


def test_headers_beyond_the_events_own_are_written_and_come_back():
    stored = record(completed(1), 0)
    stored = stored._replace(headers=(("trace", b"x"), *stored.headers))
    found = line(stored)["log"]
    assert [name for name, _ in found["headers"]] == ["trace", HEADER]
    assert parse_headers(found["headers"]) == stored.headers


# Lines written by hand


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"event": "Spam"}, "expected one of RolloutStarted, Span, RewardRecorded"),
        ({"event": "SourceEnded", "spam": 1}, "at $.spam"),
        ({"event": "SourceEnded", "attempt": 0}, "expected a value, got none at $.rollout_id"),
        ({"event": "Span", "prompt_ids": "1,2"}, "expected a list, got '1,2' at $.prompt_ids"),
        ({"event": "Span", "prompt_ids": [1, -2]}, "expected token ids from 0 to 2**31 - 1, got -2 at $.prompt_ids[1]"),
        ({"event": "Span", "prompt_ids": [1.5]}, "got 1.5 at $.prompt_ids[0]"),
        ({"event": "Span", "prompt_ids": [1, True]}, "expected numbers, got True at $.prompt_ids[1]"),
        ({"event": "Span", "logprobs": [-0.5, False]}, "expected numbers, got False at $.logprobs[1]"),
        ({"event": "Span", "logprobs": ["x"]}, "expected a flat list of numbers, got list"),
        ({"event": "Span", "logprobs": [0.7]}, "at most 0, got 0.7 at $.logprobs[0]"),
        ({"event": "Span", "attributes": "text"}, "expected a JSON object or list"),
        ({"event": "Span", "attributes": {"$base64": "?"}}, "expected base64, got '?' at $.attributes.$base64"),
        ({"event": "Span", "arrays": [{"name": "a"}]}, "expected a value, got none at $.arrays[0].dtype"),
        (
            {"event": "Span", "arrays": [{"name": [], "dtype": "<f4", "shape": [1], "data": ""}]},
            "expected text, got [] at $.arrays[0].name",
        ),
        (
            {"event": "Span", "arrays": [{"name": "a", "dtype": {}, "shape": [1], "data": ""}]},
            "expected text, got {} at $.arrays[0].dtype",
        ),
        ({"event": "RewardRecorded", "target": {"key": [], "value": "c"}}, "expected text, got [] at $.target.key"),
        ({"event": "Span", "policy_version_runs": [{"version": 1}]}, "at $.policy_version_runs[0]"),
        (
            {"event": "RewardRecorded", "target": {"span_id": "c"}},
            "expected only key, value, got 'span_id' at $.target",
        ),
        ({"event": "SourceEnded", "log": {"offset": -1}}, "at $.log.offset"),
        ({"event": "SourceEnded", "log": {"time": 1}}, "at $.log.time"),
        ({"raw": {}}, "expected an object with a value, got {} at $.raw"),
        ({"raw": {"value": None}, "attempt": 0}, "expected raw and log alone, got 'attempt'"),
    ],
)
def test_line_that_is_refused_names_the_field(given: dict[str, Any], said: str):
    assert said in refusal(**given)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b'{"event":"RolloutStarted","rollout_id":"a","rollout_id":"b"}', "rollout_id"),
        (b'{"event":"Span","attributes":{"x":[{"a":1,"a":2}]}}', "a"),
    ],
)
def test_line_with_a_name_twice_in_an_object_is_refused(text: bytes, field: str):
    """Else the last one would count, without a word."""
    with pytest.raises(
        InvalidEvent, match=f"expected each name once in an object, got '{field}' twice at \\$.{field}$"
    ):
        parse_line(text)


@pytest.mark.parametrize("name", ["\ud800", "x" * 2**15, "é" * 2**14])
def test_header_name_that_not_every_log_takes_is_refused(name: str):
    with pytest.raises(InvalidEvent, match=r"at \$.log.headers\[0\]"):
        parse_headers([[name, None]])


@pytest.mark.parametrize("flags", ["\ud800", "é", [], 5, "a/b", "r "])
def test_flags_that_no_header_can_hold_are_refused(flags: Any):
    with pytest.raises(InvalidEvent, match=r"at \$.log.flags"):
        header_for(completed(1), flags)


def test_reward_without_fraction_is_the_float():
    parsed = parse_line(b'{"event":"RewardRecorded","value":1}')
    assert parsed.fields == {"value": 1.0}
    assert type(parsed.fields["value"]) is float


def test_record_of_a_started_rollout_decodes_to_what_was_recorded():
    stored = record(started(metadata=b'{"a":1}'), 0)
    assert decode_event("RolloutStarted", stored.value) == back(stored)
    assert parse_header(stored.headers[0][1]).kind == "RolloutStarted"


def test_closing_of_a_group_comes_back():
    stored = record(group_closed(), 0)
    assert back(stored) == group_closed()
    assert back(record(reward(1, value=-0.0), 0)) == reward(1, value=-0.0)
