"""What a closed rollout's events come to."""

import json
from typing import Any

import numpy as np
import pytest
from support.building import call, completed, floats, ids, record, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers import closing
from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.samples import Sample
from rolloutlog.eventstore.events import Event, PolicyVersionRun, Target, TokenArray
from rolloutlog.eventstore.extra_info import encode_extra_info

JUDGE = "judge.00000000000000bb"


def closed(*events: Event, **settings: Any) -> Partition:
    """A group of one rollout with these events of its main source, numbered from 1."""
    partition = Partition(**settings)
    partition.add(started(), *events, completed(len(events) + 1))
    return partition


def sample(*events: Event, **settings: Any) -> Sample:
    """Its only sample."""
    (found,) = closed(*events, **settings).batch.samples
    return found


def info(**keys: Any) -> bytes:
    return encode_extra_info(keys)


def merged(*events: Event) -> dict[str, Any]:
    return dict(json.loads(sample(*events).extra_info))


def numbers(packed: bytes, dtype: str = "<i4") -> list[float]:
    return np.frombuffer(packed, dtype).tolist()


# Samples


def test_sample_id_is_rollout_attempt_and_span():
    assert sample(call("c", 1)).sample_id == "r/0/c"


def test_sample_has_the_calls_tokens():
    made = sample(call("c", 1, prompt_ids=ids(1, 2, 3), response_ids=ids(4, 5)))
    assert (numbers(made.prompt_ids), numbers(made.response_ids)) == ([1, 2, 3], [4, 5])


def test_sample_of_one_call_has_a_mask_of_ones():
    assert sample(call("c", 1, response_ids=ids(4, 5, 6))).response_mask == b"\x01\x01\x01"


def test_sample_has_the_calls_log_probs():
    assert sample(call("c", 1, logprobs=floats(-0.5, -0.25))).logprobs == floats(-0.5, -0.25)


def test_sample_of_a_call_without_log_probs_has_none():
    assert sample(call("c", 1)).logprobs is None


def test_sample_has_the_calls_policy_version_runs():
    runs = (PolicyVersionRun(3, 1), PolicyVersionRun(None, 1))
    assert sample(call("c", 1, policy_version_runs=runs)).policy_version_runs == runs


def test_sample_has_the_calls_arrays_model_and_finish_reason():
    experts = TokenArray("experts", "<i4", (2, 1), ids(7, 8))
    made = sample(call("c", 1, arrays=(experts,), model="m", finish_reason="length"))
    assert (made.arrays, made.model, made.finish_reason) == ((experts,), "m", "length")


def test_sample_has_its_full_prompt():
    first = call("a", 1, prompt_ids=ids(*range(70)), response_ids=ids(100, 101))
    second = call("b", 2, prompt_base="a", prompt_base_tokens=72, prompt_ids=ids(200))
    assert numbers(closed(first, second).batch.samples[1].prompt_ids) == [*range(70), 100, 101, 200]


def test_samples_restore_prompts_from_calls_that_are_not_selected():
    first = call("a", 1, prompt_ids=ids(1, 2), response_ids=ids(3), trainable=False)
    second = call("b", 2, prompt_base="a", prompt_base_tokens=3, prompt_ids=ids(4))
    assert numbers(sample(first, second).prompt_ids) == [1, 2, 3, 4]


def test_samples_come_in_turn_order():
    partition = closed(call("late", 1, start_ns=20, end_ns=20), call("early", 2, start_ns=10, end_ns=10))
    assert [(each.sample_id, each.turn_index) for each in partition.batch.samples] == [
        ("r/0/early", 0),
        ("r/0/late", 1),
    ]


def test_sample_keeps_its_turn_index_among_calls_that_are_not_selected():
    made = sample(call("a", 1, trainable=False), call("b", 2))
    assert made.turn_index == 1


def test_calls_without_response_tokens_give_no_sample():
    assert [each.sample_id for each in closed(call("a", 1, response_ids=None), call("b", 2)).batch.samples] == ["r/0/b"]


def test_turn_count_counts_calls_selected_or_not():
    assert closed(call("a", 1, trainable=False), call("b", 2)).result().turn_count == 2


def test_turn_count_leaves_out_judges_calls():
    judge = call("e", 1, kind="evaluator", prompt_ids=None, response_ids=None)
    assert closed(judge, call("j", 2, parent_id="e"), call("a", 3)).result().turn_count == 1


def test_span_recorded_twice_counts_the_first_time():
    made = sample(call("c", 1, response_ids=ids(4)), call("c", 2, response_ids=ids(5)))
    assert numbers(made.response_ids) == [4]


def test_call_whose_span_id_was_a_tools_before_gives_no_sample():
    tool = call("c", 1, kind="tool", prompt_ids=None, response_ids=None)
    assert closed(tool, call("c", 2)).batch.samples == ()


# Rewards


def test_sample_that_no_reward_reaches_has_total_none():
    made = sample(call("c", 1))
    assert (made.total, made.reward_token_index, made.reward_token_value) == (None, b"", b"")


