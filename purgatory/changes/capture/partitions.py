"""Which partition a key belongs to, as Kafka's Java client and Maxwell choose it."""

from __future__ import annotations

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition, from 0, out of so many. O(length of the key)."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    length = len(data)
    value = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        part = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        part = (part ^ part >> 24) * _M & _MASK
        value = (value * _M & _MASK) ^ part
    if length > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15
