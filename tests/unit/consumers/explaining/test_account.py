"""Which settings explain a rollout's record: those of its hash, or those that give the same."""

from support.building import call, completed, reward, started
from unit.consumers.explaining.test_finding import found, log_of, new_record

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.explaining.account import Account, account_of
from rolloutlog.consumers.settings import FoldSettings

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


def test_account_of_an_open_rollout_says_how_it_stands_by_the_settings_at_hand():
    it = account_of(found(log_of(*map(new_record, EVENTS[:-1])), "rollout-1"), (with_(policy="none"),))
    assert it.sentences["s"] == (
        "reward s (reward 0.5, step): not decided yet; as it stands: unattributed: policy none counts targets and "
        "finals alone; link it, e.g. to the last call before it, with target={'span_id': 'd'}"
    )
