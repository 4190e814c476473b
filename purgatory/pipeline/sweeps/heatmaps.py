"""Heat maps: a measure over two swept settings, averaged over seeds, and over all other settings.

The seeds of each point are averaged first, then the points with the same two values. So two kinds
of spread stay apart: that between the seeds of one point, by chance, and that between points, by
the other settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import combinations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.registry import SWEEP
from purgatory.pipeline.sweeps.plan import Parameter, Plan
from purgatory.pipeline.sweeps.sweep_file import HeatmapTable

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
    tables = [
        _heatmap(points, plan, number, table) for number, table in enumerate(heatmap_tables(plan))
    ]
    return reduce(DataFrame.unionByName, tables).orderBy(
        *(name for name, _ in SWEEP.outputs["heatmaps"])
    )


def level(parameter: Parameter) -> Column:
    """The number of the level of a row's value of a parameter, from 0; null for none."""
    column, levels = f.col(f"`{parameter.column}`"), parameter.levels()
    if not parameter.binned:
        index = f.array_position(f.array(*(f.lit(one.low) for one in levels)), column)
        return f.when(index > 0, index - 1).cast("int")
    number = f.lit(0)
    for one in levels[1:]:
        number = number + (column >= f.lit(one.low)).cast("int")
    return number.cast("int")


def label(parameter: Parameter, number: Column) -> Column:
    """The text of a level."""
    return f.element_at(f.array(*(f.lit(one.label) for one in parameter.levels())), number + 1)


def _heatmap(points: DataFrame, plan: Plan, number: int, table: HeatmapTable) -> DataFrame:
    x = plan.parameter(table.x)
    y = None if table.y is None else plan.parameter(table.y)
    value = f.col(table.measure).cast("double")
    no_level = f.lit(None).cast("int")
    of_points = points.groupBy(
        "point",
        level(x).alias("x_level"),
        (no_level if y is None else level(y)).alias("y_level"),
    ).agg(
        f.count("*").alias("scenarios"),
        f.count("error").alias("failed"),
        f.count(value).alias("measured"),
        f.avg(value).alias("value"),
        f.var_samp(value).alias("variance"),
    )
    freedom = f.when(f.col("measured") > 1, f.col("measured") - 1)
    pooled = f.sum(f.col("variance") * freedom) / f.sum(freedom)
    cells = of_points.groupBy("x_level", "y_level").agg(
        f.count("*").alias("points"),
        f.sum("scenarios").alias("scenarios"),
        f.sum("failed").alias("failed"),
        f.avg("value").alias("mean"),
        f.sqrt(pooled).alias("seed_sd"),
        f.min("value").alias("least"),
        f.max("value").alias("most"),
    )
    texts = {
        "heatmap": f.lit(number),
        "x_setting": f.lit(table.x),
        "y_setting": f.lit(table.y),
        "measure": f.lit(table.measure),
        "x": label(x, f.col("x_level")),
        "y": f.lit(None) if y is None else label(y, f.col("y_level")),
    }
    return cells.select(
        *(
            texts.get(name, f.col(name)).cast(kind).alias(name)
            for name, kind in HEATMAPS_COLUMNS.items()
        )
    )
