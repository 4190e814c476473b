"""Bars over time as SVG in a page: small enough to be written anew with each result.

They take the width that there is; what is written stands in HTML around them, and keeps its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_HEIGHT = 100.0
_LEAST_HEIGHT = 2.0
"""What is there is seen, however small it is."""

_GAP = 0.1


@dataclass(frozen=True)
class Bar:
    """What a bucket of time has.

    Attributes:
        number: the bucket's.
        value: how high it is.
        part: how much of that is marked, from below.
        words: what a pointer on it shows.
    """

    number: int
    value: float
    part: float
    words: str


def time_bars(bars: Sequence[Bar], label: str, ends: tuple[str, str], most: str) -> str:
    """A figure with bars, in the order of their numbers.

    Args:
        bars: at least one.
        label: what it shows, as plain text, for readers who can't see it.
        ends: from when to when it is.
        most: how much the highest one is.
    """
    first = min(bar.number for bar in bars)
    width = max(bar.number for bar in bars) - first + 1
    scale = _HEIGHT / (max(bar.value for bar in bars) or 1)
    drawn = "".join(_drawn(bar, bar.number - first, scale) for bar in bars)
    return (
        f'<div class="bars"><p class="note">{escape(most)}</p>'
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {_HEIGHT:g}" '
        f'preserveAspectRatio="none">{drawn}</svg>'
        f'<p class="note ends"><span>{escape(ends[0])}</span> <span>{escape(ends[1])}</span></p>'
        "</div>"
    )


def _drawn(bar: Bar, place: int, scale: float) -> str:
    rects = ""
    for name, value in (("whole", bar.value), ("part", bar.part)):
        if value:
            height = max(_LEAST_HEIGHT, value * scale)
            rects += (
                f'<rect class="{name}" x="{place + _GAP / 2:g}" width="{1 - _GAP:g}" '
                f'y="{_HEIGHT - height:.2f}" height="{height:.2f}"/>'
            )
    return f"<g>{rects}<title>{escape(bar.words)}</title></g>" if rects else ""
