"""Samples in one output alone, and samples with another total."""

import pytest
from unit.consumers.comparing.making import compared, rollout, sample


def test_samples_in_both_whose_total_changed_come_with_the_largest_change_first():
    before = rollout(samples=(sample("c", 1.0), sample("d", 0.5), sample("e", 0.0)))
    after = rollout(samples=(sample("c", 0.75), sample("d", -0.5), sample("e", 0.0)))
    found = compared((before, after)).samples
    assert (found.both, found.changed, found.alone) == (3, 2, (0, 0))
    assert [(each.sample_id, each.before, each.after, each.difference) for each in found.largest] == [
        ("r/0/d", 0.5, -0.5, -1.0),
        ("r/0/c", 1.0, 0.75, -0.25),
    ]


def test_total_that_is_not_there_any_more_is_a_change_and_not_a_zero():
    found = compared((rollout(samples=(sample("c", 1.0),)), rollout(samples=(sample("c", None),)))).samples
    assert (found.changed, found.largest[0].after, found.largest[0].difference) == (1, None, None)
    assert (found.totals.after.count, found.totals.after.without) == (0, 1)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            rollout(status="incomplete", reason="scorer judge failed: KeyError"),
            "incomplete: scorer judge failed: KeyError",
        ),
        (
            rollout(status="group_dropped", reason="1 of at least 2 rollouts completed"),
            "group_dropped: 1 of at least 2 rollouts completed",
        ),
        (rollout(status="expired"), "expired"),
        (rollout(untrained="split val"), "split val"),
        (rollout(samples=(sample("a", 1.0, "a", "c"),)), "its call is in another row"),
        (rollout(samples=(sample("a", 1.0),)), "its call is not selected"),
        (rollout(), "none of its calls is selected"),
    ],
)
def test_sample_in_one_alone_says_why_the_other_does_not_have_it(other, why: str):
    selected = rollout(samples=(sample("c", 1.0),))
    found = compared((selected, other)).samples
    assert (found.alone[0], found.why[0]) == (1, {why: 1})
    assert [(each.sample_id, each.why) for each in found.examples[0]] == [("r/0/c", why)]
    swapped = compared((other, selected)).samples
    assert (swapped.alone[1], swapped.why[1]) == (1, {why: 1})
