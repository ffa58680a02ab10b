"""Two outputs side by side."""

from unit.consumers.comparing.making import compared, reward, rollout, sample

from rolloutlog.consumers.comparing.comparison import Comparison


def test_values_are_compared_by_name_kind_and_policy_version():
    step = (reward("s", 0.5, "attributed"),)
    found = compared(
        (rollout("a", 0.0, policy_version=1), rollout("a", 1.0, policy_version=1, rewards=step)),
        (rollout("b", 1.0, policy_version=2), rollout("b", 1.0, policy_version=2)),
    )
    final, of_step = found.rewards
    assert (final.name, final.kind, of_step.kind) == ("reward", "final", "step")
    assert (final.spreads.before.mean, final.spreads.after.mean, final.spreads.difference) == (0.5, 1.0, 0.5)
    assert [(each.policy_version, each.before.mean, each.after.mean) for each in final.spreads.versions] == [
        (1, 0.0, 1.0),
        (2, 1.0, 1.0),
    ]
    assert (of_step.spreads.before.without, of_step.spreads.after.without) == (2, 1)


def test_unknown_policy_version_comes_last_and_is_that_of_the_side_that_knows_it():
    found = compared(
        (rollout("a", 0.0, policy_version=None), rollout("a", 0.0, policy_version=None)),
        (rollout("b", 0.0, policy_version=4), rollout("b", 0.0, policy_version=None)),
    )
    assert [each.policy_version for each in found.rewards[0].spreads.versions] == [4, None]


def test_values_of_one_side_alone_are_gained_or_lost_and_never_zero():
    found = compared((rollout("a"), rollout("a", 0.0)), (rollout("b", 0.0), rollout("b"))).rewards[0]
    assert (found.changed, found.gained, found.lost) == (0, 1, 1)
    assert [(each.rollout_id, each.before, each.after, each.difference) for each in found.largest] == [
        ("a", None, 0.0, None),
        ("b", 0.0, None, None),
    ]


def test_rollouts_that_changed_most_come_first_with_the_reward_that_did_it():
    old, new = reward("main:3", 1.0), reward("judge:0", 0.25, scorer="judge", scorer_version="2")
    revised = old._replace(outcome="revised", rule=None)
    found = compared(
        (rollout("a", 1.0, rewards=(old,)), rollout("a", 0.75)),
        (rollout("b", 1.0, rewards=(old,)), rollout("b", 0.25, rewards=(revised, new))),
        top=1,
    ).rewards[0]
    (change,) = found.largest
    assert (change.rollout_id, change.before, change.after, change.difference) == ("b", 1.0, 0.25, -0.75)
    assert change.by == new
    assert found.changed == 2


def test_mean_by_task_has_the_largest_changes_first_and_counts_of_those_with_a_value():
    def pair(name: str, task: str, before: float, after: float | None):
        return rollout(name, before, task_id=task), rollout(name, after, task_id=task)

    found = compared(
        pair("a", "small", 0.0, 0.25),
        pair("b", "large", 1.0, 0.0),
        pair("c", "large", 1.0, None),
        pair("d", "same", 1.0, 1.0),
    ).rewards[0]
    assert [(each.task_id, each.before, each.after, each.difference) for each in found.tasks] == [
        ("large", 1.0, 0.0, -1.0),
        ("small", 0.0, 0.25, 0.25),
        ("same", 1.0, 1.0, 0.0),
    ]
    assert (found.tasks[0].before_count, found.tasks[0].after_count) == (2, 1)


def test_rollouts_that_never_ran_are_in_no_statistics():
    found = compared((rollout("a", status="surplus"), rollout("a", status="surplus")))
    assert (found.both, found.rollouts, found.rewards) == (1, 0, ())


