"""Which groups are wanted."""

import pytest
from support.building import started

from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.state import Attempt, Group, Rollout
from rolloutlog.eventstore.errors import InvalidSettings


def group(group_id: str = "g", *rollout_ids: str) -> Group:
    made = Group(group_id, None, 0, 0)
    for index, rollout_id in enumerate(rollout_ids):
        made.rollouts[rollout_id] = Rollout(rollout_id, index, 0, 0, Attempt(0, started(rollout_id), 0, 0))
    return made


@pytest.mark.parametrize(("closed_ns", "wanted"), [(9, False), (10, True), (19, True), (20, False)])
def test_selection_by_time_wants_what_closed_from_then_on_and_before(closed_ns: int, wanted: bool):
    assert Selection(10, 20).wants(group(), closed_ns) is wanted


def test_selection_names_what_it_finds_in_a_group_that_is_told_by_its_ids():
    selection = Selection(groups=("g",), rollouts=("r", "s"))
    assert selection.named("g", ["q", "r"]) == ["group g", "rollout r"]
    assert selection.named("h", ["q"]) == []


def test_selection_of_nothing_wants_all():
    assert Selection().wants(group(), 0)


def test_selection_by_id_wants_the_groups_and_those_of_the_rollouts():
    selection = Selection(groups=("g",), rollouts=("r",))
    assert selection.wants(group("g"), 0)
    assert selection.wants(group("h", "q", "r"), 0)
    assert not selection.wants(group("h", "q"), 0)


def test_selection_by_id_and_time_wants_what_is_both():
    assert not Selection(from_ns=5, groups=("g",)).wants(group("g"), 4)


def test_selection_tells_which_ids_were_not_found():
    selection = Selection(groups=("g", "h"), rollouts=("r", "s"))
    found = {*selection.named_by(group("g", "s"))}
    assert selection.missing(found) == ["group h", "rollout r"]


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [(Selection(), True), (Selection(to_ns=6), True), (Selection(to_ns=5), False), (Selection(from_ns=1), False),
     (Selection(groups=("g",)), False)],
)  # fmt: skip
def test_selection_wants_an_end_of_the_run_only_where_all_before_it_is_read(selection: Selection, wanted: bool):
    assert selection.wants_end(5) is wanted


@pytest.mark.parametrize("end_ns", [1_000, 2_000])
def test_selection_that_ends_where_it_begins_or_before_is_refused(end_ns: int):
    expected = "expected a beginning before the end, got 1970-01-01T00:00:00.000002Z and 1970-01-01T00:00:00.00000"
    with pytest.raises(InvalidSettings, match=expected):
        Selection(2_000, end_ns).check()


@pytest.mark.parametrize("given", ["", "\udcff"])
def test_selection_of_what_can_be_no_id_is_refused(given: str):
    with pytest.raises(InvalidSettings, match="--rollout: expected an id, got"):
        Selection(rollouts=(given,)).check()
