"""Answers and heat maps: checked against tables by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.confidence_intervals import t_quantile
from purgatory.sweeps.answers import Answer, answers
from purgatory.sweeps.heatmaps import HEATMAPS_COLUMNS, heatmaps
from purgatory.sweeps.plan import MOST_LEVELS, Plan, load_plan
from tests.spark.pipeline.sweeps.small_sweeps import grid_plan, write_sweep

pytestmark = pytest.mark.spark

TIMEOUT, LAG = "producers[orders].timeout_ms", "followers.lag_ms"
ASKED = f"""
[[questions]]
find = "{TIMEOUT}"
below = 0.1
"""
DDL = (
    "point bigint, producers_orders_timeout_ms bigint, followers_lag_ms bigint, seed bigint, "
    "error string, produce_expiry_ratio double, produce_wait_p99_ms double"
)


def by_hand(
    spark: SparkSession, ratios: dict[tuple[int, int], list[float | str | None]]
) -> DataFrame:
    """A table of points by timeout and lag: for each seed its ratio, or its error."""
    rows = []
    for point, ((timeout, lag), of_seeds) in enumerate(ratios.items()):
        for seed, value in enumerate(of_seeds):
            failed = isinstance(value, str)
            ratio = None if failed else value
            rows.append((point, timeout, lag, seed, value if failed else None, ratio, 5.0))
    return spark.createDataFrame(rows, DDL)


def answered(
    spark: SparkSession,
    folder: Path,
    ratios: dict[tuple[int, int], list[float | str | None]],
    asked: str = ASKED,
) -> list[Answer]:
    timeouts = ", ".join(str(one) for one in dict.fromkeys(timeout for timeout, _ in ratios))
    lags = ", ".join(str(one) for one in dict.fromkeys(lag for _, lag in ratios))
    plan = grid_plan(folder, timeouts=timeouts, lags=lags)
    text = (folder / "sweep.toml").read_text().replace("repetitions = 2", "repetitions = 3")
    plan = load_plan(write_sweep(folder, text + asked))
    return answers(by_hand(spark, ratios), plan)


def test_answer_is_the_smallest_value_with_its_neighbour(
    spark: SparkSession, tmp_path: Path
) -> None:
    (answer,) = answered(
        spark,
        tmp_path,
        {(100, 1): [0.30, 0.32, 0.31], (800, 1): [0.01, 0.01, 0.01], (400, 1): [0.05, 0.06, 0.07]},
    )
    assert answer.value == answer.confirmed == "400"
    # By hand: mean 0.06, standard deviation 0.01, t of 2 degrees at 95 % is 2.91999.
    limit = 0.06 + 2.91999 * 0.01 / math.sqrt(3)
    one = answer.candidates[1]
    assert one.limit == pytest.approx(limit, rel=1e-5)
    assert (one.points, one.seeds, one.kept, one.measured) == (1, 3, 3, 3)
    assert answer.words() == (
        f"400 is the smallest {TIMEOUT} with produce_expiry_ratio below 0.1. It has 0.06, over 3 "
        "seeds with a standard deviation of 0.01; with 95 % confidence at most 0.07686: confirmed. "
        "3 of 3 scenarios keep the bound. The next smaller value, 100, has 0.31."
    )


def test_answer_within_random_variation_is_not_confirmed(
    spark: SparkSession, tmp_path: Path
) -> None:
    (answer,) = answered(
        spark, tmp_path, {(100, 1): [0.02, 0.15, 0.07], (400, 1): [0.01, 0.02, 0.01]}
    )
    assert (answer.value, answer.confirmed) == ("100", "400")
    words = answer.words()
    assert "not confirmed. 2 of 3 scenarios keep the bound." in words
    assert "No smaller value was tried. Confirmed is 400." in words


def test_an_answer_is_given_per_value_of_another_setting(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = answered(
        spark,
        tmp_path,
        {(100, 1): [0.05] * 3, (100, 9): [0.5] * 3, (400, 1): [0.01] * 3, (400, 9): [0.04] * 3},
        ASKED + f'per = ["{LAG}"]\n',
    )
    assert [(dict(one.per), one.value) for one in found] == [
        ({LAG: "1"}, "100"),
        ({LAG: "9"}, "400"),
    ]
    assert found[1].words().startswith(f"With {LAG} = 9: 400 is the smallest")


def test_answer_takes_the_worst_value_of_unnamed_settings(
    spark: SparkSession, tmp_path: Path
) -> None:
    (answer,) = answered(
        spark,
        tmp_path,
        {(100, 1): [0.05] * 3, (100, 9): [0.5] * 3, (400, 1): [0.01] * 3, (400, 9): [0.04] * 3},
    )
    assert answer.value == "400"
    assert [one.mean for one in answer.candidates] == [0.5, 0.04]
    assert "It has 0.04 at the worst of its 2 points" in answer.words()


def test_answer_without_a_good_value_names_the_best_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    (answer,) = answered(spark, tmp_path, {(100, 1): [0.3] * 3, (400, 1): [0.2, 0.2, 0.2]})
    assert answer.value is None
    assert answer.words() == (
        f"None of the 2 values tried of {TIMEOUT} has produce_expiry_ratio below 0.1; the best is "
        "400 with 0.2."
    )


def test_worse_larger_value_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (answer,) = answered(spark, tmp_path, {(100, 1): [0.05] * 3, (400, 1): [0.2] * 3})
    assert answer.value == "100"
    assert answer.words().endswith("But not every larger value is good enough: 400 (0.2).")


def test_answer_may_be_the_largest_value_over_a_bound(spark: SparkSession, tmp_path: Path) -> None:
    asked = ASKED.replace("below = 0.1", 'above = 0.1\nwant = "largest"')
    (answer,) = answered(
        spark,
        tmp_path,
        {(100, 1): [0.5] * 3, (400, 1): [0.2, 0.21, 0.22], (800, 1): [0.01] * 3},
        asked,
    )
    assert answer.value == answer.confirmed == "400"
    assert answer.candidates[1].limit == pytest.approx(0.21 - 2.91999 * 0.01 / math.sqrt(3))
    assert "with 95 % confidence at least 0.1931: confirmed" in answer.words()
    assert "The next larger value, 800, has 0.01." in answer.words()


def test_value_with_failed_scenarios_is_not_good_enough(
    spark: SparkSession, tmp_path: Path
) -> None:
    (answer,) = answered(
        spark,
        tmp_path,
        {(100, 1): ["boom"] * 3, (100, 9): [0.0] * 3, (400, 1): [0.01] * 3, (400, 9): [0.0] * 3},
    )
    assert answer.value == "400"
    assert "The next smaller value, 100, has 1 of 2 points that failed." in answer.words()


def test_one_seed_gives_an_answer_without_confidence(spark: SparkSession, tmp_path: Path) -> None:
    (answer,) = answered(
        spark, tmp_path, {(100, 1): [0.05, "boom", "boom"], (400, 1): [0.01, 0.02, 0.01]}
    )
    assert (answer.value, answer.confirmed) == ("100", "400")
    assert "from a single seed: more repetitions would give a confidence bound" in answer.words()


@pytest.mark.parametrize("at_another_lag", [[0.0, 0.0, 0.0], [0.0, 0.01, 0.02]])
def test_equal_seeds_confirm_no_answer(
    spark: SparkSession, tmp_path: Path, at_another_lag: list[float | str | None]
) -> None:
    (answer,) = answered(spark, tmp_path, {(100, 1): [0.05] * 3, (100, 9): at_another_lag})
    assert (answer.value, answer.confirmed) == ("100", None)
    assert answer.candidates[0].limit is None
    assert (
        "It has 0.05 at the worst of its 2 points, the same with each of 3 seeds, which "
        "gives no confidence bound."
    ) in answer.words()
    assert answer.words().endswith("No value is confirmed.")


def test_answer_without_measurements_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    (answer,) = answered(spark, tmp_path, {(100, 1): [None] * 3, (400, 1): [None] * 3})
    assert answer.words().endswith("has produce_expiry_ratio below 0.1: nothing was measured.")


@pytest.mark.parametrize(
    ("share", "freedom", "expected"),
    [  # from printed tables of the distribution
        (0.95, 1, 6.313752),
        (0.95, 2, 2.919986),
        (0.975, 4, 2.776445),
        (0.95, 9, 1.833113),
        (0.995, 30, 2.749996),
        (0.95, 120, 1.657651),
    ],
)
def test_students_t_is_that_of_the_tables(share: float, freedom: int, expected: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(
        expected, abs=2e-4 if freedom > 100 else 1e-6
    )


def test_a_heatmap_has_the_mean_of_points_and_both_spreads(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = grid_plan(tmp_path, timeouts="100, 400", lags="1, 9")
    points = by_hand(
        spark,
        {(100, 1): [0.1, 0.3], (100, 9): [0.5, 0.5], (400, 1): [0.2, "boom"], (400, 9): ["a", "b"]},
    )
    table = heatmaps(points, plan)
    rows = [row for row in table.collect() if row["measure"] == "produce_expiry_ratio"]
    cells = {(row["x"], row["y"]): row for row in rows}
    assert set(cells) == {(timeout, lag) for timeout in ("100", "400") for lag in ("1", "9")}
    first = cells["100", "1"]
    assert first["mean"] == pytest.approx(0.2)
    assert first["seed_sd"] == pytest.approx(math.sqrt(0.02))
    assert (first["points"], first["scenarios"], first["failed"]) == (1, 2, 0)
    assert (cells["400", "1"]["mean"], cells["400", "1"]["failed"]) == (0.2, 1)
    assert cells["400", "1"]["seed_sd"] is None
    assert (cells["400", "9"]["mean"], cells["400", "9"]["failed"]) == (None, 2)
    stated = list(HEATMAPS_COLUMNS.items())
    assert stated == table.dtypes


def test_a_heatmap_over_one_setting_averages_over_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    asked = f'[[heatmaps]]\nx = "{LAG}"\n'
    plan = load_plan(_asking(tmp_path, asked))
    points = by_hand(spark, {(100, 1): [0.1, 0.3], (400, 1): [0.6, 0.6], (100, 9): [0.5, 0.7]})
    rows = {row["x"]: row for row in heatmaps(points, plan).collect()}
    one = rows["1"]
    assert one["mean"] == pytest.approx(0.4)
    assert (one["least"], one["most"]) == (pytest.approx(0.2), pytest.approx(0.6))
    assert one["seed_sd"] == pytest.approx(math.sqrt((0.02 + 0.0) / 2))
    assert (one["y"], one["y_setting"], one["points"]) == (None, None, 2)


def test_a_setting_with_very_many_values_is_put_in_bins(
    spark: SparkSession, tmp_path: Path
) -> None:
    values = list(range(10, 10 * MOST_LEVELS + 20, 10))
    plan = grid_plan(tmp_path, timeouts=", ".join(map(str, values)), lags="1")
    points = by_hand(spark, {(value, 1): [value / 1000.0] for value in values})
    rows = [row for row in heatmaps(points, plan).collect() if row["heatmap"] == 0]
    assert len(rows) == 10
    assert sum(row["points"] for row in rows) == len(values)
    assert rows[0]["x"] == "10 to 40" and rows[0]["points"] == 3  # 10, 20, 30
    assert rows[-1]["x"] == "280 to 310" and rows[-1]["points"] == 4  # 280 to 310


def test_heatmap_plan_has_no_cartesian_product_or_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = grid_plan(tmp_path, timeouts="100, 400", lags="1")
    points = by_hand(spark, {(100, 1): [0.1], (400, 1): [0.2]})
    text = _plan_of(heatmaps(points, plan))
    assert "Aggregate" in text
    assert "CartesianProduct" not in text and "Window" not in text


def _plan_of(table: DataFrame) -> str:
    return str(table._jdf.queryExecution().executedPlan().toString())


def _asking(folder: Path, asked: str) -> Path:
    grid_plan(folder, timeouts="100, 400", lags="1, 9")
    text = (folder / "sweep.toml").read_text()
    return write_sweep(folder, text + asked)


def test_bins_of_a_range_cover_all_drawn_values(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        'name = "s"\nscenario = "tiny.toml"\nrepetitions = 1\n[sample]\ncount = 300\n'
        f'[sample.settings]\n"{LAG}" = {{ from = 1, to = 1000, scale = "log" }}\n'
    )
    plan: Plan = load_plan(write_sweep(tmp_path, text))
    rows = [(point, plan.values(point)[0][0], None, 0.5, 1.0) for point in range(300)]
    points = spark.createDataFrame(
        rows,
        "point bigint, followers_lag_ms bigint, error string, produce_expiry_ratio double, "
        "produce_wait_p99_ms double",
    )
    found = [row for row in heatmaps(points, plan).collect() if row["heatmap"] == 0]
    assert [row["x_level"] for row in found] == list(range(10))
    assert sum(row["points"] for row in found) == 300
    assert min(row["points"] for row in found) > 5
