"""What the Kafka driver alone takes to read a topic: the measure that benchmarks compare with.

It reads with our own fetch settings, so that the difference is what we do, not how much we ask for at a time.
"""

import time
from collections.abc import Callable
from typing import Any

from rolloutlog.eventstore.log.kafka_reader import FETCH_BYTES_MAX, FETCH_WAIT_MS, PARTITION_BYTES_MAX


async def read_by_driver(
    url: str, topic: str, partitions: int, size_bytes: int, report: Callable[[float, float], None]
) -> None:
    """Read values of so many bytes with getmany; `report` is given both clocks as of the beginning."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    make: Any = AIOKafkaConsumer  # without types
    _, _, servers, prefix = url.split("/")
    consumer = make(
        bootstrap_servers=servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_wait_ms=FETCH_WAIT_MS,
        fetch_max_bytes=FETCH_BYTES_MAX,
        max_partition_fetch_bytes=PARTITION_BYTES_MAX,
    )
    await consumer.start()
    try:
        began = time.perf_counter(), time.process_time()
        consumer.assign([TopicPartition(f"{prefix}.{topic}", partition) for partition in range(partitions)])
        read = 0
        while read < size_bytes:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                read += sum(len(each.value) for each in records)
        report(*began)
    finally:
        await consumer.stop()
