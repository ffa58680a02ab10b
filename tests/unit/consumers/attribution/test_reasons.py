"""Why a reward went where it did, word for word, with ids and names of its own rollout."""

from rolloutlog.consumers.attribution import AttributionSettings, Entry, RewardEntry, SpanEntry, attribute
from rolloutlog.consumers.attribution.reasons import Reasons


def span(span_id: str, kind: str, parent: str | None = None, start: int = 0, name: str | None = None) -> SpanEntry:
    return SpanEntry(span_id, parent, kind, span_id if name is None else name, start, start)


def call(span_id: str, parent: str | None = None, start: int = 0, **fields: object) -> SpanEntry:
    return SpanEntry(span_id, parent, "call", "chat", start, start, **{"token_count": 2, **fields})


def reward(reward_id: str = "r", value: float | None = 1.0, **fields: object) -> RewardEntry:
    return RewardEntry(reward_id, value, **fields)


def words(*entries: Entry, reward_id: str = "r", reaches: str = "call c", **settings: object) -> str:
    given = AttributionSettings(**settings)
    outcome = attribute(entries, given).outcomes[reward_id]
    return Reasons(entries, given).words(reward_id, outcome, given.policy, reaches)


SQL = span("sql-1", "agent", name="sql")
CHECK = span("check-1", "operation", "sql-1", name="check_query")


# Counted


def test_words_of_a_reward_emitted_beside_its_call_name_the_block_around_both():
    assert words(SQL, CHECK, call("c", "check-1"), reward(parent_id="check-1")) == (
        "attributed to call c by rule enclosing: the last earlier call beneath operation check_query, where it was "
        "emitted"
    )


def test_words_of_a_reward_whose_block_has_no_call_name_the_block_around_it():
    entries = [SQL, CHECK, call("c", "sql-1"), reward(parent_id="check-1")]
    assert words(*entries).endswith("the last earlier call beneath agent sql, around where it was emitted")


def test_words_of_a_reward_emitted_in_its_call_say_so():
    assert words(reward(parent_id="c"), call("c")).endswith("by rule enclosing: it was emitted in that call")


def test_words_of_a_reward_that_its_after_call_decides_say_so():
    entries = [SQL, call("gateway"), reward(parent_id="sql-1", after_call="gateway")]
    assert words(*entries).endswith("the last call that its emitter had seen (after_call)")


def test_words_of_a_reward_without_parent_say_why_no_agent_had_to_be_guessed():
    assert words(call("c"), reward()).endswith(
        "it has no parent, and the last earlier call is meant since all calls have one agent or none"
    )


def test_words_of_a_linked_reward_say_what_its_target_names():
    assert words(call("c", response_id="x"), reward(target=("response_id", "x"))).endswith(
        "by rule linked: its target names that call, response_id 'x'"
    )
    assert words(CHECK, call("c", "check-1"), reward(target=("span_id", "check-1"))).endswith(
        "the last earlier call beneath its target, operation check_query, span 'check-1'"
    )


def test_words_of_a_reward_that_is_split_name_the_calls_up_to_five():
    calls = [call(f"c{number}", "check-1", number) for number in range(7)]
    target = ("operation", "check_query")
    assert words(CHECK, *calls, reward(target=target), link_subtree="split") == (
        "attributed to calls c0, c1, c2, c3, c4 and 2 more by rule linked: the earlier calls beneath its target, "
        "operation check_query, divided evenly"
    )


def test_words_of_a_final_reward_name_what_it_reaches():
    assert words(call("c"), reward(scope="rollout")) == "final, it belongs to the rollout and reaches call c"


def test_words_of_policy_nearest_say_what_it_goes_by():
    assert words(call("c"), reward(), policy="nearest") == (
        "attributed to call c by rule nearest: the last call recorded before it"
    )


# Not counted: what would have to change


def test_words_of_a_revised_reward_name_the_one_that_took_its_place():
    assert words(call("c"), reward(), reward("r-2", supersedes="r")) == "revised by r-2, which supersedes it"
    assert words(call("c"), reward(scope="rollout"), reward("f-2", scope="rollout")) == (
        "revised by f-2, a later reward 'reward' of the whole rollout"
    )


def test_words_of_a_reward_without_verdict_say_what_makes_it_count():
    assert words(call("c"), reward(value=None)) == (
        "no_verdict, the scorer gave None, which counts for nothing: emit another once there is a value"
    )


def test_words_of_a_reward_before_every_call_name_the_first_one_to_link():
    assert words(reward(), call("c")) == (
        "unattributed: no call was recorded before it; emit it after its call, or link it, e.g. to the first one after "
        "it, with target={'span_id': 'c'}"
    )


def test_words_of_a_reward_in_a_rollout_without_calls_say_so():
    assert words(reward()) == (
        "unattributed: the rollout has no call: record the policy's answers, with `rollout.call()` and its `record`"
    )
    assert words(call("c", token_count=0), reward()) == (
        "unattributed: the rollout has no call: none of its spans of kind call (1) has response token ids; record them "
        "there, or in a gateway under the same response id"
    )
    judge = span("j", "evaluator")
    assert words(judge, call("c", "j"), reward()).endswith(
        "every call of the rollout is a judge's (beneath an evaluator); open the policy's outside of it"
    )


