"""Sweep files: errors have the key, the value and a valid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory.sweeps.plan import MOST_SCENARIOS, Plan, load_plan, parse_plan
from purgatory.sweeps.sweep_file import SweepError
from tests.spark.pipeline.sweeps.small_sweeps import BASE, grid_plan, write_sweep

HEAD = 'name = "s"\nscenario = "tiny.toml"\n'
ONE = '[grid]\n"topic.partitions" = [1, 2]\n'


def planned(folder: Path, text: str) -> Plan:
    return load_plan(write_sweep(folder, text))


def grid_of(folder: Path, setting: str) -> Plan:
    return planned(folder, f"{HEAD}[grid]\n{setting}\n")


def refused(folder: Path, text: str) -> str:
    with pytest.raises(SweepError) as raised:
        planned(folder, text)
    message = str(raised.value)
    assert message.startswith(str(folder / "sweep.toml") + ": ")
    return message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "not a TOML document"),
        (ONE, "name: this key is missing and must be given"),
        (HEAD, "give exactly one of [grid]"),
        (HEAD + "repetition = 2\n" + ONE, "repetition = 2: there is no such key; did you mean"),
        (HEAD + "repetitions = 0\n" + ONE, "repetitions = 0: must be greater than or equal to 1"),
        (HEAD + "repetitions = true\n" + ONE, "repetitions = true: must be a valid integer"),
        (
            HEAD + ONE + '[[questions]]\nfind = "topic.partitions"',
            "give exactly one of below and above",
        ),
        (
            HEAD + ONE + '[[questions]]\nfind = "topic.partitions"\nbelow = 1\nmeasure = "expiry"',
            'questions[0].measure = "expiry": is no measure; ',
        ),
        (
            HEAD + ONE + '[[questions]]\nfind = "followers.lag_ms"\nbelow = 1',
            'questions[0].find = "followers.lag_ms": is not swept; swept are topic.partitions',
        ),
        (
            HEAD + ONE + '[[heatmaps]]\nx = "topic.partition"',
            'heatmaps[0].x = "topic.partition": is not swept',
        ),
        (HEAD + '[sample]\ncount = 3\nsettings."topic.partitions" = 4', "must be { from = ..., to"),
        (
            HEAD + '[sample]\ncount = 3\nsettings."topic.partitions" = { from = 4, to = 2 }',
            '"topic.partitions": from must be below to, which is 2',
        ),
        (
            HEAD + '[sample]\ncount = 3\nsettings."followers.lag_ms" = { from = 0, to = 2,'
            ' scale = "log" }',
            "from must be above 0",
        ),
        (
            HEAD + '[sample]\ncount = 3\nsettings."topic.partitions" = { from = -4, to = 2 }',
            '"topic.partitions" = -4: must be greater than or equal to 1',
        ),
        ('name = "s"\nscenario = "slow-folower"\n' + ONE, 'did you mean "slow-follower"?'),
        ('name = "s"\nscenario = "gone.toml"\n' + ONE, "no such file"),
    ],
)
def test_mistake_in_the_file_is_named_with_a_valid_value(
    tmp_path: Path, text: str, said: str
) -> None:
    assert said in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('"topic.partition" = [1]', "there is no key 'partition'; did you mean \"partitions\"?"),
        ('"topic.partitions" = 3', "= 3: must be a list of at least one value"),
        ('"topic.partitions" = []', "must be a list of at least one value"),
        ('"topic.partitions" = [1, "two"]', "[1] = 'two': must be a valid integer"),
        ('"topic.partitions" = [0]', "[0] = 0: must be greater than or equal to 1"),
        ('"producers.rate" = [1.0]', "say which of producers: producers[0], [orders], "),
        ('"producers[2].rate" = [1.0]', "there is no producers[2]; they are numbered 0 to 1"),
        ('"producers[order].rate" = [1.0]', "there are [orders], [click.stream], 0 to 1"),
        ('"topic[0].partitions" = [1]', "topic is not an array: leave out [0]"),
        ('"producers[0].arrivals.speed" = [2.0]', "has no producers[0].arrivals"),
        ('"topic..partitions" = [1]', "is no path of a setting"),
        ('"seed" = [1, 2]', "can't be swept: seeds come from `repetitions`"),
        ('"faults[0].kind" = ["fire"]', "[0] = 'fire'"),
        ('"topic.partitions" = [1]\n"topic_partitions" = [2]', "there is no key"),
    ],
)
def test_unknown_setting_or_value_is_named(tmp_path: Path, setting: str, said: str) -> None:
    message = refused(tmp_path, f"{HEAD}[grid]\n{setting}\n")
    assert said in message
    assert 'grid."' in message


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    message = refused(tmp_path, HEAD + '[grid]\n"topic.partitions" = [0]\n"topic.size" = [1]\n')
    assert len(message.splitlines()) == 2


def test_value_valid_only_with_another_setting_is_accepted(tmp_path: Path) -> None:
    text = '"topic.replication_factor" = [3, 5]\n"cluster.brokers" = [3, 5]'
    assert grid_of(tmp_path, text).points == 4


def test_too_many_scenarios_are_refused_before_anything_is_run(tmp_path: Path) -> None:
    values = ", ".join(str(number) for number in range(1, 1_102))
    text = f'"topic.partitions" = [{values}]\n"producers[0].timeout_ms" = [{values}]'
    message = refused(tmp_path, f"{HEAD}repetitions = 1\n[grid]\n{text}\n")
    assert f"at most {MOST_SCENARIOS:,} are possible" in message


def test_a_path_may_be_quoted_or_not(tmp_path: Path) -> None:
    quoted = grid_of(tmp_path, '"followers.lag_ms" = [1, 2]')
    plain = grid_of(tmp_path, "followers.lag_ms = [1, 2]")
    assert quoted.parameters == plain.parameters


def test_a_group_is_named_by_number_by_name_and_by_a_star(tmp_path: Path) -> None:
    def resolve_path(path: str) -> object:
        return grid_of(tmp_path, f'"{path}" = [7]').parameters[0].key_paths

    second = ("producers", 1, "timeout_ms")
    assert resolve_path("producers[1].timeout_ms") == (second,)
    assert resolve_path("producers[click.stream].timeout_ms") == (second,)
    assert resolve_path("producers[*].timeout_ms") == (("producers", 0, "timeout_ms"), second)


def test_the_base_scenario_lies_beside_the_sweep_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert grid_plan(tmp_path).base["duration_ms"] == 200


def test_a_shipped_scenario_is_found_by_its_name() -> None:
    plan = parse_plan('name = "s"\nscenario = "steady"\n[grid]\ntopic.partitions = [2]\n')
    assert plan.base["topic"]["partitions"] == 6
    assert plan.document(0)["topic"]["partitions"] == 2


def test_whole_lists_of_faults_are_values_too(tmp_path: Path) -> None:
    stall = '{ kind = "pause", broker = 1, at_ms = 20, duration_ms = 30 }'
    plan = grid_of(tmp_path, f"faults = [[], [{stall}]]")
    assert [len(plan.document(point)["faults"]) for point in range(2)] == [0, 1]
    assert "pause" in plan.table()["faults"].to_pylist()[-1]


def test_two_settings_with_one_column_are_refused(tmp_path: Path) -> None:
    base = BASE.replace('"orders"', '"click_stream"')
    settings = [f'"producers[{name}].count" = [1]' for name in ("click.stream", "click_stream")]
    text = HEAD + "[grid]\n" + "\n".join(settings)
    with pytest.raises(SweepError, match="its column 'producers_click_stream_count' is taken"):
        load_plan(write_sweep(tmp_path, text, base))
