"""Groups, and rollouts beyond the size that was announced."""

import numpy as np
import pytest

from rolloutlog.eventstore import EventPublisher, Group, InvalidEvent, InvalidSettings
from rolloutlog.eventstore.group import GroupCount


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"size": 0},
            "Group refused: expected an integer from 1 to 2147483647, got 0 at $.size; give none for a group that is "
            "open until `close_group`",
        ),
        ({"size": 2.0}, "got 2.0 at $.size"),
        ({"size": True}, "got True at $.size"),
        ({"task_id": ""}, "expected text that is not empty, got '' at $.task_id"),
        ({"task_id": 5}, "expected text, got 5 at $.task_id"),
    ],
)
def test_group_with_a_bad_argument_is_refused_where_it_is_made(published, arguments, text):
    with pytest.raises(InvalidEvent) as caught:
        published.publisher.group(**{"task_id": "t"} | arguments)
    assert text in str(caught.value)
    with pytest.raises(InvalidEvent):
        Group(**{"group_id": "g", "task_id": "t"} | arguments)


def test_group_takes_a_numpy_size(published):
    assert published.publisher.group("t", size=np.int64(4)).size == 4


@pytest.mark.parametrize("group", ["x", None, {"group_id": "g"}])
def test_close_group_of_something_else_is_refused_by_name(published, group):
    with pytest.raises(InvalidEvent, match=r"close_group refused: expected a Group, as .*, got .* at \$\.group"):
        published.publisher.close_group(group)


def run(events: EventPublisher, group: Group | None, rollout_id: str, attempt: int = 0) -> None:
    task = None if group else "t"
    with events.rollout(task, group, rollout_id, attempt, attempts_max=9):
        pass


def test_rollout_beyond_the_groups_size_is_warned_of_once(published, caplog):
    group = Group("g-1", "t", 2)
    for number in range(5):
        run(published.publisher, group, f"r-{number}")
    assert [record.getMessage() for record in caplog.records] == [
        "group g-1 of task t was announced with size 2, and rollout r-2 is one more: it will count as surplus, or be "
        "refused when the group is closed, and is not trained on; further ones are not named"
    ]


def test_rollouts_that_are_as_many_as_announced_are_not_warned_of(published, caplog):
    for attempt in range(3):
        run(published.publisher, Group("g-1", "t", 1), "r-1", attempt)  # further attempts are the same rollout
    for number in range(5):
        run(published.publisher, Group("g-2", "t"), f"o-{number}")
        run(published.publisher, None, f"alone-{number}")
    for number in range(5):
        published.publisher.rollout(group=Group("g-3", "t", 1), rollout_id=f"n-{number}")  # never started
    assert caplog.records == []


def test_memory_of_group_counts_is_bounded(caplog):
    count = GroupCount(rollouts_max=10)
    for number in range(100):
        count.start(Group(f"g-{number}", "t", 3), "r-1")
        count.start(Group("large", "t", 50), f"r-{number}")
    assert sum(map(len, count._groups.values())) <= 10
    assert count._count == sum(map(len, count._groups.values()))


@pytest.mark.parametrize("group", [Group("g-1", "t", 4), Group("g-1", "täsk 1")])
def test_group_as_text_gives_the_group_back(group):
    assert Group.parse(group.text()) == group


def test_text_of_a_ref_is_no_group(published):
    text = published.publisher.rollout("t").ref("judge").text()
    with pytest.raises(InvalidSettings, match="Group not read: expected text that begins with 'rolloutlog-group-1"):
        Group.parse(text)