def test_words_of_a_reward_in_another_agent_name_the_last_call_to_link():
    critic = span("critic-1", "agent", name="critic")
    tool = span("run-1", "tool", "critic-1", name="run")
    assert words(SQL, call("c", "sql-1"), critic, tool, reward(parent_id="run-1")) == (
        "unattributed: no call was recorded before it beneath tool run or what is around that, up to agent critic, "
        "whose block a reward leaves by a target alone; link it, e.g. to the last call before it of agent sql, with "
        "target={'span_id': 'c'}"
    )


def test_words_of_a_reward_in_an_agents_own_block_name_that_once():
    critic = span("critic-1", "agent", name="critic")
    said = "no call was recorded before it beneath agent critic, whose block a reward leaves by a target alone; link it"
    assert said in words(SQL, call("c", "sql-1"), critic, reward(parent_id="critic-1"))


def test_words_of_a_reward_in_a_block_of_its_own_name_that_alone():
    said = words(SQL, call("c", "sql-1"), span("t", "tool"), reward(parent_id="t"))
    assert said.startswith("unattributed: no call was recorded before it beneath tool t; link it")


def test_words_of_a_reward_in_an_evaluator_say_where_the_climb_began():
    critic = span("critic-1", "agent", name="critic")
    said = words(SQL, call("c", "sql-1"), critic, span("j", "evaluator", "critic-1"), reward(parent_id="j"))
    assert "no call was recorded before it beneath agent critic, around evaluator j, whose block" in said


def test_words_of_a_reward_propose_a_call_that_is_selected_where_there_is_one():
    critic = span("critic-1", "agent", name="critic")
    entries = [call("a", "sql-1"), call("b", "other"), reward(parent_id="critic-1"), SQL, critic]
    assert words(*entries, agent="^sql$").endswith(
        "link it, e.g. to the last selected call before it of agent sql, with target={'span_id': 'a'}"
    )
    assert words(*entries, agent="^nobody$").endswith("with target={'span_id': 'b'}, though that is not selected")


def test_words_of_a_policy_that_chose_nothing_propose_a_link():
    entries = [call("c"), reward(parent_id="x")]
    reasons = Reasons(entries, AttributionSettings())
    outcome = attribute(entries, AttributionSettings(policy="none")).outcomes["r"]
    assert reasons.words("r", outcome, "mine:choose", "") == (
        "unattributed: policy mine:choose chose no call; link it, e.g. to the last call before it, with "
        "target={'span_id': 'c'}"
    )


def test_words_of_a_reward_whose_agents_call_came_later_name_that_call():
    other = call("c", "elsewhere")
    assert words(SQL, other, reward(parent_id="sql-1"), call("late", "sql-1", 5)).endswith(
        "late came later: emit it after that, or link it with target={'span_id': 'late'}"
    )


def test_words_of_a_reward_in_an_evaluator_outside_of_every_block_say_where_to_open_it():
    judge = span("j", "evaluator", name="judge")
    assert words(SQL, call("c", "sql-1"), judge, reward(parent_id="j")) == (
        "unattributed: it was emitted in evaluator judge, which stands in no block: open that inside the agent's, or "
        "link the reward, e.g. with target={'span_id': 'c'}"
    )


def test_words_of_a_reward_whose_parent_was_never_recorded_name_that():
    assert "beneath its parent 'gone' (never recorded); link it" in words(call("c", "x"), reward(parent_id="gone"))


def test_words_of_policy_none_say_that_only_targets_count():
    assert words(call("c"), reward(), policy="none") == (
        "unattributed: policy none counts targets and finals alone; link it, e.g. to the last call before it, with "
        "target={'span_id': 'c'}"
    )


def test_words_of_the_old_matching_say_what_was_missing():
    assert words(reward(), call("c", start=9), policy="first_occurrence") == (
        "unattributed: no selected call that had ended by its time was still free (policy first_occurrence); policy "
        "enclosing goes by where it was emitted, and gives a call any number of rewards"
    )


def test_words_of_an_ambiguous_reward_name_the_agents():
    critic = span("critic-1", "agent", name="critic")
    entries = [SQL, critic, call("c", "sql-1"), call("d", "critic-1"), call("e"), reward()]
    assert words(*entries) == (
        "ambiguous: it has no parent, and the calls have agents critic and sql, and some have none; emit it inside an "
        "agent's block or give it a target"
    )


