"""Which partition a key belongs to: as Kafka's own default partitioner does it, so that any client agrees.

Source  Apache Kafka, org.apache.kafka.common.utils.Utils: `murmur2`, `toPositive`
"""

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition, from 0 to partitions - 1, in which all records of `key` are."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """32-bit murmur2, without sign. Kafka's int is the same 32 bits."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MIX & _MASK
        word ^= word >> 24
        value = (value * _MIX & _MASK) ^ (word * _MIX & _MASK)
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = value * _MIX & _MASK
    value ^= value >> 13
    value = value * _MIX & _MASK
    return value ^ value >> 15
