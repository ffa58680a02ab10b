"""Rules of attribution that the cases leave open."""

import pytest

from rolloutlog.consumers.attribution import (
    Attribution,
    AttributionSettings,
    Entry,
    Outcome,
    RewardEntry,
    SpanEntry,
    attribute,
    explain_recorded,
)


def call(span_id: str, parent_id: str | None = None, **fields: object) -> SpanEntry:
    return SpanEntry(span_id, parent_id, "call", "chat", token_count=3)._replace(**fields)


def run(*entries: Entry, **settings: object) -> Attribution:
    return attribute(entries, AttributionSettings(**settings))  # type: ignore[arg-type]


def outcome(result: Attribution, reward_id: str = "w") -> tuple[str, tuple[str, ...]]:
    return result.outcomes[reward_id].outcome, result.outcomes[reward_id].calls


AGENT = SpanEntry("agent", None, "agent", "solver")


def test_reward_after_call_with_a_later_call_beneath_its_parent_goes_to_the_later_one() -> None:
    result = run(
        AGENT,
        call("gateway", response_id="g"),
        call("x", "agent"),
        RewardEntry("w", 1.0, parent_id="agent", after_call="g"),
    )
    assert outcome(result) == ("attributed", ("x",))


def test_reward_after_a_judges_call_sees_what_was_recorded_before_that() -> None:
    result = run(
        SpanEntry("judge", "agent", "evaluator"),
        RewardEntry("w", 1.0, parent_id="agent", after_call="j"),
        call("x", "agent"),
        call("j", "judge"),
        AGENT,
    )
    assert outcome(result) == ("attributed", ("x",))


def test_after_call_does_not_widen_supersedes() -> None:
    result = run(
        AGENT,
        RewardEntry("w", 1.0, parent_id="x", after_call="x", supersedes="later"),
        RewardEntry("later", 2.0, parent_id="x"),
        call("x", "agent"),
    )
    assert outcome(result, "later") == ("attributed", ("x",))


def test_link_to_a_judges_response_is_unresolved() -> None:
    judge = SpanEntry("judge", None, "evaluator")
    result = run(judge, call("j", "judge", response_id="r"), RewardEntry("w", 1.0, target=("response_id", "r")))
    assert outcome(result) == ("unresolved", ())


def test_link_to_a_response_with_choices_means_the_first_recorded() -> None:
    result = run(
        call("k1", response_id="r", choice_index=1),
        call("k0", response_id="r", choice_index=0),
        RewardEntry("w", 1.0, target=("response_id", "r")),
    )
    assert outcome(result) == ("attributed", ("k1",))


def test_null_reward_that_is_superseded_is_revised() -> None:
    result = run(RewardEntry("w", None), RewardEntry("v", None, supersedes="w"))
    assert outcome(result) == ("revised", ())
    assert outcome(result, "v") == ("no_verdict", ())


def test_final_with_a_later_superseded_final_of_its_name_stays_revised() -> None:
    result = run(
        RewardEntry("w", 1.0, scope="rollout"),
        RewardEntry("v", 2.0, scope="rollout"),
        RewardEntry("u", None, supersedes="v"),
    )
    assert [each.outcome for each in result.outcomes.values()] == ["revised", "revised", "no_verdict"]
    assert result.final == {}


def test_climb_from_within_nested_evaluators_starts_above_the_outermost() -> None:
    result = run(
        AGENT,
        call("x", "agent"),
        SpanEntry("outer", "agent", "evaluator"),
        SpanEntry("inner", "outer", "evaluator"),
        call("j", "inner"),
        RewardEntry("w", 1.0, parent_id="inner"),
    )
    assert outcome(result) == ("attributed", ("x",))


def test_reward_of_an_evaluator_without_a_parent_is_unattributed() -> None:
    judge = SpanEntry("judge", None, "evaluator")
    result = run(call("x"), judge, RewardEntry("w", 1.0, parent_id="judge", after_call="x"))
    assert outcome(result) == ("unattributed", ())


def test_climb_round_a_cycle_finds_the_call_hung_below_it() -> None:
    result = run(
        SpanEntry("a", "b", "tool"),
        SpanEntry("b", "c", "tool"),
        SpanEntry("c", "a", "tool"),
        call("x", "c"),
        RewardEntry("w", 1.0, parent_id="a"),
    )
    assert outcome(result) == ("attributed", ("x",))


def test_climb_from_an_evaluator_in_a_cycle_does_not_come_round_again() -> None:
    result = run(
        SpanEntry("e", "a", "evaluator"), SpanEntry("a", "e", "tool"), call("x"),
        RewardEntry("w", 1.0, parent_id="a", after_call="x"),
    )  # fmt: skip
    assert outcome(result) == ("unattributed", ())


def test_split_divides_over_selected_calls_only() -> None:
    result = run(
        AGENT, call("x", "agent"), call("y", "agent", trainable=False), call("z", "agent"),
        RewardEntry("w", 1.0, target=("span_id", "agent")), link_subtree="split",
    )  # fmt: skip
    assert outcome(result) == ("attributed", ("x", "z"))
    assert [each.total for each in result.calls] == [0.5, 0.5]


