"""Which settings explain a rollout's record: those of its hash, or those that give the same."""

from dataclasses import replace

from support.building import call, completed, reward, started
from unit.consumers.explaining.test_finding import found, log_of, new_record

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.batches import RewardOutcome
from rolloutlog.consumers.closing import reward_entry
from rolloutlog.consumers.explaining.account import Account, account_of
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.events import RewardRecorded

EVENTS = [
    started("rollout-1"),
    call("c", 1, "rollout-1"),
    call("d", 2, "rollout-1"),
    reward(3, "rollout-1", reward_id="s", value=0.5),
    reward(4, "rollout-1", reward_id="f", scope="rollout"),
    completed(5, "rollout-1"),
]


def with_(**attribution: object) -> FoldSettings:
    return FoldSettings(attribution=AttributionSettings(**attribution))


def account(recorded: FoldSettings, *at_hand: FoldSettings) -> Account:
    return account_of(found(log_of(*map(new_record, EVENTS), settings=recorded), "rollout-1"), at_hand)


def test_account_with_settings_of_the_same_hash_knows_them_for_sure():
    it = account(with_(final="every_call"), FoldSettings(), with_(final="every_call"))
    assert (it.exact, it.settings) == (True, AttributionSettings(final="every_call"))


def test_account_with_settings_that_give_the_same_goes_by_them():
    it = account(FoldSettings(min_group=1), FoldSettings())
    assert (it.exact, it.settings) == (False, AttributionSettings())
    assert it.attribution is not None


def test_account_with_another_policy_at_hand_takes_the_one_that_the_outcomes_name():
    it = account(FoldSettings(attribution=AttributionSettings(policy="nearest"), min_group=1), FoldSettings())
    assert it.settings == AttributionSettings(policy="nearest")


def test_account_with_settings_that_give_other_totals_knows_none():
    it = account(with_(final="every_call"), FoldSettings())
    assert (it.settings, it.attribution) == (None, None)
    assert it.sentences["f"].endswith("final, it belongs to the rollout and reaches calls c, d")


def test_account_of_a_final_reward_that_no_sample_carries_says_why():
    assert account(with_(final="none"), with_(final="none")).sentences["f"].endswith("reaches no sample: final=none")


def test_account_of_calls_that_are_not_selected_names_them():
    settings = FoldSettings(attribution=AttributionSettings(model="policy"))
    assert account(settings, settings).not_selected == frozenset({"c", "d"})


JUDGED = RewardRecorded(
    rollout_id="rollout-1", attempt=0, source="judge.00000000000000bb", sequence=0, time_ns=0, value=0.25,
    scope="rollout", scorer="judge", scorer_version="1",
)  # fmt: skip


def in_output(reward_id: str, given: RewardRecorded, *recorded: RewardRecorded, **changed: object) -> Account:
    """As an output has it in which a scorer's reward took the place of another."""
    it = found(log_of(*map(new_record, EVENTS)), "rollout-1")
    assert it.result is not None
    outcomes = [
        replace(each, outcome="revised", rule=None, calls=()) if each.reward_id == reward_id else each
        for each in it.result.outcomes
    ]
    verdict = RewardOutcome(
        given.id, given.name, given.value, given.scope, "final", "final", (), (), given.scorer, given.scorer_version, -1
    )
    return account_of(replace(it, result=replace(it.result, outcomes=(*outcomes, verdict)), **changed), (), recorded)


def test_account_of_an_output_names_the_scorers_reward_that_revised_another():
    """Its events do not have it, the batch does."""
    words = (
        "reward f (reward 1, rollout): revised by judge.00000000000000bb:0, a later reward 'reward' of the whole "
        "rollout"
    )
    assert in_output("f", JUDGED).sentences["f"] == words
    assert in_output("f", JUDGED, entries=None, events=(), cut=True).sentences["f"] == words


def test_account_of_an_output_names_what_supersedes_a_reward_where_it_is_recorded():
    given = replace(JUDGED, supersedes="s")
    words = "reward s (reward 0.5, step): revised by judge.00000000000000bb:0, which supersedes it"
    assert in_output("s", given, given).sentences["s"] == words
    assert in_output("s", given, given, entries=None, events=(), cut=True).sentences["s"] == words
    assert in_output("s", given).sentences["s"] == "reward s (reward 0.5, step): revised, a later reward took its place"


def test_account_of_an_output_takes_recorded_rewards_for_its_own_that_are_the_same():
    assert list(in_output("f", JUDGED, JUDGED).scored) == [JUDGED.id]
    assert in_output("f", JUDGED, replace(JUDGED, value=0.5)).scored == {}
    assert in_output("f", JUDGED, JUDGED).entries[-1] == reward_entry(JUDGED)


def test_account_of_an_open_rollout_says_how_it_stands_by_the_settings_at_hand():
    it = account_of(found(log_of(*map(new_record, EVENTS[:-1])), "rollout-1"), (with_(policy="none"),))
    assert it.sentences["s"] == (
        "reward s (reward 0.5, step): not decided yet; as it stands: unattributed: policy none counts targets and "
        "finals alone; link it, e.g. to the last call before it, with target={'span_id': 'd'}"
    )
