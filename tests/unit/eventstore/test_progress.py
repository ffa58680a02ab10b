"""Following trainers by their acknowledgements, on a log in memory."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import pytest
from support.memory_log import MemoryLog, MemoryReader

from rolloutlog.eventstore import ack_follower
from rolloutlog.eventstore import progress as module
from rolloutlog.eventstore.acks import Ack, Rewound, Said, StepAcknowledged, StepAwaited, ack_records
from rolloutlog.eventstore.errors import LogMissing, LogUnavailable, OffsetOutOfRange, StillBehind, StoreError
from rolloutlog.eventstore.log import ACKS, BATCHES, NewRecord, Range, Reader, Record
from rolloutlog.eventstore.progress import TrainerProgress
from rolloutlog.eventstore.scope import NotOpen

SECOND_NS = 1_000_000_000


class FaultyLog(MemoryLog):
    """A log in memory that fails or hangs when told to, and whose partitions can lose their head.

    fault   raised by all that reads, while it is set
    speaks  reading waits while it is clear
    hidden  offsets behind the last record of a partition that hold none
    """

    def __init__(self) -> None:
        super().__init__(partitions=2, log_time_ns=lambda: self.records_time_ns or self.now_ns)
        self.records_time_ns = 0  # the log's own time, where the host's clock is another one
        self.now_ns = 1_000 * SECOND_NS
        self.fault: StoreError | None = None
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.first: dict[tuple[str, int], int] = {}
        self.hidden: dict[tuple[str, int], int] = {}
        self.ranges_asked: list[str] = []
        self.readers_made = 0

    async def answer(self) -> None:
        await self.speaks.wait()
        if self.fault is not None:
            raise self.fault

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        self.ranges_asked.append(topic)
        await self.answer()
        found = await super().ranges(topic, partitions)
        return {
            p: span._replace(first=self.first.get((topic, p), 0), end=span.end + self.hidden.get((topic, p), 0))
            for p, span in found.items()
        }

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        self.readers_made += 1
        return FaultyReader(self, topic, dict(offsets))

    async def publish(self, count: int, partition: int = 0) -> None:
        await self.append([NewRecord(BATCHES, partition, b"g", b"batch")] * count)

    async def ack(self, *acks: Said) -> None:
        await self.append([record for ack in acks for record in ack_records(ack)])


class FaultyReader(MemoryReader):
    async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[Record]:
        log = self._log
        assert isinstance(log, FaultyLog)
        await log.answer()
        if any(offset < log.first.get((self._topic, p), 0) for p, offset in self._offsets.items()):
            raise OffsetOutOfRange("cut off")
        found = await super().fetch(wait_s=wait_s, records_max=records_max)
        for partition, offset in self._offsets.items():
            if offset == len(log.records.get((self._topic, partition), ())):
                self._offsets[partition] += log.hidden.get((self._topic, partition), 0)
        return found


def step(number: int, version: int | None = None, offsets: Mapping[int, int] | None = None, **fields) -> Ack:
    given = {"reader": "trainer", "batch_ids": (), "samples": (), "time_ns": 0, **fields}
    return StepAcknowledged(step=number, policy_version=version, offsets=offsets or {}, **given)


def rewound(number: int, version: int | None, offsets: Mapping[int, int]) -> Ack:
    return Rewound("trainer", number, offsets, version, 0)


async def until(met: Callable[[], object], deadline_s: float = 5.0) -> None:
    async with asyncio.timeout(deadline_s):
        while True:
            if met():
                return
            await asyncio.sleep(0.001)


@pytest.fixture
def log() -> FaultyLog:
    return FaultyLog()


@pytest.fixture
async def following(log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TrainerProgress]:
    monkeypatch.setattr(module, "POLL_S", 0.002)
    monkeypatch.setattr(ack_follower, "RETRY_S", 0.002)
    made = TrainerProgress(log, 2, lambda: log.now_ns)
    yield made
    await made.close()


async def test_policy_version_before_any_acknowledgement_is_none(following):
    assert await following.policy_version("trainer") is None


async def test_policy_version_is_that_of_the_newest_step(log, following):
    await log.ack(step(0, 1), step(1, 2))
    assert await following.policy_version("trainer") == 2


async def test_policy_version_of_zero_is_a_version(log, following):
    await log.ack(step(0, 0))
    assert await following.policy_version("trainer") == 0


async def test_policy_version_follows_later_acknowledgements(log, following):
    await following.policy_version("trainer")
    await log.ack(step(0, 5))
    await until(lambda: following.version("trainer") == 5)


async def test_policy_version_after_a_rewind_is_that_of_the_checkpoint(log, following):
    await log.ack(step(0, 1), step(1, 2), rewound(1, 1, {}))
    assert await following.policy_version("trainer") == 1


async def test_policy_version_is_kept_apart_by_reader(log, following):
    await log.ack(step(0, 4), step(0, 9, reader="other"))
    assert (await following.policy_version("trainer"), await following.policy_version("other")) == (4, 9)


async def test_policy_version_passes_over_what_is_no_acknowledgement(log, following):
    await log.ack(step(0, 4))
    await log.append([NewRecord(ACKS, 0, b"x", b"junk"), NewRecord(ACKS, 0, b"x", None)])
    assert await following.policy_version("trainer") == 4


async def test_policy_version_asked_at_once_by_many_reads_the_acknowledgements_once(log, following):
    await log.ack(step(0, 4))
    assert await asyncio.gather(*(following.policy_version("trainer") for _ in range(20))) == [4] * 20
    assert log.ranges_asked == [ACKS]


async def test_policy_version_of_a_silent_log_raises_at_the_deadline_and_later_goes_on(log, following, monkeypatch):
    monkeypatch.setattr(ack_follower, "CATCH_UP_S", 0.02)
    await log.ack(step(0, 4))
    log.speaks.clear()
    with pytest.raises(LogUnavailable, match=r"within 0.02 s, got as far as offset 0; the next call goes on there"):
        await following.policy_version("trainer")
    log.speaks.set()
    assert await following.policy_version("trainer") == 4


async def test_policy_version_of_a_log_without_acks_says_so(log, following):
    log.fault = LogMissing("no topic acks")
    with pytest.raises(LogMissing, match="no topic acks"):
        await following.policy_version("trainer")


async def test_policy_version_while_the_log_fails_stays_and_is_logged_once(log, following, caplog):
    await log.ack(step(0, 4))
    await following.policy_version("trainer")
    log.fault = LogUnavailable("no answer")
    made = log.readers_made
    await until(lambda: log.readers_made > made + 5)
    assert following.version("trainer") == 4
    assert caplog.text.count("what is known stays until they can: LogUnavailable: no answer") == 1
    log.fault = None
    await log.ack(step(1, 5))
    await until(lambda: following.version("trainer") == 5)


async def test_policy_version_survives_retention_of_unread_acknowledgements(log, following):
    await log.ack(step(0, 1))
    await following.policy_version("trainer")
    log.speaks.clear()
    await log.ack(step(1, 2), step(2, 3))
    log.first[ACKS, 0] = 2
    log.speaks.set()
    await until(lambda: following.version("trainer") == 3)


async def test_lag_before_any_acknowledgement_is_all_that_is_kept(log, following):
    await log.publish(3, partition=0)
    await log.publish(2, partition=1)
    log.first[BATCHES, 0] = 1
    assert await following.lag("trainer") == 4


async def test_lag_is_what_stands_after_the_acknowledged_offsets(log, following):
    await log.publish(3, partition=0)
    await log.publish(2, partition=1)
    await log.ack(step(0, 1, {0: 2, 1: 1}))
    assert await following.lag("trainer") == 2


async def test_lag_keeps_offsets_of_partitions_that_a_step_does_not_name(log, following):
    await log.publish(3, partition=0)
    await log.publish(2, partition=1)
    await log.ack(step(0, 1, {0: 2, 1: 1}), step(1, 2, {0: 3}))
    assert await following.lag("trainer") == 1


async def test_lag_of_a_step_in_several_records_takes_the_offsets_of_the_last(log, following):
    await log.publish(3)
    await log.ack(step(0, 1), step(0, 1, {0: 3}))
    assert await following.lag("trainer") == 0


async def test_lag_after_a_rewind_counts_again_what_came_after_the_checkpoint(log, following):
    await log.publish(3, partition=0)
    await log.publish(2, partition=1)
    await log.ack(step(0, 1, {0: 3, 1: 2}), rewound(0, 0, {0: 1}))
    assert await following.lag("trainer") == 4


async def test_lag_of_acknowledged_batches_that_retention_removed_is_not_counted(log, following):
    await log.publish(5)
    await log.ack(step(0, 1, {0: 1}))
    log.first[BATCHES, 0] = 3
    assert await following.lag("trainer") == 2


async def test_lag_of_a_silent_log_raises_at_the_deadline(log, following, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 0.02)
    await following.policy_version("trainer")
    log.speaks.clear()
    with pytest.raises(LogUnavailable, match=r"expected the ends of its batches within 0.02 s, got none; try again"):
        await following.lag("trainer")


async def test_lag_asked_by_many_at_once_asks_the_log_once(log, following, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 60.0)
    await log.publish(3)
    assert await asyncio.gather(*(following.lag("trainer") for _ in range(20))) == [3] * 20
    assert log.ranges_asked.count(BATCHES) == 1


async def test_hold_with_a_small_lag_returns_it_at_once(log, following):
    await log.publish(3)
    assert await following.hold("trainer", 3, 0.0) == 3


async def test_hold_waits_until_the_trainer_acknowledges(log, following):
    await log.publish(3)
    holding = asyncio.create_task(following.hold("trainer", 1, 5.0))
    await until(lambda: log.ranges_asked.count(BATCHES) > 3)
    assert not holding.done()
    await log.ack(step(0, 1, {0: 2}))
    assert await holding == 1


async def test_hold_at_its_deadline_says_what_it_waited_for(log, following):
    await log.publish(3)
    await log.ack(step(7, 1, {0: 1}))
    log.now_ns += 42 * SECOND_NS
    with pytest.raises(StillBehind) as told:
        await following.hold("trainer", 1, 0.01)
    assert str(told.value).startswith("trainer trainer is still behind after 0.0 s: expected a lag of at most 1, got 2")
    assert "it last acknowledged 42.0 s ago, before step 8. Hold again to wait on" in str(told.value)
    assert told.value.retriable


async def test_hold_for_a_trainer_that_waits_itself_lets_go_whatever_the_lag(log, following):
    """Its lag counts groups that no step takes, and a limit may be below what a step takes."""
    await log.publish(5)
    await log.ack(step(0, 1, {0: 0}), StepAwaited("trainer", 1, 3, 0))
    assert await following.hold("trainer", 2, None) == 5


async def test_trainer_of_an_output_is_not_taken_for_the_live_one_of_its_name(log, following):
    """Hosts would be told of the weights of another training, and let go for a trainer that waits for a replay."""
    await log.publish(5)
    of_output = step(8, 9, {0: 4}, topic="output.judged")
    rewound_there = Rewound("trainer", 0, {0: 0}, 0, 1, 0, "output.judged")
    await log.ack(step(0, 1, {0: 2}), of_output, rewound_there, StepAwaited("trainer", 0, 3, 0, "output.judged"))
    assert await following.policy_version("trainer") == 1
    assert await following.lag("trainer") == 3
    with pytest.raises(StillBehind):
        await following.hold("trainer", 2, 0.0)


async def test_hold_for_a_trainer_that_begins_to_wait_lets_go(log, following):
    await log.publish(5)
    holding = asyncio.create_task(following.hold("trainer", 2, None))
    await until(lambda: following.caught_up)
    assert not holding.done()
    await log.ack(StepAwaited("trainer", 0, 3, 0))
    assert await holding == 5


@pytest.mark.parametrize(
    "since", [StepAcknowledged("trainer", 1, 2, (), (), {0: 0}, 0), Rewound("trainer", 0, {0: 0}, 1, 0)]
)
async def test_hold_for_a_trainer_that_waited_before_it_acknowledged_holds(log, following, since):
    await log.publish(5)
    await log.ack(StepAwaited("trainer", 1, 3, 0), since)
    with pytest.raises(StillBehind):
        await following.hold("trainer", 2, 0)


async def test_hold_for_a_trainer_that_said_long_ago_that_it_waits_holds(log, following):
    await log.publish(5)
    await log.ack(StepAwaited("trainer", 1, 3, 0))
    log.now_ns += 21 * SECOND_NS
    with pytest.raises(StillBehind):
        await following.hold("trainer", 2, 0)


@pytest.mark.parametrize("jump_s", [3600, -3600])
async def test_hold_for_a_trainer_that_waits_lets_go_whatever_the_hosts_clock_says(log, following, jump_s):
    """Else neither side would go on: the trainer waits for groups, and the host for the trainer."""
    await log.publish(5)
    holding = asyncio.create_task(following.hold("trainer", 2, 5.0))
    await until(lambda: following.caught_up)
    said_ns, log.now_ns = log.now_ns, log.now_ns + jump_s * SECOND_NS
    log.records_time_ns = said_ns
    await log.ack(StepAwaited("trainer", 0, 3, 0))
    assert await holding == 5


async def test_hold_for_another_trainer_than_the_one_that_waits_holds(log, following):
    await log.publish(5)
    await log.ack(StepAwaited("other", 1, 3, 0))
    with pytest.raises(StillBehind):
        await following.hold("trainer", 2, 0)


async def test_hold_without_any_acknowledgement_says_so_at_its_deadline(log, following):
    await log.publish(1)
    with pytest.raises(StillBehind, match="got 1; it has acknowledged nothing yet"):
        await following.hold("trainer", 0, 0.0)


async def test_hold_warns_again_and_again_while_it_waits(log, following, caplog, monkeypatch):
    monkeypatch.setattr(module, "WARN_S", 0.01)
    await log.publish(3)
    holding = asyncio.create_task(following.hold("trainer", 1, None))
    await until(lambda: caplog.text.count("for trainer trainer: its lag is 3, above 1") > 1)
    await log.ack(step(0, 1, {0: 3}))
    assert await holding == 0


async def test_hold_waits_for_a_log_that_stops_answering(log, following, caplog):
    await log.publish(3)
    holding = asyncio.create_task(following.hold("trainer", 1, 5.0))
    await until(lambda: log.ranges_asked.count(BATCHES) > 1)
    log.fault = LogUnavailable("no answer")
    asked = len(log.ranges_asked)
    await until(lambda: len(log.ranges_asked) > asked + 5)
    log.fault = None
    await log.ack(step(0, 1, {0: 3}))
    assert await holding == 0
    assert caplog.text.count("still waits for trainer trainer: no answer") == 1


async def test_hold_on_a_log_that_never_answered_raises(log, following):
    log.fault = LogUnavailable("no answer")
    with pytest.raises(LogUnavailable, match="no answer"):
        await following.hold("trainer", 1, None)


async def test_hold_counts_records_where_nothing_but_markers_is_left(log, following, monkeypatch):
    """A trainer that has read everything acknowledges nothing more, whatever stands behind the last batch."""
    await log.publish(3)
    await log.ack(step(0, 1, {0: 2}))
    log.hidden[BATCHES, 0] = 5  # as markers and aborted records take offsets
    with pytest.raises(StillBehind, match="expected a lag of at most 1, got 6"):
        await following.hold("trainer", 1, 0.0)
    monkeypatch.setattr(module, "STILL_S", 0.01)
    assert await following.hold("trainer", 1, 5.0) == 1


async def test_hold_counts_the_same_records_once(log, following, monkeypatch):
    monkeypatch.setattr(module, "STILL_S", 0.0)
    await log.publish(9)
    await following.policy_version("trainer")
    made = log.readers_made
    with pytest.raises(StillBehind, match="expected a lag of at most 2, got 9"):
        await following.hold("trainer", 2, 0.05)
    with pytest.raises(StillBehind):
        await following.hold("trainer", 1, 0.05)
    assert log.readers_made - made <= 2  # one of them follows the acknowledgements


async def test_hold_counts_on_for_a_larger_lag_max(log, following, monkeypatch):
    monkeypatch.setattr(module, "STILL_S", 0.0)
    await log.publish(4)
    log.hidden[BATCHES, 0] = 5
    with pytest.raises(StillBehind):
        await following.hold("trainer", 1, 0.01)
    assert await following.hold("trainer", 4, 5.0) == 4


async def test_hold_of_a_closed_publisher_ends(log, following):
    await log.publish(3)
    holding = asyncio.create_task(following.hold("trainer", 1, None))
    await until(lambda: BATCHES in log.ranges_asked)
    await following.close()
    with pytest.raises(NotOpen, match="the publisher was closed while a trainer was waited for"):
        await holding


async def test_hold_that_is_cancelled_leaves_no_task_behind(log, following):
    await log.publish(3)
    await following.policy_version("trainer")
    before = asyncio.all_tasks()
    holding = asyncio.create_task(following.hold("trainer", 1, None))
    await until(lambda: BATCHES in log.ranges_asked)
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    await until(lambda: asyncio.all_tasks() == before)


async def test_close_of_what_never_followed_does_nothing(log, following, caplog):
    caplog.set_level(logging.DEBUG)
    await following.close()
    assert (caplog.text, log.readers_made) == ("", 0)