def test_sample_with_a_reward_of_zero_has_total_zero():
    made = sample(call("c", 1), reward(2, value=0.0))
    assert (made.total, numbers(made.reward_token_value, "<f8")) == (0.0, [0.0])


def test_sample_carries_its_reward_at_the_last_response_token():
    made = sample(call("c", 1, response_ids=ids(4, 5, 6)), reward(2, value=0.5))
    assert (numbers(made.reward_token_index), numbers(made.reward_token_value, "<f8")) == ([2], [0.5])


def test_sample_keeps_step_and_final_apart():
    made = sample(call("c", 1), reward(2, value=0.5, name="style"), reward(3, value=1.0, scope="rollout"))
    assert (made.step, made.final, made.total) == ({"style": 0.5}, {"reward": 1.0}, 1.5)


def test_sample_has_step_and_final_unweighted_and_the_total_weighted():
    weights = AttributionSettings(weights={"style": 0.5, "reward": 2.0})
    made = sample(
        call("c", 1),
        reward(2, value=1.0, name="style"),
        reward(3, value=1.0, scope="rollout"),
        attribution=weights,
    )
    assert (made.step, made.final, made.total) == ({"style": 1.0}, {"reward": 1.0}, 2.5)


def test_final_reaches_the_last_call_alone():
    partition = closed(call("a", 1), call("b", 2), reward(3, scope="rollout"))
    assert [each.total for each in partition.batch.samples] == [None, 1.0]


def test_final_of_a_rollout_is_unweighted():
    partition = closed(
        call("c", 1), reward(2, scope="rollout"), attribution=AttributionSettings(weights={"reward": 3.0})
    )
    assert partition.result().final == {"reward": 1.0}


def test_outcomes_tell_every_reward_in_log_order():
    partition = closed(
        call("c", 1),
        reward(2, name="style", scorer="s", scorer_version="2"),
        reward(3, scope="rollout", reward_id="mine"),
        reward(4, value=None, name="none"),
    )
    assert [
        (each.reward_id, each.outcome, each.calls, each.rule, each.offset) for each in partition.result().outcomes
    ] == [
        ("main.00000000000000aa:2", "attributed", ("c",), "enclosing", 2),
        ("mine", "final", (), "final", 3),
        ("main.00000000000000aa:4", "no_verdict", (), None, 4),
    ]


def test_outcome_names_the_scorer():
    (found,) = closed(call("c", 1), reward(2, scorer="s", scorer_version="2")).result().outcomes
    assert (found.scorer, found.scorer_version, found.scope, found.value) == ("s", "2", "step", 1.0)


def test_outcome_of_a_filtered_reward_names_the_calls_found():
    (found,) = closed(call("c", 1, trainable=False), reward(2)).result().outcomes
    assert (found.outcome, found.calls, found.found) == ("filtered", (), ("c",))


def test_reward_id_used_twice_counts_the_first_time():
    partition = closed(call("c", 1), reward(2, value=1.0, reward_id="x"), reward(3, value=2.0, reward_id="x"))
    assert [(each.value, each.offset) for each in partition.result().outcomes] == [(1.0, 2)]


def test_reward_with_a_target_counts_for_that_call():
    partition = closed(call("a", 1), call("b", 2), reward(3, target=Target("span_id", "a")))
    assert [each.total for each in partition.batch.samples] == [1.0, None]


def test_rewards_whose_sum_is_no_finite_number_make_the_rollout_incomplete():
    """JSON and trainers hold no infinity; each reward alone was fine."""
    partition = closed(call("c", 1), reward(2, value=1.5e308), reward(3, value=1.5e308))
    assert partition.result().status == "incomplete"
    assert partition.result().reason == "sample r/0/c with rewards of inf in all"


# Extra info


def test_extra_info_of_a_step_reward_goes_to_the_sample_with_its_call():
    partition = closed(call("a", 1), reward(2, extra_info=info(acc=1), target=Target("span_id", "a")), call("b", 3))
    assert [json.loads(each.extra_info or b"{}") for each in partition.batch.samples] == [{"acc": 1}, {}]


def test_extra_info_of_a_rollout_reward_goes_to_every_sample():
    """Also to those that the reward's value does not reach."""
    partition = closed(call("a", 1), call("b", 2), reward(3, scope="rollout", extra_info=info(acc=1)))
    assert [json.loads(each.extra_info) for each in partition.batch.samples] == [{"acc": 1}, {"acc": 1}]


def test_extra_info_of_rewards_that_do_not_count_gives_nothing():
    assert sample(call("c", 1), reward(2, value=None, extra_info=info(acc=1))).extra_info == b""


def test_extra_info_key_of_two_rewards_of_one_name_has_the_later_value():
    assert merged(call("c", 1), reward(2, extra_info=info(acc=1)), reward(3, extra_info=info(acc=2))) == {"acc": 2}


