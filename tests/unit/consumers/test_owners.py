"""Claims: who owns a partition, in words for those who were fenced."""

import asyncio
from collections.abc import Mapping

import pytest
from support.memory_log import MemoryLog

from rolloutlog.consumers.owners import RECORD, Claim, Claims
from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.errors import LogUnavailable
from rolloutlog.eventstore.log import META, NewRecord, Reader, Record

OURS = Claim("assembler", "events", 0, "a", 1, 10)


def follower(*claims: Claim | bytes) -> Claim | None:
    """Who follows OURS, with these in the log."""

    async def look() -> Claim | None:
        log = MemoryLog(partitions=1)
        values = [
            each
            if isinstance(each, bytes)
            else encode_record(RECORD, {name: getattr(each, name) for name in Claim.__slots__})
            for each in claims
        ]
        await log.append([NewRecord(META, 0, OURS.key, value) for value in values])
        found = Claims(log)
        try:
            return await found.follower(OURS)
        finally:
            await found.close()

    return asyncio.run(look())


OTHER = Claim("assembler", "events", 0, "a", 2, 20)


def test_claim_of_another_process_after_ours_is_a_successors():
    assert follower(OURS, OTHER) == OTHER


def test_claim_of_another_process_before_ours_is_none():
    assert follower(OTHER, OURS) is None


def test_claim_of_another_process_while_ours_is_hidden_is_none():
    """A dead owner's open transaction hides ours for a while: what is seen then is what came before."""
    assert follower(OTHER) is None


def test_claim_of_the_same_process_is_none():
    """One that came back after an outage claims again: it must not take itself for its successor."""
    assert follower(OURS, Claim("assembler", "events", 0, "a", 1, 20)) is None


def test_newest_of_several_successors_is_named():
    newest = Claim("assembler", "events", 0, "b", 3, 30)
    assert follower(OURS, OTHER, newest) == newest


def test_partition_without_a_claim_has_no_successor():
    assert follower() is None


def test_claim_that_can_not_be_read_is_passed_over():
    assert follower(OURS, b"junk") is None


def test_newest_owner_may_be_another_of_the_same_process():
    again = Claim("assembler", "events", 0, "a", 1, 20)

    async def look(first: int) -> Claim | None:
        log = MemoryLog(partitions=1)
        for each in (OURS, again):
            await log.append(
                [NewRecord(META, 0, each.key, encode_record(RECORD, {n: getattr(each, n) for n in Claim.__slots__}))]
            )
        return await Claims(log, first=first).newest(OURS)

    assert asyncio.run(look(0)) == again
    assert asyncio.run(look(1)) is None, "our claim stands below where reading began"


class BreakingLog(MemoryLog):
    """Its first reader fails once it has read something."""

    readers = 0

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        made = await super().reader(topic, offsets)
        self.readers += 1
        if self.readers == 1:
            fetch = made.fetch

            async def failing(*, wait_s: float, records_max: int = 2_000) -> list[Record]:
                await fetch(wait_s=wait_s, records_max=records_max)
                raise LogUnavailable("take a new reader from its position")

            made.fetch = failing  # type: ignore[method-assign]
        return made


def test_claims_are_read_on_by_another_reader_where_one_failed():
    async def look() -> Claim | None:
        log = BreakingLog(partitions=1)
        for each in (OURS, OTHER):
            await log.append(
                [NewRecord(META, 0, each.key, encode_record(RECORD, {n: getattr(each, n) for n in Claim.__slots__}))]
            )
        claims = Claims(log)
        with pytest.raises(LogUnavailable):
            await claims.newest(OURS)
        return await claims.newest(OURS)

    assert asyncio.run(look()) == OTHER
