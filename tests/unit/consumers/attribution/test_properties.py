"""What holds for every log: random small ones, with cycles, lost parents, repeated ids and shared responses."""

import importlib.util
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlog.consumers.attribution import (
    OUTCOMES,
    Attribution,
    AttributionSettings,
    Entry,
    RewardEntry,
    SpanEntry,
    attribute,
    settings_from,
)
from rolloutlog.consumers.attribution.cases import cases_in, entries_of
from rolloutlog.consumers.attribution.reasons import Reasons
from rolloutlog.consumers.attribution.settings import FINALS, LINK_SUBTREES, POLICIES, REDUCES

_SPEC = importlib.util.spec_from_file_location("attribution_reference", Path(__file__).with_name("reference.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
Reference = _MODULE.Reference

FILE = Path(__file__).parents[3] / "cases/attribution.json"
CASES = [case for case in cases_in(json.loads(FILE.read_text())) if "error" not in case["expected"]]
SPAN_IDS = ("a", "b", "c", "d", "e", "f", "g", "h")
RESPONSES = ("", "r1", "r2", "a")
NAMES = ("plan", "code")
TIMES = st.integers(0, 8)
VALUES = st.sampled_from([None, 0.0, 0.25, 0.5, -1.0, 2.0])


def spans() -> st.SearchStrategy[SpanEntry]:
    return st.builds(
        SpanEntry,
        span_id=st.sampled_from(SPAN_IDS),
        parent_id=st.sampled_from((None, *SPAN_IDS, "lost")),
        kind=st.sampled_from(("call", "call", "call", "call", "agent", "agent", "operation", "evaluator", "tool")),
        name=st.sampled_from(NAMES),
        start_ns=TIMES,
        end_ns=TIMES,
        response_id=st.sampled_from((None, *RESPONSES)),
        choice_index=st.sampled_from((0, 0, 0, 1)),
        model=st.sampled_from((None, "", "m1", "m2")),
        token_count=st.sampled_from((0, 3, 3)),
        trainable=st.sampled_from((*[True] * 7, False)),
    )


def rewards() -> st.SearchStrategy[RewardEntry]:
    ids = [f"w{i}" for i in range(6)]
    targets = st.one_of(
        st.none(),
        st.none(),
        st.tuples(st.just("span_id"), st.sampled_from((*SPAN_IDS, "lost"))),
        st.tuples(st.just("response_id"), st.sampled_from(RESPONSES)),
        st.tuples(st.just("operation"), st.sampled_from(NAMES)),
    )
    built = st.builds(
        RewardEntry,
        reward_id=st.sampled_from(ids),
        value=VALUES,
        name=st.sampled_from(("reward", "style")),
        scope=st.sampled_from(("step", "step", "step", "rollout")),
        time_ns=TIMES,
        target=targets,
        parent_id=st.sampled_from((*[None] * 4, *SPAN_IDS, "lost", "elsewhere")),
        after_call=st.sampled_from((None, None, *SPAN_IDS, *RESPONSES)),
        supersedes=st.sampled_from((*[None] * 12, *ids)),
    )
    return built.map(lambda r: replace(r, target=None) if r.scope == "rollout" else r)


@st.composite
def tangles(draw: st.DrawFn) -> list[Entry]:
    """Every id once, so that cycles close, responses meet and rewards name what is there."""
    entries: list[Entry] = [draw(spans())._replace(span_id=span_id) for span_id in SPAN_IDS]
    entries += [replace(draw(rewards()), reward_id=f"w{i}") for i in range(draw(st.integers(1, 6)))]
    return draw(st.permutations(entries))


@st.composite
def trees(draw: st.DrawFn) -> list[Entry]:
    """Deep trees recorded in any order, now and then with an end tied to a beginning: nearer to what agents send."""
    kinds = st.sampled_from(("call", "call", "agent", "operation", "tool", "tool", "tool", "tool", "evaluator"))
    count = draw(st.integers(1, 14))
    entries: list[Entry] = []
    root = draw(st.sampled_from((None, None, None, f"s{count // 2}")))
    for i in range(count):
        parent_id = f"s{draw(st.integers(max(0, i - 3), i - 1))}" if i else root
        kind = draw(kinds) if i else "tool"
        entries.append(SpanEntry(f"s{i}", parent_id, kind, draw(st.sampled_from(NAMES)), i, i + 1, token_count=1))
    for i in range(draw(st.integers(1, 5))):
        parent_id, target_id, after = (f"s{draw(st.integers(0, count - 1))}" for _ in range(3))
        target = draw(st.sampled_from((None, None, None, ("span_id", target_id))))
        after_call = draw(st.sampled_from((None, None, after)))
        entries.append(RewardEntry(f"w{i}", 0.5, target=target, parent_id=parent_id, after_call=after_call, time_ns=i))
    return draw(st.permutations(entries))


LOGS = st.one_of(st.lists(st.one_of(spans(), rewards()), max_size=20), tangles(), tangles(), trees())
PATTERNS = st.sampled_from((*[None] * 8, "plan", "^code$"))  # rarely: two of them select hardly any call
SETTINGS = st.builds(
    AttributionSettings,
    agent=PATTERNS,
    operation=PATTERNS,
    model=st.sampled_from((*[None] * 8, "m1")),
    exclude_agent=PATTERNS,
    exclude_operation=PATTERNS,
    policy=st.sampled_from((*POLICIES, "enclosing")),
    link_subtree=st.sampled_from(LINK_SUBTREES),
    reduce=st.sampled_from(REDUCES),
    final=st.sampled_from(FINALS),
    weights=st.sampled_from(({}, {"style": 0.1}, {"reward": 0.0})),
)


def plain(result: Attribution) -> dict[str, Any]:
    return {
        "calls": {c.span_id: (c.step, c.final, c.total) for c in result.calls},
        "final": result.final,
        "outcomes": {i: (o.outcome, list(o.calls), o.rule, list(o.found)) for i, o in result.outcomes.items()},
        "turns": [c.span_id for c in result.all_calls],
    }


@settings(max_examples=400, deadline=None)
@given(LOGS, SETTINGS)
def test_attribution_of_any_log_equals_the_slow_reference(log: list[Entry], config: AttributionSettings) -> None:
    got, expected = plain(attribute(log, config)), Reference(log, config).result()
    assert got["outcomes"] == expected["outcomes"]
    assert got["turns"] == expected["turns"]
    assert got["final"] == expected["final"]
    assert list(got["calls"]) == list(expected["calls"])
    for call, (step, final, total) in expected["calls"].items():
        assert got["calls"][call][0] == pytest.approx(step)
        assert got["calls"][call][1] == pytest.approx(final)
        assert got["calls"][call][2] == pytest.approx(total)


@settings(max_examples=300, deadline=None)
@given(LOGS, SETTINGS)
def test_every_link_that_is_proposed_counts_unless_it_says_that_its_call_is_not_selected(
    log: list[Entry], config: AttributionSettings
) -> None:
    reasons = Reasons(log, config)
    for reward_id, outcome in attribute(log, config).outcomes.items():
        words = reasons.words(reward_id, outcome, config.policy, "")
        proposed = re.search(r"target=\{'span_id': '(\w+)'\}(, though that is not selected)?", words)
        if proposed is not None:
            target = ("span_id", proposed[1])
            changed = [
                replace(each, target=target) if isinstance(each, RewardEntry) and each.reward_id == reward_id else each
                for each in log
            ]
            then = attribute(changed, config).outcomes[reward_id]
            assert then.outcome == ("filtered" if proposed[2] else "attributed")
            assert (then.found or then.calls) == (proposed[1],)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_slow_reference_gives_the_expected_result_of_every_case(case: dict[str, Any]) -> None:
    """So that what is compared with is right, and not only the same."""
    result = Reference(entries_of(case), settings_from(case["config"])).result()
    expected = case["expected"]
    for reward_id, outcome in expected["outcomes"].items():
        found = outcome.get("found", [])
        assert result["outcomes"][reward_id] == (outcome["outcome"], outcome["calls"], outcome["rule"], found)
    assert list(result["calls"]) == list(expected["calls"])
    for call, (step, final, total) in result["calls"].items():
        assert step == pytest.approx(expected["calls"][call]["step"], abs=1e-9)
        assert final == pytest.approx(expected["calls"][call]["final"], abs=1e-9)
        assert total == pytest.approx(expected["calls"][call]["total"], abs=1e-9)
    assert result["final"] == pytest.approx(expected["final"], abs=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_attribution_in_a_deep_tree_with_calls_as_leaves_equals_the_slow_reference(seed: int) -> None:
    """Long climbs past many spans with calls beneath them: where a way up taken in jumps could go too far."""
    chance = random.Random(seed)
    kinds = ("tool",) * 12 + ("operation", "agent", "evaluator")
    log: list[Entry] = [SpanEntry("s0", kind="tool")]
    log += [SpanEntry(f"s{i}", f"s{chance.randrange(max(0, i - 3), i)}", chance.choice(kinds)) for i in range(1, 40)]
    log += [SpanEntry(f"c{i}", f"s{chance.randrange(40)}", "call", start_ns=i, token_count=1) for i in range(12)]
    log += [RewardEntry(f"w{i}", 1.0, parent_id=f"s{chance.randrange(20, 40)}") for i in range(20)]
    chance.shuffle(log)
    config = AttributionSettings()
    assert plain(attribute(log, config))["outcomes"] == Reference(log, config).result()["outcomes"]


@settings(max_examples=100, deadline=None)
@given(LOGS, SETTINGS)
def test_every_reward_ends_in_exactly_one_outcome(log: list[Entry], config: AttributionSettings) -> None:
    result = attribute(log, config)
    ids = list(dict.fromkeys(entry.reward_id for entry in log if isinstance(entry, RewardEntry)))
    assert list(result.outcomes) == ids
    for outcome in result.outcomes.values():
        assert outcome.outcome in OUTCOMES
        assert bool(outcome.calls) == (outcome.outcome == "attributed")
        assert bool(outcome.found) == (outcome.outcome == "filtered")


@settings(max_examples=100, deadline=None)
@given(LOGS, SETTINGS, st.data())
def test_repeated_entries_change_nothing(log: list[Entry], config: AttributionSettings, data: st.DataObject) -> None:
    repeated = list(log)
    for entry in data.draw(st.lists(st.sampled_from(log), max_size=5)) if log else []:
        first = next(i for i, other in enumerate(repeated) if same_id(entry, other))
        repeated.insert(data.draw(st.integers(first + 1, len(repeated))), repeated[first])
    assert attribute(repeated, config) == attribute(log, config)


def same_id(one: Entry, other: Entry) -> bool:
    if isinstance(one, SpanEntry):
        return isinstance(other, SpanEntry) and one.span_id == other.span_id
    return isinstance(other, RewardEntry) and one.reward_id == other.reward_id


@settings(max_examples=100, deadline=None)
@given(LOGS, SETTINGS, st.data())
def test_unrelated_spans_anywhere_change_nothing(
    log: list[Entry], config: AttributionSettings, data: st.DataObject
) -> None:
    """Spans without a call beneath them, which no reward names, may arrive in any order and place."""
    widened = list(log)
    for i in range(data.draw(st.integers(0, 4))):
        tool = SpanEntry(
            f"tool{i}", parent_id=data.draw(st.sampled_from((None, "unknown", f"tool{i - 1}"))), kind="tool"
        )
        widened.insert(data.draw(st.integers(0, len(widened))), tool)
    assert attribute(widened, config) == attribute(log, config)


@settings(max_examples=100, deadline=None)
@given(tangles(), SETTINGS, st.data())
def test_place_of_spans_that_are_neither_calls_nor_operations_changes_nothing(
    log: list[Entry], config: AttributionSettings, data: st.DataObject
) -> None:
    """Agents, tools and evaluators are recorded when they end: which of several did so first is chance."""
    moved = [each for each in log if isinstance(each, SpanEntry) and each.kind not in ("call", "operation")]
    reordered = [each for each in log if each not in moved]
    for each in moved:
        reordered.insert(data.draw(st.integers(0, len(reordered))), each)
    assert attribute(reordered, config) == attribute(log, config)


@settings(max_examples=100, deadline=None)
@given(LOGS, SETTINGS, st.sampled_from(("last", "split")))
def test_amounts_with_sum_and_weights_of_one_add_up_to_the_attributed_rewards(
    log: list[Entry], config: AttributionSettings, link_subtree: str
) -> None:
    config = replace(config, reduce="sum", weights={}, link_subtree=link_subtree, final="none")
    result = attribute(log, config)
    values: dict[str, float | None] = {}
    for entry in log:
        if isinstance(entry, RewardEntry):
            values.setdefault(entry.reward_id, entry.value)
    attributed = sum(values[i] or 0.0 for i, o in result.outcomes.items() if o.outcome == "attributed")
    assert sum(call.total or 0.0 for call in result.calls) == pytest.approx(attributed, abs=1e-9)