def test_extra_info_key_of_rewards_of_different_names_stays_twice():
    events = call("c", 1), reward(2, name="x", extra_info=info(acc=1)), reward(3, name="y", extra_info=info(acc=2))
    assert merged(*events) == {"x/acc": 1, "y/acc": 2}


def test_extra_info_keeps_what_json_does_not_have():
    assert merged(call("c", 1), reward(2, extra_info=info(acc=float("nan")))) == json.loads(info(acc=float("nan")))


def test_extra_info_that_is_refused_costs_only_itself():
    partition = closed(call("c", 1), reward(2, value=0.5, extra_info=b"{broken"), reward(3, extra_info=info(acc=1)))
    (made,) = partition.batch.samples
    assert (made.total, json.loads(made.extra_info), partition.statuses) == (1.5, {"acc": 1}, {"r": "emitted"})


def test_extra_info_that_does_not_decode_is_named_by_its_reward():
    partition = closed(call("c", 1), reward(2, reward_id="mine", extra_info=b"{broken"))
    assert partition.result().extra_info_refused == ("all of reward mine",)


def test_extra_info_under_a_reserved_key_is_refused_by_key():
    partition = closed(call("c", 1), reward(2, extra_info=info(input_ids=1, acc=2)))
    assert partition.result().extra_info_refused == ("input_ids",)


def test_extra_info_refused_for_many_samples_is_named_once():
    partition = closed(call("a", 1), call("b", 2), reward(3, scope="rollout", extra_info=info(input_ids=1)))
    assert partition.result().extra_info_refused == ("input_ids",)


def test_extra_info_refused_is_named_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    """A scorer may send any number of keys; the batch's record stays small."""
    monkeypatch.setattr(closing, "REFUSED_CHARACTERS_MAX", 10)
    bad = json.dumps({f"key{n:02}": n for n in range(300)}).encode()
    partition = closed(call("c", 1), reward(2, extra_info=bad))
    assert partition.result().extra_info_refused == ("key00", "key01", "and 298 more")


@pytest.mark.parametrize(
    "encoded", [b"[]", b"1", b"\xff", b'{"a":NaN}', b'{"a":1,"a":2}', b"{" * 5_000, b'{"\\ud800":1}']
)
def test_extra_info_of_any_bytes_stops_nothing(encoded: bytes):
    partition = closed(call("c", 1), reward(2, extra_info=encoded))
    assert (partition.statuses, len(partition.result().extra_info_refused)) == ({"r": "emitted"}, 1)


# Limits


def test_sample_above_the_limit_makes_its_rollout_incomplete_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closing, "SAMPLE_BYTES_MAX", 1_000)
    partition = closed(call("small", 1), call("large", 2, response_ids=ids(*range(500))))
    assert partition.statuses == {"r": "incomplete"}
    assert partition.result().reason.startswith("sample r/0/large of ")
    assert partition.result().reason.endswith(" bytes, at most 1000")


def test_sample_above_the_limit_takes_all_samples_of_its_rollout_with_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closing, "SAMPLE_BYTES_MAX", 1_000)
    assert closed(call("small", 1), call("large", 2, response_ids=ids(*range(500)))).batch.samples == ()


def test_sample_above_the_limit_is_lost_alone_with_on_incomplete_keep(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closing, "SAMPLE_BYTES_MAX", 1_000)
    partition = closed(call("small", 1), call("large", 2, response_ids=ids(*range(500))), on_incomplete="keep")
    assert [each.sample_id for each in partition.batch.samples] == ["r/0/small"]


def test_error_of_a_failed_rollout_is_cut():
    """Any publisher may send one as large as an event; two would not fit into a batch's record."""
    partition = Partition()
    partition.add(started(), completed(1, status="failed", error="x" * 100_000))
    assert len(partition.result().error or "") == 4_096


def test_samples_of_attached_sources_restore_prompts_within_their_source():
    partition = Partition()
    partition.add(
        started(),
        call("c", 1, prompt_ids=ids(1), response_ids=ids(2)),
        call("a", 0, source=JUDGE, prompt_ids=ids(5), response_ids=ids(6)),
        call("b", 1, source=JUDGE, prompt_base="a", prompt_base_tokens=2, prompt_ids=ids(7)),
        completed(2),
    )
    assert {each.sample_id: numbers(each.prompt_ids) for each in partition.batch.samples} == {
        "r/0/c": [1],
        "r/0/a": [5],
        "r/0/b": [5, 6, 7],
    }


def test_span_with_a_base_of_another_source_is_refused():
    partition = Partition()
    partition.add(
        started(), call("a", 0, source=JUDGE), call("b", 1, prompt_base="a", prompt_base_tokens=2), completed(2)
    )
    assert [each.reason for each in partition.letters] == ["prompt_base"]


def test_span_bytes_after_restoration_stay_as_they_came():
    entry = record(call("b", 1, prompt_base="gone", prompt_base_tokens=2), 0)
    partition = Partition()
    partition.add(started(), entry, completed(2))
    assert partition.letters[0].record.value == entry.value
