"""The definition of a setting, of whatever it is one."""

from __future__ import annotations

from typing import NamedTuple

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)
"""Kafka's numbers of types."""


class Setting(NamedTuple):
    """One setting.

    Args:
        default: as text; None stands for the cluster's own.
        kind: Kafka's number of its type, as `BOOLEAN`.
        of_broker: the broker setting that is its default; None without one.
        doc: its description.
        least, most: bounds, for numbers.
        choices: the allowed values, or elements of a list; empty: any.
        pattern: what a list is to match as a whole; None: anything.
        fixed: whether no other value is allowed.
    """

    default: str | None
    kind: int
    of_broker: str | None
    doc: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    fixed: bool = False
