"""Folding again: what closed, with the events that counted."""

from support.building import call, completed, expired, group_closed, record, reward, started

from rolloutlog.consumers.attribution import Entry, RewardEntry
from rolloutlog.consumers.closing import entries_of
from rolloutlog.consumers.explaining.refolding import NOTHING, Refold
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.events import Event

OTHER = "main.00000000000000bb"


def ids(entries: list[Entry]) -> list[str]:
    return [each.reward_id if isinstance(each, RewardEntry) else each.span_id for each in entries]


def closed(*events: Event) -> list[tuple[str, list[str], str | None]]:
    refold = Refold(0, FoldSettings())
    found = []
    for offset, event in enumerate(events):
        it = refold.add(record(event, offset))
        found += [(each.rollout_id, ids(entries_of(each, 0)), it.group_id) for each in it.rollouts]
    return found


def test_refold_gives_a_rollout_at_the_event_that_closes_it_with_the_group_it_closes():
    events = [started("a", group_size=2), call("c", 1, "a"), reward(2, "a", reward_id="w"),
              started("b", group_size=2), completed(3, "a"), call("d", 1, "b"), completed(2, "b")]  # fmt: skip
    assert closed(*events) == [("a", ["c", "w"], None), ("b", ["d"], "g")]


def test_refold_leaves_out_what_the_fold_left_out():
    events = [started("a", attempts_max=2), call("old", 1, "a"), started("a", attempt=1, attempts_max=2),
              call("c", 1, "a", attempt=1), call("c", 1, "a", attempt=1),
              call("other", 1, "a", attempt=1, source=OTHER), completed(2, "a", attempt=1),
              reward(3, "a", attempt=1)]  # fmt: skip
    assert closed(*events) == [("a", ["c"], "g")]


def test_refold_gives_expired_rollouts_and_those_that_their_group_closes():
    assert closed(started("a"), call("c", 1, "a"), expired(1, "a")) == [("a", ["c"], "g")]
    opened = [started("a", group_size=None), call("c", 1, "a"), started("b", group_size=None)]
    assert closed(*opened, group_closed()) == [("a", ["c"], "g"), ("b", [], "g")]


def test_refold_of_anything_else_closes_nothing():
    refold = Refold(0, FoldSettings())
    broken = record(started("a"), 0)._replace(value=b"", headers=())
    assert refold.add(broken) is NOTHING
    assert refold.add(record(started("a"), 1)) is NOTHING
    assert refold.find("g", "a") is not None
    assert refold.find("g", "b") is None