def test_call_marked_untrainable_on_any_of_its_spans_is_not_selected() -> None:
    result = run(call("x", response_id="r"), call("y", response_id="r", trainable=False))
    assert [each.selected for each in result.all_calls] == [False]


def test_model_of_a_call_comes_from_another_span_when_its_own_has_none() -> None:
    spans = (call("x", response_id="r"), call("y", response_id="r", model="qwen"))
    assert [each.span_id for each in run(*spans, model="^qwen$").calls] == ["x"]


def test_turn_index_counts_calls_that_are_not_selected_but_no_judges() -> None:
    judge = SpanEntry("judge", None, "evaluator")
    result = run(call("x", trainable=False), judge, call("j", "judge", start_ns=1), call("y", start_ns=2))
    assert [(each.span_id, each.turn_index) for each in result.all_calls] == [("x", 0), ("y", 1)]
    assert [each.turn_index for each in result.calls] == [1]


def test_weight_of_zero_gives_a_total_of_zero_not_null() -> None:
    result = run(call("x"), RewardEntry("w", 1.0, parent_id="x"), weights={"reward": 0.0})
    assert result.calls[0].total == 0.0


def test_totals_of_steps_and_finals_are_kept_apart() -> None:
    result = run(
        call("x"),
        RewardEntry("w", 1.0, parent_id="x"),
        RewardEntry("f", 3.0, "outcome", scope="rollout"),
        weights={"outcome": 2.0},
    )
    only = result.calls[0]
    assert (only.step_total, only.final_total, only.total) == (1.0, 6.0, 7.0)
    assert (only.reward_ids, result.final_reward_ids) == (("w",), ("f",))


def test_final_of_a_rollout_without_selected_calls_stays_with_the_rollout() -> None:
    result = run(call("x", trainable=False), RewardEntry("f", 1.0, scope="rollout"))
    assert (result.calls, result.final) == ([], {"reward": 1.0})


def test_value_taken_by_a_0_3_policy_is_not_weighted() -> None:
    settings = {"policy": "first_occurrence", "weights": {"reward": 5.0}}
    result = run(call("x"), RewardEntry("w", 1.0, time_ns=1), **settings)
    assert (result.calls[0].total, result.final) == (1.0, {"reward": 1.0})


def test_explain_of_a_filtered_reward_names_the_call_and_that_nothing_moved() -> None:
    text = explain_recorded(RewardEntry("w", 0.2), Outcome("filtered", (), "linked", ("c",)), ())
    assert text.startswith("reward w (reward 0.2, step): filtered, rule linked found call c, not selected")
    assert text.endswith("handed to no other call")


def test_tree_of_10_000_levels_is_climbed_without_recursion() -> None:
    spans = [SpanEntry(f"s{i}", f"s{i - 1}" if i else None, "operation", "deep") for i in range(10_000)]
    rewards = [RewardEntry(f"w{i}", 1.0, parent_id="s9999") for i in range(1_000)]
    result = run(call("x", "s0"), *spans, *rewards, operation="deep")
    assert outcome(result, "w999") == ("attributed", ("x",))
    assert result.calls[0].total == 1_000.0


@pytest.mark.parametrize(("reward_first", "taken"), [(True, ()), (False, ("x",))])
def test_first_occurrence_with_equal_times_goes_by_log_order(reward_first: bool, taken: tuple[str, ...]) -> None:
    entries: list[Entry] = [call("x", start_ns=5, end_ns=5), RewardEntry("w", 1.0, time_ns=5)]
    result = run(*(reversed(entries) if reward_first else entries), policy="first_occurrence")
    assert result.outcomes["w"].calls == taken


def test_nearest_after_a_call_recorded_later_finds_that_call() -> None:
    entries = (call("x"), RewardEntry("w", 1.0, after_call="y"), call("y"), call("z"))
    assert outcome(run(*entries, policy="nearest")) == ("attributed", ("y",))


@pytest.mark.parametrize("below", ["a", "b", "c"])
def test_agent_in_a_cycle_is_found_from_every_member(below: str) -> None:
    cycle = (SpanEntry("a", "b", "tool"), SpanEntry("b", "c", "agent", "solver"), SpanEntry("c", "a", "tool"))
    result = run(*cycle, call("x", below), agent="^solver$")
    assert [each.span_id for each in result.calls] == ["x"]


def test_operation_link_takes_the_one_started_last_though_recorded_first() -> None:
    result = run(
        call("x", "new"),
        call("y", "old"),
        SpanEntry("new", None, "operation", "check", start_ns=5),
        SpanEntry("old", None, "operation", "check", start_ns=3),
        RewardEntry("w", 1.0, target=("operation", "check"), time_ns=0),
    )
    assert outcome(result) == ("attributed", ("x",))