def test_words_of_a_filtered_reward_name_the_setting_the_call_and_what_it_matched():
    entries = [SQL, CHECK, call("c", "check-1", model="small"), reward(parent_id="check-1")]
    found = "the call found was c"
    tail = "; handed to no other call"
    assert words(*entries, exclude_operation="^check_query$") == (
        f"filtered by exclude_operation=^check_query$: {found}, in operation check_query{tail}"
    )
    assert words(*entries, exclude_agent="sql") == f"filtered by exclude_agent=sql: {found}, of agent sql{tail}"
    assert words(*entries, agent="^critic$") == f"filtered by agent=^critic$: {found}, of agent sql{tail}"
    assert words(*entries, model="large") == f"filtered by model=large: {found}, of model small{tail}"
    assert words(*entries, operation="write") == f"filtered by operation=write: {found}, in operation check_query{tail}"


def test_words_of_a_filtered_reward_say_that_its_call_was_recorded_so():
    assert words(call("c", trainable=False), reward()) == (
        "filtered by trainable=false: the call found was c, which was recorded so; handed to no other call"
    )


def test_words_of_a_filtered_reward_without_settings_name_what_its_call_has():
    entries = [SQL, CHECK, call("c", "check-1"), reward(parent_id="check-1")]
    outcome = attribute(entries, AttributionSettings(exclude_agent="sql")).outcomes["r"]
    assert Reasons(entries, None).words("r", outcome, None, "") == (
        "filtered by the assembler's settings, which are not at hand (--settings FILE): the call found was c, agent "
        "sql, in operation check_query; handed to no other call"
    )


def test_words_of_an_unknown_response_name_those_that_were_recorded():
    entries = [call("c", response_id="a"), call("d", response_id="b"), reward(target=("response_id", "x"))]
    assert words(*entries) == "unresolved: no call has response_id 'x'; response ids recorded: a, b"


def test_words_of_a_response_without_tokens_name_its_span():
    entries = [call("c"), call("bare", response_id="x", token_count=0), reward(target=("response_id", "x"))]
    assert words(*entries) == (
        "unresolved: span bare has response_id 'x', but no response token ids, so it is no call: record them there, or "
        "in a gateway under the same response id"
    )


def test_words_of_a_response_where_no_call_has_an_id_say_how_to_record_one():
    assert words(call("c"), reward(target=("response_id", "x"))) == (
        "unresolved: no call has response_id 'x' or any other: record it with call.record(response_id=...)"
    )


def test_words_of_an_unknown_span_name_the_calls():
    assert words(call("c"), reward(target=("span_id", "x"))) == "unresolved: no span has span_id 'x'; the calls are c"


def test_words_of_a_span_whose_call_came_later_propose_that_call():
    assert words(CHECK, reward(target=("span_id", "check-1")), call("c", "check-1")) == (
        "unresolved: no call beneath operation check_query was recorded before it; c came later: link that, "
        "target={'span_id': 'c'}"
    )


def test_words_of_a_judges_call_say_that_it_is_not_rewarded():
    entries = [span("j", "evaluator"), call("c", "j", response_id="x"), call("d")]
    assert words(*entries, reward(target=("span_id", "c"))) == (
        "unresolved: call chat belongs to a judge (beneath an evaluator), whose calls are not rewarded"
    )
    assert "is a judge's (beneath an evaluator)" in words(*entries, reward(target=("response_id", "x")))


def test_words_of_an_unknown_operation_name_those_that_were_recorded():
    assert words(CHECK, call("c"), reward(target=("operation", "write"))) == (
        "unresolved: no operation is named 'write'; operations recorded: check_query"
    )


def test_words_of_an_operation_without_calls_before_say_so():
    target = ("operation", "check_query")
    assert words(CHECK, call("c"), reward(target=target)) == (
        "unresolved: no call beneath the newest operation 'check_query' was recorded before it; none is beneath it at "
        "all; the calls are c"
    )


def test_words_of_an_operation_that_a_skewed_clock_puts_after_the_reward_know_that_it_was_recorded():
    late = span("check-1", "operation", start=9, name="check_query")
    said = words(late, call("c"), reward(time_ns=1, target=("operation", "check_query")))
    assert said.startswith("unresolved: no call beneath the newest operation 'check_query' was recorded before it")


def test_words_of_an_operation_in_a_rollout_without_calls_say_what_is_missing():
    assert words(CHECK, reward(target=("operation", "check_query"))).endswith(
        "none is beneath it at all; the rollout has no call: record the policy's answers, with `rollout.call()` and "
        "its `record`"
    )


def test_words_of_10_000_rewards_in_a_tree_of_10_000_levels_are_said_without_recursion():
    entries: list[Entry] = [call("c", "s9999")]
    entries += [span(f"s{n}", "operation", f"s{n - 1}" if n else None) for n in range(10_000)]
    entries += [reward(f"r{n}", parent_id="s9999") for n in range(10_000)]
    outcomes = attribute(entries, AttributionSettings()).outcomes
    reasons = Reasons(entries, AttributionSettings())
    said = {reasons.words(reward_id, outcome, "enclosing", "") for reward_id, outcome in outcomes.items()}
    assert said == {
        "attributed to call c by rule enclosing: the last earlier call beneath operation s9999, where it was emitted"
    }
