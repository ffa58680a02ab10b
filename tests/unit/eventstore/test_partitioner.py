"""Kafka's own test vectors: org.apache.kafka.common.utils.UtilsTest.testMurmur2."""

import pytest

from rolloutlog.eventstore.partitioner import murmur2, partition_of

VECTORS = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_murmur2_gives_kafkas_hash(key, expected):
    assert murmur2(key.encode()) == expected & 0xFFFFFFFF


def test_partition_of_drops_the_sign_before_the_remainder():
    """Not the absolute value: Kafka masks the sign bit."""
    assert partition_of(b"21", 32) == (-973932308 & 0x7FFFFFFF) % 32 == 12
