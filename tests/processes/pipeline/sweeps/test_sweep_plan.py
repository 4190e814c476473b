"""Plans: which scenarios there are, their keys, and their division into batches."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory import sweeps
from purgatory.simulation import Scenario, load_scenario, shipped_scenarios
from purgatory.sweeps import run
from purgatory.sweeps.plan import Plan, load_plan
from purgatory.sweeps.tasks import batches, expected_cost
from tests.spark.pipeline.sweeps.small_sweeps import BASE, grid_plan, write_sweep

SAMPLE = """
name = "sample"
scenario = "tiny.toml"
repetitions = 2

[sample]
count = {count}
seed = {seed}

[sample.settings]
"followers.lag_ms" = {{ from = 0.5, to = 200.0, scale = "log" }}
"producers[orders].timeout_ms" = {{ from = 10, to = 13 }}
{further}
"""


def sample_plan(folder: Path, count: int = 40, seed: int = 1, further: str = "") -> Plan:
    text = SAMPLE.format(count=count, seed=seed, further=further)
    return load_plan(write_sweep(folder, text))


def test_a_grid_has_each_combination_with_each_seed(tmp_path: Path) -> None:
    table = grid_plan(tmp_path, timeouts="10, 400", lags="1, 5, 9").table()
    rows = {
        (row["producers_orders_timeout_ms"], row["followers_lag_ms"], row["seed"])
        for row in table.to_pylist()
    }
    assert rows == {(t, lag, seed) for t in (10, 400) for lag in (1, 5, 9) for seed in (1, 2)}
    assert len(set(table["key"].to_pylist())) == table.num_rows == 12


def test_different_values_have_different_labels(tmp_path: Path) -> None:
    lags = "1.00001, 1.00002, 3"
    levels = grid_plan(tmp_path, lags=lags).parameter("followers.lag_ms").levels()
    assert [level.label for level in levels] == ["1.00001", "1.00002", "3.0"]
    further = '"network.delay_ms" = { from = 0.1234567, to = 0.1234568 }'
    bins = sample_plan(tmp_path, further=further).parameter("network.delay_ms").levels()
    assert len({level.label for level in bins}) == len(bins)


def test_a_point_is_the_base_scenario_with_its_settings_alone(tmp_path: Path) -> None:
    plan = grid_plan(tmp_path)
    changed = plan.document(1)  # timeout 10, lag 5
    assert changed["producers"][0]["timeout_ms"] == 10
    assert changed["followers"]["lag_ms"] == {"p50": 5.0, "p75": 5.0}
    assert changed["producers"][1] == plan.base["producers"][1]
    assert plan.base["producers"][0]["timeout_ms"] == 400
    Scenario.model_validate(changed)


def test_extended_sweep_keeps_the_keys_of_its_scenarios(tmp_path: Path) -> None:
    before = set(grid_plan(tmp_path, timeouts="10, 400").keys())
    more_values = set(grid_plan(tmp_path, timeouts="5, 10, 50, 400").keys())
    assert before < more_values
    text = (tmp_path / "sweep.toml").read_text().replace("repetitions = 2", "repetitions = 3")
    assert more_values < set(load_plan(write_sweep(tmp_path, text)).keys())


def test_further_setting_keeps_the_keys_of_base_values(tmp_path: Path) -> None:
    before = set(grid_plan(tmp_path, lags="1, 5").keys())
    text = (tmp_path / "sweep.toml").read_text() + '"topic.partitions" = [1, 2]\n'
    after = set(load_plan(write_sweep(tmp_path, text)).keys())
    assert before < after
    assert len(after) == 2 * len(before)


@pytest.mark.parametrize(
    "base",
    [
        BASE.replace("duration_ms = 200", "duration_ms = 201"),
        BASE.replace("rate = 50.0", "rate = 50.5"),
    ],
)
def test_another_base_scenario_has_other_keys(tmp_path: Path, base: str) -> None:
    plan = grid_plan(tmp_path)
    other = load_plan(write_sweep(tmp_path, (tmp_path / "sweep.toml").read_text(), base))
    assert not set(plan.keys()) & set(other.keys())


def test_name_and_default_values_change_no_key(tmp_path: Path) -> None:
    plan = grid_plan(tmp_path)
    base = BASE.replace('name = "tiny"', 'name = "other"')
    base = base.replace("[topic]", "[cluster]\nbrokers = 3\n[topic]")  # the default
    other = load_plan(write_sweep(tmp_path, (tmp_path / "sweep.toml").read_text(), base))
    assert list(plan.keys()) == list(other.keys())


def test_other_code_has_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = grid_plan(tmp_path)
    before = set(plan.keys())
    monkeypatch.setattr("purgatory.sweeps.plan.code_digest", lambda: "other")
    assert not before & set(plan.keys())


def test_content_of_a_request_log_is_part_of_the_key(tmp_path: Path) -> None:
    base = BASE.replace("rate = 100.0", 'arrivals = { file = "log.csv", time = "t" }')
    (tmp_path / "log.csv").write_text("t\n2024-01-01\n")
    file = write_sweep(
        tmp_path, 'name = "s"\nscenario = "tiny.toml"\ngrid."topic.partitions" = [1]\n', base
    )
    before = set(load_plan(file).keys())
    assert set(load_plan(file).keys()) == before
    (tmp_path / "log.csv").write_text("t\n2024-01-02\n")
    assert not before & set(load_plan(file).keys())


def test_a_sample_is_the_same_in_every_process(tmp_path: Path) -> None:
    plan = sample_plan(tmp_path)
    program = (
        "import sys; from purgatory.sweeps.plan import load_plan; "
        "print(*load_plan(sys.argv[1]).keys())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "sweep.toml")],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == list(plan.keys())
    assert list(sample_plan(tmp_path, seed=2).keys()) != list(plan.keys())


def test_a_larger_sample_begins_with_the_smaller_one(tmp_path: Path) -> None:
    few, many = sample_plan(tmp_path, count=10), sample_plan(tmp_path, count=30)
    assert list(many.keys())[: few.scenarios] == list(few.keys())


def test_further_parameter_leaves_samples_of_others_unchanged(tmp_path: Path) -> None:
    alone = sample_plan(tmp_path)
    beside = sample_plan(tmp_path, further='"producers[0].acks" = { choices = ["all", 1] }')
    for point in range(40):
        assert beside.values(point)[:2] == alone.values(point)
    assert {values[2][0] for values in map(beside.values, range(40))} == {"all", 1}


def test_a_sample_keeps_to_its_ranges_and_fills_them(tmp_path: Path) -> None:
    drawn = [sample_plan(tmp_path, 400).values(point) for point in range(400)]
    lags = sorted(lag for (lag, _), _ in drawn)
    assert 0.5 <= lags[0] < 0.7 and 150 < lags[-1] <= 200
    assert 7 < lags[200] < 14  # the middle of 0.5 to 200 on a scale of logarithms is 10
    assert {timeout for _, (timeout, _) in drawn} == {10, 11, 12, 13}


def test_each_setting_is_drawn_by_itself(tmp_path: Path) -> None:
    drawn = [sample_plan(tmp_path, 400).values(point) for point in range(400)]
    assert {timeout for (lag, _), (timeout, _) in drawn if lag < 2} == {10, 11, 12, 13}


def test_keys_have_drawn_numbers_as_the_scenario_does(tmp_path: Path) -> None:
    (lag, normal), _ = sample_plan(tmp_path).values(0)
    assert normal == {"p50": lag, "p75": lag}


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("count", [0, 1, 7, 1_000])
def test_each_scenario_is_in_exactly_one_batch(count: int, cores: int) -> None:
    costs = [random.Random(place).uniform(1, 100) for place in range(count)]
    dealt = batches(costs, cores)
    assert sorted(place for batch in dealt for place in batch) == list(range(count))
    assert all(dealt)


@pytest.mark.parametrize("wrong_by", [1.0, 3.0])
def test_no_core_waits_for_a_straggler(wrong_by: float) -> None:
    chance = random.Random(1)
    expected = [chance.choice([1.0, 2.0, 5.0, 40.0]) for _ in range(1_000)]
    really = [cost * chance.uniform(1 / wrong_by, wrong_by) for cost in expected]
    cores = 2
    busy = [0.0] * cores
    for batch in batches(expected, cores):
        busy[busy.index(min(busy))] += sum(really[place] for place in batch)
    assert sum(busy) / (cores * max(busy)) > 0.98
    in_turn = [sum(really[:500]), sum(really[500:])]
    assert max(busy) < max(in_turn)


def test_most_expensive_scenarios_begin_first() -> None:
    costs = [1.0] * 300 + [100.0]
    dealt = batches(costs, 2)
    assert dealt[0] == [300]
    busy = [0.0, 0.0]
    for batch in dealt:
        busy[busy.index(min(busy))] += sum(costs[place] for place in batch)
    assert max(busy) < 205  # of 400 in all


def test_a_thousand_scenarios_are_not_a_thousand_tasks() -> None:
    assert 16 < len(batches([1.0] * 1_000, 2)) < 100


def test_more_records_and_readers_are_expected_to_cost_more() -> None:
    costs = {}
    for name in shipped_scenarios():
        document = load_scenario(name).scenario.model_dump(mode="json")
        costs[name] = expected_cost(document)
        for key, value in (("duration_ms", 10 * document["duration_ms"]), ("consumers", [])):
            changed = expected_cost({**document, key: value})
            assert changed > costs[name] if key == "duration_ms" else changed <= costs[name]
    assert all(cost > 0 for cost in costs.values())


def test_the_package_has_its_function() -> None:
    assert sweeps.sweep is run.sweep
