"""Groups whose rollouts rank in another order, or are on the other side of the mean."""

import sys

from unit.consumers.comparing.making import Pair, compared, rollout

from rolloutlog.consumers.comparing.advantages import AdvantageResult


def group(before: list[float | None], after: list[float | None], group_id: str = "g") -> list[Pair]:
    return [
        (rollout(f"r{index}", one, group_id=group_id), rollout(f"r{index}", other, group_id=group_id))
        for index, (one, other) in enumerate(zip(before, after, strict=True))
    ]


def advantages(*groups: list[Pair], top: int = 10) -> AdvantageResult:
    return compared(*groups, top=top).advantages


def test_group_that_keeps_order_and_signs_has_not_changed():
    found = advantages(group([0.0, 0.5, 1.0, 1.0], [0.1, 0.2, 0.8, 0.9]))
    assert (found.groups, found.rollouts, found.reordered, found.flips, found.largest) == (1, 4, 0, 0, ())


def test_better_rollout_that_becomes_the_worse_one_is_another_order_with_two_flips():
    found = advantages(group([0.0, 1.0], [0.9, 0.1]))
    assert (found.reordered, found.flipped, found.flips) == (1, 1, 2)
    (change,) = found.largest
    assert (change.group_id, change.rollouts, change.before, change.after) == (
        "g",
        ("r0", "r1"),
        (0.0, 1.0),
        (0.9, 0.1),
    )


def test_advantage_can_change_its_sign_in_the_same_order():
    found = advantages(group([0.0, 1.0, 1.1], [0.0, 0.1, 1.1]))
    assert (found.reordered, found.flipped, found.flips) == (0, 1, 1)


def test_rollouts_that_were_alike_and_are_not_any_more_are_no_other_order():
    found = advantages(group([0.0, 1.0, 1.0], [0.0, 0.8, 0.9]))
    assert found.reordered == 0


def test_groups_without_differences_on_one_side_are_counted():
    found = advantages(
        group([0.0, 1.0], [0.5, 0.5], "a"), group([1.0, 1.0], [0.0, 1.0], "b"), group([1, 1], [2, 2], "c")
    )
    assert (found.flat_after, found.flat_before, found.flips) == (1, 1, 0)


def test_rollouts_without_a_reward_on_either_side_are_not_compared():
    assert advantages(group([0.0, None, 1.0], [1.0, 0.0, None])).groups == 0


def test_groups_in_which_most_signs_change_come_first():
    found = advantages(
        group([0.0, 0.1, 1.0, 1.1], [0.0, 1.0, 0.1, 1.1], "two"), group([0, 0, 1, 1], [1, 1, 0, 0], "four"), top=1
    )
    assert [(each.group_id, each.flips) for each in found.largest] == [("four", 4)]


def test_rewards_of_any_size_are_compared():
    greatest = sys.float_info.max
    assert advantages(group([-greatest, greatest], [greatest, -greatest])).flips == 2


def test_what_rounding_leaves_of_a_mean_is_no_sign():
    found = advantages(group([0.1, 0.1, 0.1], [0.1, 0.1, 0.1]))
    assert (found.flips, found.flat_before, found.flat_after) == (0, 0, 0)
