"""Draws what a timeout costs by how many are outstanding, as a static SVG.

Its background is white, so that it reads on a dark page too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

COLOURS = ("#0b6e4f", "#c1440e", "#3b5ba5", "#7a7a7a")
MARKERS = ("o", "s", "^", "D")


def draw(costs_us: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Write the plot.

    Args:
        costs_us: microseconds per timeout by name and number outstanding.
        path: of the SVG.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    # The same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = "cost-per-task"
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for (name, costs), colour, marker in zip(costs_us.items(), COLOURS, MARKERS, strict=True):
        counts = sorted(costs)
        values = [costs[count] for count in counts]
        axes.plot(counts, values, color=colour, marker=marker, linewidth=2, label=name)
        axes.annotate(
            f"{values[-1]:.3g}",
            (counts[-1], values[-1]),
            textcoords="offset points",
            xytext=(8, -3),
            color=colour,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("timeouts outstanding")
    axes.set_ylabel("microseconds per timeout")
    axes.set_title("What a timeout costs: added, 9 of 10 cancelled, the rest run")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(visible=True, which="major", color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    pyplot.close(figure)