def test_rollout_that_was_not_emitted_on_a_side_is_in_no_value_of_that_side():
    """Its old rewards are still there, but nothing of it is trained."""
    found = compared(
        (rollout("a", 0.5), rollout("a", 0.5, status="incomplete")),
        (rollout("b", 1.0), rollout("b", 1.0)),
        (rollout("c", 0.0, status="expired"), rollout("c", 0.0, status="expired")),
    )
    (reward_,) = found.rewards
    before, after = reward_.spreads.before, reward_.spreads.after
    assert (before.count, before.without, before.mean) == (2, 0, 0.75)
    assert (after.count, after.without, after.mean) == (1, 0, 1.0)
    assert (reward_.changed, reward_.gained, reward_.lost, reward_.largest) == (0, 0, 0, ())
    assert found.not_emitted == reward_.not_emitted == (1, 2)
    assert not reward_.alike


def test_policy_version_of_which_nothing_was_emitted_has_no_row():
    found = compared(
        (rollout("a", 0.5, policy_version=1, status="failed"), rollout("a", policy_version=1, status="failed")),
        (rollout("b", 1.0, policy_version=2), rollout("b", 1.0, policy_version=2)),
    )
    assert [each.policy_version for each in found.rewards[0].spreads.versions] == [2]


def test_names_that_no_reward_has_are_told_with_those_that_there_are():
    step = (reward("s", None, "no_verdict", name="style"),)
    comparison = Comparison(names=["style", "nope", "reward"])
    comparison.add_pairs([(rollout("a", rewards=step), rollout("a", status="failed"))])
    comparison.add_alone(1, rollout("b", 1.0))
    found = comparison.result()
    assert (found.names, found.unknown) == (("reward", "style"), ("nope",))


def test_rollout_with_another_attempt_is_told_and_not_compared():
    found = compared((rollout("a", 0.0), rollout("a", 1.0, attempt=1)))
    assert (found.both, found.rollouts, found.endings.attempts, found.rewards) == (1, 0, 1, ())
    (example,) = found.endings.status_examples
    assert example.attempts == (0, 1)


def test_rollouts_of_one_side_alone_are_counted_apart():
    comparison = Comparison()
    comparison.add_alone(0, rollout("a", samples=(sample("c"), sample("d"))))
    comparison.add_alone(1, rollout("b", samples=(sample("c"),)))
    found = comparison.result()
    assert (found.both, found.before_alone, found.before_alone_samples) == (0, 1, 2)
    assert (found.after_alone, found.after_alone_samples) == (1, 1)


def test_names_that_are_asked_for_are_all_that_is_looked_at():
    rewards = (reward("a", 1.0, "attributed", name="style"), reward("b", 1.0, "attributed", name="other"))
    found = compared((rollout("r", 1.0, rewards=rewards), rollout("r", 1.0)), names=["style"])
    assert [each.name for each in found.rewards] == ["style"]
    assert found.endings.alone == ({("style", None, None): 1}, {})


def test_status_that_changed_has_both_reasons():
    after = rollout("a", status="incomplete", reason="scorer judge failed: TimeoutError")
    found = compared((rollout("a"), after)).endings
    assert found.statuses == {("emitted", "incomplete"): 1}
    (example,) = found.status_examples
    assert (example.rollout_id, example.statuses) == ("a", ("emitted", "incomplete"))
    assert example.reasons == (None, "scorer judge failed: TimeoutError")


def test_outcome_that_changed_is_told_with_its_rule():
    before = reward("m:1", 0.2, "unattributed", name="parses")
    after = before._replace(outcome="attributed", rule="nearest", calls=5)
    found = compared((rollout("a", rewards=(before,)), rollout("a", rewards=(after,)))).endings
    assert (found.rewards, found.outcomes) == (1, {("parses", "unattributed", "attributed (nearest)"): 1})


def test_reward_that_counts_for_other_calls_is_told_so():
    before = reward("m:1", 0.2, "attributed", rule="enclosing", calls=4)
    found = compared((rollout("a", rewards=(before,)), rollout("a", rewards=(before._replace(calls=5),)))).endings
    assert found.outcomes == {("reward", "attributed (enclosing)", "other calls"): 1}


def test_rewards_of_one_side_alone_are_counted_by_name_and_scorer():
    added = reward("judge:0", 0.5, scorer="judge", scorer_version="2")
    found = compared((rollout("a"), rollout("a", rewards=(added,)))).endings
    assert found.alone == ({}, {("reward", "judge", "2"): 1})
