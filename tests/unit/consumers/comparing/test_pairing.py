"""Which rollout of one output is which of the other."""

from unit.consumers.comparing.making import rollout

from rolloutlog.consumers.comparing.held import HeldGroup, HeldRollout
from rolloutlog.consumers.comparing.pairing import Pairing


def group(group_id: str, *rollouts: HeldRollout) -> HeldGroup:
    return HeldGroup(group_id, rollouts)


def waiting(*groups: HeldGroup) -> Pairing:
    pairing = Pairing()
    for each in groups:
        pairing.wait(each)
    return pairing


def test_pairing_finds_a_rollout_by_its_group_and_id():
    pairing = waiting(group("g", rollout("a", 0.0), rollout("b", 0.0)), group("h", rollout("c", 0.0)))
    found = pairing.match(group("g", rollout("b", 1.0), rollout("a", 2.0)))
    assert [(one.rollout_id, one.reward, other.reward) for one, other in found.pairs] == [
        ("b", 0.0, 1.0),
        ("a", 0.0, 2.0),
    ]
    assert found.alone == []
    assert [each.rollout_id for each in pairing.rest()] == ["c"]


def test_pairing_tells_rollouts_of_one_side_alone():
    pairing = waiting(group("g", rollout("a"), rollout("b")))
    found = pairing.match(group("g", rollout("a"), rollout("new")))
    assert [each.rollout_id for each in found.alone] == ["new"]
    assert [each.rollout_id for each in pairing.match(group("h", rollout("d"))).alone] == ["d"]
    assert [each.rollout_id for each in pairing.rest()] == ["b"]


def test_rollout_that_waits_twice_counts_as_its_last_batch_says():
    pairing = waiting(group("g", rollout("a", 1.0), rollout("b", 1.0)), group("g", rollout("a", 2.0)))
    found = pairing.match(group("g", rollout("a"), rollout("b")))
    assert [one.reward for one, _ in found.pairs] == [2.0, 1.0]
    assert pairing.repeated == 1


def test_rollout_that_comes_twice_counts_as_its_first_batch_says():
    pairing = waiting(group("g", rollout("a")))
    first = pairing.match(group("g", rollout("a", 1.0)))
    second = pairing.match(group("g", rollout("a", 2.0)))
    assert [other.reward for _, other in first.pairs] == [1.0]
    assert (second.pairs, second.alone, pairing.repeated) == ([], [], 1)


def test_groups_of_one_id_that_come_apart_are_matched_with_what_is_left():
    pairing = waiting(group("g", rollout("a"), rollout("b"), rollout("c")))
    assert len(pairing.match(group("g", rollout("a"))).pairs) == 1
    assert len(pairing.match(group("g", rollout("b"))).pairs) == 1
    assert [each.rollout_id for each in pairing.rest()] == ["c"]


def test_pairing_without_groups_has_nothing_left():
    assert list(Pairing().rest()) == []
