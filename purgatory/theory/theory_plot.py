"""The plot of a comparison: the laws as lines, the simulation's estimates as points on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from purgatory.theory.comparison import Comparison
from purgatory.theory.experiments import EXPERIMENTS, Experiment

_COLORS = ("#0072b2", "#d55e00", "#009e73")
_WIDTH, _HEIGHT = 400, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 16, 34, 46
_LINE_POINTS = 40


def theory_svg(found: Mapping[str, Sequence[Comparison]]) -> str:
    """Draw what was compared, by the name of the experiment, as one SVG with a panel per quantity.

    A point is the simulation's mean, and has its interval of 95 % confidence; a line is the law.
    """
    panels: dict[str, list[Experiment]] = {}
    for one in EXPERIMENTS:
        if one.panel and one.name in found:
            panels.setdefault(one.panel, []).append(one)
    width, height = 2 * _WIDTH, _HEIGHT * math.ceil(len(panels) / 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="11" '
        'fill="#1f2937" role="img">',
        "<title>Theory (lines) and simulation (points with intervals of 95 % confidence)</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (name, experiments) in enumerate(panels.items()):
        row, column = divmod(number, 2)
        parts.append(f'<g transform="translate({column * _WIDTH} {row * _HEIGHT})">')
        parts += _panel(name, experiments, found)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    name: str, experiments: Sequence[Experiment], found: Mapping[str, Sequence[Comparison]]
) -> Iterator[str]:
    rows = [row for one in experiments for row in found[one.name]]
    xs = _ticks(min(row.value for row in rows), max(row.value for row in rows))
    ys = _ticks(0, max(max(row.simulated + row.half_width(), row.theory) for row in rows))

    def x(value: float) -> float:
        inner = _WIDTH - _LEFT - _RIGHT
        return round(_LEFT + inner * (value - xs[0]) / (xs[-1] - xs[0]), 2)

    def y(value: float) -> float:
        inner = _HEIGHT - _TOP - _BOTTOM
        return round(_HEIGHT - _BOTTOM - inner * value / ys[-1], 2)

    yield f'<text x="8" y="18" font-weight="600">{escape(name)}</text>'
    for tick in ys:
        yield f'<path d="M{_LEFT} {y(tick)}H{_WIDTH - _RIGHT}" stroke="#e5e7eb"/>'
        yield f'<text x="{_LEFT - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>'
    for tick in xs:
        yield f'<text x="{x(tick)}" y="{_HEIGHT - 30}" text-anchor="middle">{tick:g}</text>'
    axis = escape(experiments[0].axis)
    yield f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{axis}</text>'
    for number, (one, color) in enumerate(zip(experiments, _COLORS, strict=False)):
        values = one.values
        steps = (n / _LINE_POINTS for n in range(_LINE_POINTS + 1))
        line = [values[0] + step * (values[-1] - values[0]) for step in steps]
        assert one.law is not None, "an experiment with a panel has a law to be drawn"
        path = " ".join(f"{x(value)},{y(one.law(value))}" for value in line)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        for row in found[one.name]:
            at, half = x(row.value), row.half_width()
            low, high = y(max(0.0, row.simulated - half)), y(row.simulated + half)
            bar = f"M{at} {low}V{high}M{at - 3} {low}h6M{at - 3} {high}h6"
            yield f'<path d="{bar}" stroke="{color}"/>'
            yield f'<circle cx="{at}" cy="{y(row.simulated)}" r="3" fill="{color}"/>'
        down = _TOP + 10 + 16 * number
        yield f'<path d="M{_LEFT + 10} {down - 4}h18" stroke="{color}" stroke-width="2"/>'
        yield f'<text x="{_LEFT + 34}" y="{down}">{escape(one.title)}</text>'


def _ticks(least: float, most: float) -> list[float]:
    """Round numbers at even distances, from at most the one to at least the other."""
    rough = (most - least) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]
