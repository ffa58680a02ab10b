"""Whose recorded rewards count."""

from support.memory_log import MemoryLog
from unit.consumers.scoring.making import run
from unit.consumers.scoring.test_recorded import rewards

from rolloutlog.consumers.scoring import recorded_names, records_of
from rolloutlog.eventstore.log import REWARDS, NewRecord, TopicSettings


def test_recorded_names_are_those_of_the_newest_version_below_the_ends():
    groups = (rewards(0.1), rewards(0.2, version="2"), rewards(0.3, "slow"))  # two records each

    async def names() -> list[tuple[tuple[str, str | None], ...]]:
        log = MemoryLog(partitions=1)
        await log.create([TopicSettings(REWARDS, 1, None, 10**6)])
        for group in groups:
            await log.append(records_of(group, "g", 0))
        await log.append([NewRecord(REWARDS, 0, b"g", b"no reward")])
        ends = [await recorded_names(log, [end]) for end in (7, 2, 0)]
        return [*ends, await recorded_names(log, [7], without=["judge"])]

    assert run(names()) == [(("judge", "2"), ("slow", "1")), (("judge", "1"),), (), (("slow", "1"),)]
