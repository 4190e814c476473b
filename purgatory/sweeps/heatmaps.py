"""Heat maps: a measure over two swept settings, averaged over seeds, and over all other settings.

The seeds of each point are averaged first, then the points with the same two values. Two kinds
of spread stay apart: that between the seeds of one point, by chance, and that between points, by
the other settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from pyspark.sql import DataFrame

from purgatory.pipeline.engines.spark.connect import local_table
from purgatory.pipeline.engines.spark.frames import run_chain
from purgatory.pipeline.jobs.chain import Statement, literal, quoted, read_chain
from purgatory.sweeps.plan import Parameter, Plan
from purgatory.sweeps.sweep_file import HeatmapTable

MOST_PAIRS = 6
"""The number of pairs of settings with heat maps when the sweep file asks for none."""

USUAL_MEASURES = ("produce_expiry_ratio", "produce_wait_p99_ms")
"""The measures of these heat maps."""

HEATMAPS_COLUMNS = {
    "heatmap": "int",
    "x_setting": "string",
    "y_setting": "string",
    "measure": "string",
    "x_level": "int",
    "x": "string",
    "y_level": "int",
    "y": "string",
    **dict.fromkeys(("points", "scenarios", "failed"), "bigint"),
    **dict.fromkeys(("mean", "seed_sd", "least", "most"), "double"),
}
"""The columns of the table and their types."""


def heatmap_tables(plan: Plan) -> list[HeatmapTable]:
    """The heat maps that the sweep file asks for; without any, the usual ones of each pair."""
    if plan.sweep.heatmaps:
        return list(plan.sweep.heatmaps)
    paths = [parameter.path for parameter in plan.parameters]
    pairs: Sequence[tuple[str, str | None]] = list(combinations(paths, 2))[:MOST_PAIRS]
    return [
        HeatmapTable(x=x, y=y, measure=measure)
        for x, y in pairs or [(paths[0], None)]
        for measure in USUAL_MEASURES
    ]


def heatmaps(points: DataFrame, plan: Plan) -> DataFrame:
    """All heat maps of a sweep, as one table: a row per heat map and pair of values.

    Args:
        points: the table of that name.
        plan: the sweep's.

    Returns:
        `HEATMAPS_COLUMNS`. `mean` is over the means of points, `seed_sd` the standard deviation
        between the seeds of a point (pooled; null with one seed), `least` and `most` are the means
        of the extreme points.
    """
    session = points.sparkSession
    tables = list(enumerate(heatmap_tables(plan)))
    settings = [(number, one.x, one.y, one.measure) for number, one in tables]
    labels = [
        (number, axis, index, level.label)
        for number, one in tables
        for axis, path in (("x", one.x), ("y", one.y))
        if path is not None
        for index, level in enumerate(plan.parameter(path).levels())
    ]
    inputs = {
        "points": points,
        "heatmap_settings": local_table(
            session, settings, "heatmap int, x_setting string, y_setting string, measure string"
        ),
        "heatmap_labels": local_table(
            session, labels, "heatmap int, axis string, level int, label string"
        ),
    }
    selects = [
        f"select {number} as heatmap, point, error, "
        f"cast({quoted([one.measure])} as double) as measured, "
        f"{level_sql(plan.parameter(one.x))} as x_level, "
        f"{'cast(null as int)' if one.y is None else level_sql(plan.parameter(one.y))} as y_level "
        "from points"
        for number, one in tables
    ]
    chain = [
        Statement("heatmap_points", False, " union all ".join(selects)),
        *read_chain("sweeps/heatmaps.sql"),
    ]
    return run_chain(inputs, chain, ["heatmaps"])[0]


def level_sql(parameter: Parameter) -> str:
    """The number of the level of a row's value of a parameter, from 0, as SQL; null for none."""
    column, levels = quoted([parameter.column]), parameter.levels()
    condition = "< {}" if parameter.binned else "= {}"
    # A bin ends where the next begins, and the last has no end.
    lows = [literal(one.low) for one in (levels[1:] if parameter.binned else levels)]
    cases = "".join(
        f" when {column} {condition.format(low)} then {index}" for index, low in enumerate(lows)
    )
    last = f" when {column} is not null then {len(lows)}" if parameter.binned else ""
    return f"case{cases}{last} end"
