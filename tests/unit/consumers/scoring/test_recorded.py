"""Rewards recorded in the rewards topic: which of them count, and in which order."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from support.memory_log import MemoryLog
from unit.consumers.scoring.making import loaded, run, score_with
from unit.consumers.scoring.rollouts import conversation, view

from rolloutlog.consumers.scoring import LoadedScorer, Recorded, Reward, RolloutView, Scored, records_of
from rolloutlog.eventstore.codec import parse_header
from rolloutlog.eventstore.events import RewardRecorded
from rolloutlog.eventstore.log import REWARDS, NewRecord, Record, TopicSettings


def gives(value: float, name: str = "judge", version: str = "1", reward: str = "reward") -> LoadedScorer:
    return loaded(lambda rollout: [Reward(value, reward), Reward(value, f"{reward}-too")], name, version)


def rewards(value: float, name: str = "judge", version: str = "1", reward: str = "reward") -> Sequence[RewardRecorded]:
    return scored([gives(value, name, version, reward)]).record


def scored(scorers: list[LoadedScorer], recorded: Recorded | None = None) -> Scored:
    (found,) = run(score_with(scorers, view(*conversation()), recorded=recorded))
    return found


def recorded(*groups: Sequence[RewardRecorded] | Sequence[NewRecord]) -> Recorded:
    """Each group recorded in a transaction, at offsets from 0, a second apart."""
    found = Recorded()
    offset = 0
    for group in groups:
        for each in group if group and isinstance(group[0], NewRecord) else records_of(group, "g", 0):  # type: ignore[arg-type]
            assert isinstance(each, NewRecord)
            found.add(Record(REWARDS, 0, offset, offset * 1_000, each.key, each.value, each.headers))
            offset += 1
    return found


def values(found: Recorded) -> list[tuple[int, str, float | None]]:
    return [(offset, reward.name, reward.value) for offset, reward in found.of("r", 0)]


def test_records_have_the_groups_key_and_the_header_of_an_event():
    one, two = records_of(rewards(0.5), "g", 3)
    assert (one.topic, one.partition, one.key) == (REWARDS, 3, b"g")
    header = parse_header(dict(one.headers)["e"])
    assert (header.kind, header.sequence, header.source) == ("RewardRecorded", 0, "judge.7eb8f48ed40bc552")
    of = dict(two.headers)["set"] or b""
    assert of.startswith(b"1/2/")
    assert of[4:] == (dict(one.headers)["set"] or b"")[4:]


def test_recorded_rewards_are_those_that_were_scored():
    made = rewards(0.5)
    assert [reward for _, reward in recorded(made).of("r", 0)] == list(made)
    assert (recorded(made).of("r", 1), recorded(made).of("s", 0)) == ([], [])


def test_of_a_scorers_versions_the_one_recorded_last_counts_alone():
    found = recorded(rewards(0.1, version="1"), rewards(0.2, version="2"), rewards(0.3, "other"))
    assert values(found) == [(2, "reward", 0.2), (3, "reward-too", 0.2), (4, "reward", 0.3), (5, "reward-too", 0.3)]
    assert [(each.scorer, each.version, each.offset) for each in found.sets("r", 0)] == [
        ("judge", "1", 1),
        ("judge", "2", 3),
        ("other", "1", 5),
    ]


def test_version_recorded_again_counts_again():
    found = recorded(rewards(0.1, version="1"), rewards(0.2, version="2"), rewards(0.1, version="1"))
    assert [value for _, _, value in values(found)] == [0.1, 0.1]


def test_of_two_recordings_of_one_identity_the_first_counts_whole_even_when_they_interleave():
    one, other = records_of(rewards(0.1), "g", 0), records_of(rewards(0.9), "g", 0)
    assert [value for _, _, value in values(recorded([one[0], other[0], one[1], other[1]]))] == [0.1, 0.1]


def test_set_that_retention_has_cut_counts_for_nothing_and_a_whole_one_of_the_same_identity_does():
    one, other = records_of(rewards(0.1), "g", 0), records_of(rewards(0.9), "g", 0)
    assert values(recorded([one[1]])) == []
    assert [value for _, _, value in values(recorded([one[1]], other))] == [0.9, 0.9]


def test_rewards_without_the_header_of_their_set_count_as_far_as_they_are_whole():
    bare = [each._replace(headers=each.headers[:1]) for each in records_of(rewards(0.4), "g", 0)]
    assert [value for _, _, value in values(recorded(bare))] == [0.4, 0.4]
    assert values(recorded([bare[1]])) == []


def test_record_that_is_no_reward_is_named_and_costs_only_itself():
    good = records_of(rewards(0.4), "g", 0)
    bad = records_of(rewards(0.5, "other"), "g", 0)
    found = recorded(
        [
            NewRecord(REWARDS, 0, b"g", b"x", (("e", b"nonsense"),)),
            *good,
            bad[0]._replace(value=b"\xc3\x01broken"),
            bad[1],
        ]
    )
    assert [value for _, _, value in values(found)] == [0.4, 0.4]
    assert found.unread[0][0] == 0
    assert found.unread[1][1] == "expected the values that its header `set` names, got others"


def test_rewards_whose_body_says_another_rollout_count_for_nothing():
    (one, two) = rewards(0.4)
    lying = records_of([replace(one, rollout_id="s"), replace(two, rollout_id="s")], "g", 0)
    headers = records_of([one, two], "g", 0)
    mixed = [
        each._replace(headers=(("e", head.headers[0][1]), each.headers[1]))
        for each, head in zip(lying, headers, strict=True)
    ]
    found = recorded(mixed)
    assert values(found) == []
    assert "expected header and body to agree" in found.unread[0][1]


def test_reading_stops_at_an_offset_or_a_time_and_keeps_the_rollouts_asked_for():
    async def scenario() -> list[list[float | None]]:
        log = MemoryLog(log_time_ns=count(1_000).__next__)
        await log.create([TopicSettings(REWARDS, 1, None, 2**20)])
        times = []
        for value, version in ((0.1, "1"), (0.2, "2")):
            made = [
                reward for one in await score_with([gives(value, version=version)], view()) for reward in one.record
            ]
            stored = await log.append(records_of(made, "g", 0))
            times.append(stored[0].log_time_ns)
        found = [
            await Recorded.read(log, 0, None),
            await Recorded.read(log, 0, 2),
            await Recorded.read(log, 0, 0),
            await Recorded.read(log, 0, None, before_ns=times[1]),
            await Recorded.read(log, 0, None, rollouts=("s",)),
        ]
        return [[reward.value for _, reward in each.of("r", 0)] for each in found]

    assert run(scenario()) == [[0.2, 0.2], [0.1, 0.1], [], [0.1, 0.1], []]


def test_reading_a_log_without_the_topic_finds_none():
    assert run(Recorded.read(MemoryLog(), 0, None)).of("r", 0) == []


# What scorers do with it


def test_recorded_verdict_of_the_same_version_is_taken_and_the_scorer_not_called():
    def never(rollout: RolloutView) -> None:
        raise AssertionError

    found = scored([loaded(never)], recorded(rewards(0.5)))
    assert ([each.value for each in found.rewards], found.made, found.recorded) == ([0.5, 0.5], 0, 1)
    assert found.record == (), "it is recorded already"


def test_recorded_verdict_of_another_version_of_a_scorer_that_is_asked_does_not_count():
    found = scored([gives(0.9, version="2")], recorded(rewards(0.5)))
    assert [each.value for each in found.rewards] == [0.9, 0.9]
    assert found.record == found.rewards


def test_rewards_recorded_by_scorers_that_are_not_asked_stand_before_the_asked_ones():
    found = scored([gives(0.9)], recorded(rewards(0.5, "other")))
    assert [(each.scorer, each.value) for each in found.rewards] == [
        ("other", 0.5),
        ("other", 0.5),
        ("judge", 0.9),
        ("judge", 0.9),
    ]
    assert {each.scorer for each in found.record} == {"judge"}


def test_without_scorers_the_recorded_rewards_count():
    found = scored([], recorded(rewards(0.5, version="1"), rewards(0.9, version="2")))
    assert ([each.value for each in found.rewards], found.made) == ([0.9, 0.9], 0)


def test_what_a_run_records_gives_a_replay_without_scorers_the_same_rewards_in_the_same_order():
    """Whatever was recorded before, in whichever order: what would come out of order is recorded again."""
    histories = [
        [],
        [rewards(0.2, "b")],
        [rewards(0.1, "a"), rewards(0.2, "b")],
        [rewards(0.2, "b"), rewards(0.1, "a")],
        [rewards(0.1, "a"), rewards(0.7, "c")],
        [rewards(0.7, "c"), rewards(0.1, "a"), rewards(0.3, "a", "2")],
    ]
    for history in histories:
        ran = scored([gives(0.1, "a"), gives(0.2, "b")], recorded(*history))
        again = scored([], recorded(*history, *([ran.record] if ran.record else [])))
        assert again.rewards == ran.rewards, history
    assert scored([gives(0.1, "a"), gives(0.2, "b")], recorded(rewards(0.1, "a"), rewards(0.2, "b"))).record == ()


def test_scorer_that_gave_no_reward_is_recorded_so_and_replaces_what_an_older_version_gave():
    def never(rollout: RolloutView) -> None:
        raise AssertionError

    nothing = scored([loaded(lambda rollout: None, version="2")], recorded(rewards(0.5)))
    assert nothing.rewards == ()
    found = recorded(rewards(0.5), nothing.record)
    assert found.of("r", 0) == []
    assert [(each.version, len(each.rewards)) for each in found.sets("r", 0)] == [("1", 2), ("2", 0)]
    again = scored([loaded(never, version="2")], found)
    assert (again.rewards, again.record, again.recorded) == ((), (), 1)
