"""How a value that falls with a change of leadership is told as a number that only rises.

Waits for a number are watched under a key whose value never falls (`DelayedOperationPurgatory`).
Within one term of leadership a log's ends only move up. The next term may begin further down: a
follower truncates. So the number has the term before the value, and a later term is above all that
any earlier one told:

    (term 1, offset 100)  <  (term 3, offset 50)  <  (term 3, offset 80)

A thread that tells late how far an earlier term was wakes nobody who waits in this one. The first
that is told of a new term finds everybody who waited in an earlier one, and their waits end by
that. So whoever is found is done with this partition, and is never looked for again.
"""

from __future__ import annotations

_VALUES_OF_A_TERM = 2**63
"""Offsets and byte positions are 64-bit numbers, as in Kafka."""

NEVER = _VALUES_OF_A_TERM - 1
"""A value that no term reaches."""


def in_term(term: int, value: int) -> int:
    """Return the number that stands for ``value``, of 0 to ``NEVER``, in ``term``. O(1)."""
    return term * _VALUES_OF_A_TERM + value
