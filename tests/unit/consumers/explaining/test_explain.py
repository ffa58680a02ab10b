"""What is shown of one rollout: its lines, word for word, and the same for programs."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from support.building import call, completed, floats, ids, reward, started
from unit.consumers.explaining.test_finding import found, log_of, new_record

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.explaining.account import account_of
from rolloutlog.consumers.explaining.explain import Found, lines, render, tree
from rolloutlog.consumers.explaining.explain_json import as_json as account_json
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.events import Event, PolicyVersionRun, Span, Target
from rolloutlog.eventstore.extra_info import encode_extra_info

MS = 1_000_000


def span(span_id: str, sequence: int, kind: str = "operation", **fields: object) -> Span:
    given = {"kind": kind, "name": span_id, "prompt_ids": None, "response_ids": None, **fields}
    return call(span_id, sequence, "rollout-1", **given)


EXAMPLE: list[Event] = [
    started("rollout-1", policy_version=3, task_id="count-users"),
    span("agent-1", 1, "agent", name="sql", start_ns=0, end_ns=1_500 * MS),
    span("write", 2, parent_id="agent-1", start_ns=10 * MS, end_ns=40 * MS),
    call("call-1", 3, "rollout-1", parent_id="write", model="policy", prompt_ids=ids(1, 2, 3), response_ids=ids(4, 5),
         logprobs=floats(-0.5, -0.5), start_ns=11 * MS, end_ns=30 * MS,
         policy_version_runs=(PolicyVersionRun(3, 2),)),
    span("check", 4, "tool", parent_id="agent-1", start_ns=50 * MS, end_ns=60 * MS, status="error"),
    reward(5, "rollout-1", reward_id="w-1", name="parses", value=0.2, parent_id="write", time_ns=35 * MS),
    reward(6, "rollout-1", reward_id="w-2", name="linked", value=1.0, time_ns=70 * MS,
           target=Target("span_id", "nowhere")),
    reward(7, "rollout-1", reward_id="w-3", name="judge", value=None, time_ns=71 * MS, scorer="llm",
           scorer_version="2"),
    reward(8, "rollout-1", reward_id="w-4", value=1.0, scope="rollout", time_ns=72 * MS),
    completed(9, "rollout-1"),
]  # fmt: skip


def as_json(found: Found) -> dict[str, Any]:
    return account_json(account_of(found))


def shown(*events: Event, published: int | None = None, terminal: bool = False) -> str:
    it = found(log_of(*map(new_record, events), published=published), "rollout-1")
    out = io.StringIO()
    Console(file=out, width=40, force_terminal=terminal).print(render(it), soft_wrap=True, highlight=False)
    return out.getvalue()


def test_explained_rollout_shows_its_end_its_spans_and_where_each_reward_went():
    printed = shown(*EXAMPLE).splitlines()
    batch = printed.pop(3)
    assert printed == [
        "rollout rollout-1, attempt 0, task count-users, group g, split train",
        "emitted",
        "1 call, 1 sample, policy version 3, final reward 1",
        "",
        "agent sql  1.5 s  agent-1",
        "├─ operation write  30 ms  write",
        "│  ├─ call chat  policy, 3 + 2 tokens, 19 ms, policy version 3  total 1.2  call-1",
        "│  └─ reward w-1 (parses 0.2, step): attributed to call call-1 by rule enclosing: the last earlier call "
        "beneath operation write, where it was emitted",
        "└─ tool check  10 ms  error  check",
        "reward w-2 (linked 1, step): unresolved: no span has span_id 'nowhere'; the calls are call-1",
        "reward w-3 (judge no value, step): no_verdict, the scorer gave None, which counts for nothing: emit another "
        "once there is a value; scorer llm 2",
        "reward w-4 (reward 1, rollout): final, it belongs to the rollout and reaches call call-1",
    ]
    assert batch.startswith("batch ")
    assert batch.endswith(
        "at 0:0, closed (complete) at 1970-01-01T00:00:00.000000Z by event 0:9; events of the rollout 0:0 to 0:9"
    )


def judged(**info: Any) -> list[Event]:
    """A rollout with a reward that has extra info, in an operation that more follows."""
    return [
        started("rollout-1"),
        span("write", 1),
        call("c", 2, "rollout-1", parent_id="write"),
        reward(3, "rollout-1", reward_id="w", parent_id="write", time_ns=4, extra_info=encode_extra_info(info)),
        span("check", 4, parent_id="write", start_ns=5, end_ns=6),
        completed(5, "rollout-1"),
    ]


def test_explained_reward_has_its_extra_info_beneath_it():
    printed = shown(*judged(reason="the table\x1b is wrong: Größe", acc=0.5)).splitlines()
    at = next(at for at, line in enumerate(printed) if "reward w " in line)
    assert printed[at + 1 : at + 3] == [
        '│     extra_info {"reason": "the table\\u001b is wrong: Größe", "acc": 0.5}',
        "└─ operation check  1e-06 ms  check",
    ]


def test_explained_extra_info_is_cut_for_people_and_whole_for_programs():
    events = judged(reason="no " * 1_000)
    (line,) = [each for each in shown(*events).splitlines() if "extra_info" in each]
    assert (len(line.lstrip("│ ")), line[-1]) == (200, "…")
    it = as_json(found(log_of(*map(new_record, events)), "rollout-1"))
    whole = {"reason": "no " * 1_000}
    assert [each["extra_info"] for each in it["rewards"]] == [whole]
    assert it["outcomes"]["w"]["extra_info"] == whole
    assert [each["extra_info"] for each in it["samples"]] == [whole]


def test_explained_reward_without_extra_info_has_no_line_for_it():
    assert "extra_info" not in shown(*judged())


def test_explained_reward_that_is_recorded_nowhere_leaves_the_extra_info_of_its_sample():
    it = found(log_of(*map(new_record, judged(reason="wrong table"))), "rollout-1")
    assert it.result is not None
    unknown = replace(it, result=replace(it.result, outcomes=(replace(it.result.outcomes[0], reward_id="other"),)))
    printed = [line.plain for line in lines(account_of(unknown))]
    assert printed[-1] == 'sample rollout-1/0/c: extra_info {"reason": "wrong table"}'


def test_explained_row_of_several_calls_shows_its_total_at_the_last_and_where_the_others_are():
    events = [
        *EXAMPLE[:-1],
        call("call-2", 9, "rollout-1", start_ns=80 * MS, end_ns=81 * MS),
        completed(10, "rollout-1"),
    ]
    it = found(log_of(*map(new_record, events)), "rollout-1")
    joined = it.samples[0]._replace(span_ids=("call-1", "call-2"), total=1.25)
    printed = [line.plain for line in lines(account_of(replace(it, samples=(joined,))))]
    assert [line.partition("policy version 3  ")[2] for line in printed if "call chat  policy" in line] == [
        "in the row of call-2  call-1"
    ]
    assert any(line.endswith("  total 1.25 of the row of 2 calls  call-2") for line in printed)


def test_explained_reason_of_several_lines_has_a_line_for_each():
    it = found(log_of(*map(new_record, EXAMPLE)), "rollout-1")
    assert it.result is not None
    failed = replace(it, result=replace(it.result, status="incomplete", reason="policy p:f failed\n  p, line 3\tin f"))
    printed = [line.plain for line in lines(account_of(failed))]
    assert printed[1:3] == ["incomplete: policy p:f failed", "  p, line 3\ufffdin f"]


def test_explained_rollout_has_colours_on_a_terminal_alone():
    assert "\x1b[" in shown(*EXAMPLE, terminal=True)
    assert "\x1b[" not in shown(*EXAMPLE)


def test_explained_failed_rollout_shows_its_error():
    printed = shown(started("rollout-1"), completed(1, "rollout-1", status="failed", error="Crash: no disk"))
    assert "failed\nerror: Crash: no disk\n0 calls, 0 samples, policy version unknown, final none\n" in printed


def test_explained_open_rollout_shows_what_it_waits_for_and_what_has_arrived():
    printed = shown(*EXAMPLE[:-1]).splitlines()
    assert printed[1] == "open: (attempt 0) is not completed"
    assert (
        "│  └─ reward w-1 (parses 0.2, step): not decided yet; as it stands: attributed to call call-1 by rule "
        "enclosing: the last earlier call beneath operation write, where it was emitted"
    ) in printed


def test_explained_dropped_rollout_says_that_its_final_reward_reaches_no_sample():
    events = [started("rollout-1", split="val"), reward(1, "rollout-1", scope="rollout"), completed(2, "rollout-1")]
    assert "final, it belongs to the rollout and reaches no sample" in shown(*events)


def test_explained_names_with_control_characters_leave_the_terminal_as_it_is():
    text = shown(started("rollout-1"), span("s", 1, name="\x1b[2Jclear\r"), completed(2, "rollout-1"))
    assert "operation \ufffd[2Jclear\ufffd" in text
    assert "\x1b" not in text


def test_explained_span_of_a_parent_that_is_not_there_stands_at_the_root():
    it = found(log_of(*map(new_record, [started("rollout-1"), span("s", 1, parent_id="gone")])), "rollout-1")
    assert [(node.depth, node.recorded.offset) for node in tree(it)] == [(0, 1)]


def test_explained_spans_that_are_each_others_parent_are_shown_once():
    events = [started("rollout-1"), span("a", 1, parent_id="b"), span("b", 2, parent_id="a"),
              span("self", 3, parent_id="self")]  # fmt: skip
    it = found(log_of(*map(new_record, events)), "rollout-1")
    assert [(node.depth, node.recorded.event.span_id) for node in tree(it)] == [(0, "a"), (1, "b"), (0, "self")]


def test_explained_span_id_recorded_twice_is_shown_once():
    events = [started("rollout-1"), span("a", 1, name="first"), span("a", 2, name="second")]
    it = found(log_of(*map(new_record, events)), "rollout-1")
    assert [node.recorded.event.name for node in tree(it)] == ["first"]


def test_explained_tree_of_10_000_levels_is_shown_in_lines_of_bounded_length():
    events: list[Event] = [started("rollout-1")]
    events += [span(f"s{n}", n + 1, parent_id=f"s{n - 1}" if n else None, start_ns=n, end_ns=n) for n in range(10_000)]
    events.append(reward(10_001, "rollout-1", reward_id="deep", parent_id="s9999", time_ns=10_000))
    printed = shown(*events, completed(10_002, "rollout-1")).splitlines()
    assert len(printed) == 10_001 + 5
    assert "[9999 deep] operation s9999" in printed[-2]
    assert "[10000 deep] reward deep" in printed[-1]
    assert max(map(len, printed)) < 330


def test_explained_rollout_for_programs_has_the_same():
    it = as_json(found(log_of(*map(new_record, EXAMPLE)), "rollout-1"))
    assert json.loads(json.dumps(it)) == it
    assert (it["status"], it["task_id"], it["state"], it["final"]) == ("emitted", "count-users", "published",
                                                                      {"reward": 1.0})  # fmt: skip
    assert [(each["span_id"], each["depth"]) for each in it["spans"]] == [
        ("agent-1", 0), ("write", 1), ("call-1", 2), ("check", 1)]  # fmt: skip
    assert it["spans"][2]["total"] == pytest.approx(1.2)
    assert (it["spans"][2]["prompt_tokens"], it["spans"][2]["response_tokens"]) == (3, 2)
    assert [(each["reward_id"], each["outcome"]) for each in it["rewards"]] == [
        ("w-1", "attributed"), ("w-2", "unresolved"), ("w-3", "no_verdict"), ("w-4", "final")]  # fmt: skip
    assert it["rewards"][1]["target"] == {"span_id": "nowhere"}
    assert it["outcomes"]["w-1"]["calls"] == ["call-1"]


def test_explained_open_rollout_for_programs_says_what_it_waits_for():
    it = as_json(found(log_of(*map(new_record, EXAMPLE[:-1])), "rollout-1"))
    assert (it["status"], it["state"], it["waits"]) == (None, "open", ["(attempt 0) is not completed"])
    assert it["task_id"] == "count-users"
    assert it["outcomes"] == {}
    assert it["rewards"][0]["explained"].startswith("reward w-1 (parses 0.2, step): not decided yet; as it stands: ")


def test_explained_rollout_of_settings_that_are_not_at_hand_says_how_to_give_them():
    settings = FoldSettings(attribution=AttributionSettings(exclude_operation="^write$"))
    it = found(log_of(*map(new_record, EXAMPLE), settings=settings), "rollout-1")
    told = "are not at hand, none here give the same: --settings FILE"
    assert any(line.plain.endswith(told) for line in lines(account_of(it)))
    given = [line.plain for line in lines(account_of(it, [settings]))]
    assert not any(line.endswith(told) for line in given)
    assert any(line.endswith("not selected  call-1") for line in given)
    assert (
        "│  └─ reward w-1 (parses 0.2, step): filtered by exclude_operation=^write$: the call found was call-1, "
        "in operation write; handed to no other call"
    ) in given
