"""Claims: who owns a partition, in words for those who were fenced."""

import asyncio

from support.memory_log import MemoryLog

from rolloutlog.consumers.owners import RECORD, Claim, Claims
from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.log import META, NewRecord

OURS = Claim("assembler", "events", 0, "a", 1, 10)


def newest(*claims: Claim | bytes) -> tuple[Claim | None, bool]:
    """The newest claim and whether OURS was taken over, with these in the log."""

    async def look() -> tuple[Claim | None, bool]:
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
            return await found.newest(OURS), await found.taken_over(OURS)
        finally:
            await found.close()

    return asyncio.run(look())


def test_claim_of_another_process_is_a_successor():
    other = Claim("assembler", "events", 0, "a", 2, 20)
    assert newest(OURS, other) == (other, True)


def test_claim_of_the_same_process_is_none():
    """One that came back after an outage claims again: it must not take itself for its successor."""
    again = Claim("assembler", "events", 0, "a", 1, 20)
    assert newest(OURS, again) == (again, False)


def test_partition_without_a_claim_is_not_taken_over():
    assert newest() == (None, False)


def test_claim_that_can_not_be_read_is_passed_over():
    assert newest(OURS, b"junk") == (OURS, False)
