"""A wrong scenario: the error names file, key, value and what would be right."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from purgatory.simulation import (
    Scenario,
    ScenarioError,
    Simulation,
    apply_overrides,
    load_scenario,
    parse_scenario,
)
from purgatory.simulation.scenario import FAULT_SECTIONS, ClusterSection, NetworkSection

GOOD = """
name = "test"
duration_ms = 1000

[[producers]]
group = "orders"
rate = 10.0
"""


def error_of(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "some.toml", Path())
    return str(caught.value)


def test_the_smallest_scenario_has_defaults() -> None:
    scenario = parse_scenario(GOOD, "some.toml", Path()).scenario
    assert scenario.cluster.brokers == 3
    assert scenario.producers[0].acks == "all"
    assert scenario.producers[0].response_timeout_ms == 2_000
    assert scenario.run_id == "test-1"


def test_times_may_be_timedeltas() -> None:
    scenario = Scenario(
        name="test",
        duration_ms=timedelta(minutes=1),
        cluster=ClusterSection(session_timeout_ms=timedelta(seconds=1)),
        network=NetworkSection.model_validate({"delay_ms": timedelta(microseconds=300)}),
    )
    assert (scenario.duration_ms, scenario.cluster.session_timeout_ms) == (60_000, 1_000)
    assert scenario.network.delay_ms.p50 == 0.3
    slow = {"kind": "slow_follower", "broker": 1, "lag_ms": timedelta(microseconds=5)}
    section = FAULT_SECTIONS["slow_follower"].model_validate({"at_ms": timedelta(0), **slow})
    assert section.fault.settings == {"broker": 1, "lag_ms": 0.005}
    longer = apply_overrides(load_scenario("steady"), duration_ms=timedelta(minutes=2))
    assert longer.scenario.duration_ms == 120_000
    with pytest.raises(ValueError, match=r"(?s)drain_ms.*integer.*0\.5"):
        Scenario(name="test", drain_ms=timedelta(microseconds=500))
    with pytest.raises(ValueError, match=r"(?s)seed.*integer.*timedelta"):
        Scenario.model_validate({"name": "test", "seed": timedelta(1)})


def test_a_scenario_without_clients_is_an_error() -> None:
    assert error_of('name = "test"\nduration_ms = 1000\n') == (
        "some.toml: producers: there are no clients; give at least one [[producers]] or "
        "[[consumers]]"
    )
    consumers = 'name = "test"\nduration_ms = 1000\n[[consumers]]\ngroup = "readers"\n'
    assert parse_scenario(consumers, "some.toml", Path()).scenario.consumers


@pytest.mark.parametrize(
    ("addition", "parts"),
    [
        ("acks = 2", ["producers[0].acks = 2", "0, 1 or 'all'"]),
        ("acks = true", ["producers[0].acks = true", "not a truth value"]),
        ('count = "5"', ['producers[0].count = "5"', "must be a valid integer"]),
        ("max_inflight = 3", ["producers[0].max_inflight = 3", 'did you mean "max_in_flight"?']),
        ("batch_size = 0", ["producers[0].batch_size = 0", "greater than or equal to 1"]),
        ("record_bytes = { p50 = 9, p75 = 3 }", ["producers[0].record_bytes", "p75 must be at le"]),
        ("record_bytes = { p50 = 9 }", ["producers[0].record_bytes.p75: this key is missing"]),
        ('partitioner = "md5"', ['producers[0].partitioner = "md5"', "'hash', 'modulo'"]),
        ("idempotence = true\nacks = 1", ["producers[0].acks = 1", 'must be "all" when idemp']),
        ("idempotence = true\nmax_in_flight = 6", ["producers[0].max_in_flight = 6", "at most 5"]),
        ("[topic]\npartitons = 3", ["topic.partitons = 3", 'did you mean "partitions"?']),
        (
            "[topic]\nreplication_factor = 5",
            ["topic.replication_factor = 5", "brokers, which is 3"],
        ),
        ("[topic]\nmin_insync_replicas = 4", ["topic.min_insync_replicas = 4", "which is 3"]),
        ("[clutser]\nbrokers = 3", ["clutser = {'brokers': 3}", 'did you mean "cluster"?']),
        ("[cluster]\nbrokers = 3.5", ["cluster.brokers = 3.5", "must be a valid integer"]),
        ("[network]\ndelay_ms = -1", ["network.delay_ms.p50 = -1", "greater than or equal to 0"]),
        ("[network]\ndelay_ms = nan", ["network.delay_ms", "finite number"]),
        (
            '[[faults]]\nkind = "broker-dies"\nat_ms = 1',
            ['faults[0].kind = "broker-dies"', '"kill"'],
        ),
        ("[[faults]]\nat_ms = 1", ["faults[0].kind: must be one of"]),
        (
            '[[faults]]\nkind = "kill"\nat_ms = 1\nbroker = 3',
            ["faults[0].broker = 3", "numbered 0 to 2"],
        ),
        (
            '[[faults]]\nkind = "pause"\nat_ms = 1\nbroker = 0\nduraton_ms = 3',
            ["faults[0].duraton_ms = 3", 'did you mean "duration_ms"?'],
        ),
        (
            '[[faults]]\nkind = "cut_link"\nat_ms = 1\na = 1\nb = 1',
            ["faults[0]", "brokers 1 and 1 are the same one"],
        ),
        (
            '[[faults]]\nkind = "shrink_isr"\nat_ms = 1\ntopic = "no"\npartition = 9\nbroker = 1',
            ['faults[0].topic = "no"', "faults[0].partition = 9", "numbered 0 to 5"],
        ),
        (
            '[[faults]]\nkind = "lose_responses"\nat_ms = 1\napi = "metadata"\nshare = 2.0',
            ["faults[0].share = 2.0", "less than or equal to 1"],
        ),
        (
            '[[faults]]\nkind = "kill"\nat_ms = 2000\nbroker = 0',
            ["faults[0].at_ms = 2000", "below duration_ms, which is 1000"],
        ),
        (
            '[[faults]]\nkind = "lose_responses"\nat_ms = 1\nclient_id = "nobody"',
            ['faults[0].client_id = "nobody"', "there is no such one; orders"],
        ),
        (
            '[[producers]]\ngroup = "orders"\nrate = 1.0',
            ['producers[1].group = "orders"', "another group"],
        ),
        ('[[producers]]\ngroup = "a b"\nrate = 1.0', ['producers[1].group = "a b"']),
        ('[[producers]]\ngroup = "b"', ["producers[1].rate", "exactly one of rate"]),
        ("[[consumers]]\nmin_bytes = 1", ["consumers[0].group: this key is missing"]),
        (
            '[[consumers]]\ngroup = "x"\nrequest_timeout_ms = 500',
            ["consumers[0].request_timeout_ms = 500", "above max_wait_ms, which is 500"],
        ),
        (
            '[[faults]]\nkind = "lose_responses"\nat_ms = 1\napi = "find_coordinator"',
            ['faults[0].api = "find_coordinator"', "there is no such one"],
        ),
        ('[faults]\nkind = "kill"', ["faults = ", "begin each with [[faults]]"]),
        ("record_bytes = 0.5", ["producers[0].record_bytes = 0.5", "must be at least 1"]),
        ('[topic]\nname = "__consumer_offsets"', ["topic.name", "the cluster's own"]),
        (f"[network]\ndelay_ms = 1{'0' * 400}", ["network.delay_ms", "1000000000"]),
    ],
)
def test_error_names_file_key_value_and_valid_values(addition: str, parts: list[str]) -> None:
    message = error_of(GOOD + addition)
    assert message.startswith("some.toml: ")
    for part in parts:
        assert part in message
    assert "pydantic" not in message


@pytest.mark.parametrize(
    ("addition", "key"),
    [
        ("transactions = {}", "producers[0].transactions = {}"),
        *(
            (f'[[consumers]]\ngroup = "x"\n{key} = {value}', f"consumers[0].{key} = {value}")
            for key, value in (
                ("membership", '"dynamic"'),
                ("isolation", '"read_committed"'),
                ("topic", '"results"'),
                ("session_timeout_ms", 5),
                ("heartbeat_interval_ms", 5),
                ("max_poll_interval_ms", 5),
                ("commit_interval_ms", 5),
                ("stay_ms", 5),
                ("away_ms", 5),
            )
        ),
        ("[cluster]\ninitial_rebalance_delay_ms = 5", "cluster.initial_rebalance_delay_ms = 5"),
        ("[delete_records]\ninterval_ms = 5", "delete_records = {'interval_ms': 5}"),
    ],
)
def test_former_key_is_refused_with_its_replacement(addition: str, key: str) -> None:
    message = error_of(GOOD + addition)
    assert message.startswith(f"some.toml: {key}: gone from simulations: ")
    assert "in a virtual world (docs/virtual.md)" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("name", ["rebalance-storm", "transactions"])
def test_former_scenario_is_refused_with_its_replacement(name: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^{name}: gone from simulations: .* virtual world"):
        load_scenario(name)


def test_all_errors_are_reported_at_once() -> None:
    message = error_of(GOOD + "acks = 7\nretries = -1\n[topic]\npartitions = 0")
    assert len(message.splitlines()) == 3
    assert all(line.startswith("some.toml: ") for line in message.splitlines())


def test_a_duration_is_needed_unless_all_arrivals_are_recorded() -> None:
    assert "duration_ms" in error_of('name = "x"\n[[producers]]\ngroup = "g"\nrate = 1.0')
    recorded = 'name = "x"\n[[producers]]\ngroup = "g"\narrivals = { file = "a.csv", time = "t" }'
    assert parse_scenario(recorded, "some.toml", Path()).scenario.duration_ms is None


def test_a_fault_after_the_last_recorded_arrival_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t\n2026-01-01T00:00:00Z\n2026-01-01T00:00:00.050Z\n")
    recorded = 'name = "x"\n[[producers]]\ngroup = "g"\narrivals = { file = "a.csv", time = "t" }'
    fault = '\n[[faults]]\nkind = "kill"\nbroker = 1\nat_ms = '
    Simulation(parse_scenario(f"{recorded}{fault}50", "some.toml", tmp_path))
    with pytest.raises(ScenarioError, match=r"some.toml: faults\[0\].at_ms = 51: must be below 51"):
        Simulation(parse_scenario(f"{recorded}{fault}51", "some.toml", tmp_path))


def test_simulated_record_has_at_least_a_byte(tmp_path: Path) -> None:
    small = parse_scenario(f"{GOOD}record_bytes = {{ p50 = 1, p75 = 9 }}", "some.toml", tmp_path)
    (group,) = Simulation(small).run()["producers"]
    assert group["acknowledged"] == group["records"] >= 9


def test_toml_error_names_the_line() -> None:
    assert "not a TOML document" in error_of("name = ")
    assert "at line 2" in error_of("x = 1\nname = = 2\ny = 3")
    for unreadable in (f"seed = {'1' * 5_000}", f"x = {'[' * 5_000}"):
        assert "not a TOML document" in error_of(unreadable)


def test_error_of_an_unknown_scenario_names_the_shipped_ones() -> None:
    with pytest.raises(ScenarioError, match=r'did you mean "steady"\? shipped are .*slow-follower'):
        load_scenario("stedy")
    with pytest.raises(ScenarioError, match="no such file"):
        load_scenario("folder/none.toml")


def test_folder_is_refused_as_a_scenario(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is a folder; name the TOML file in it"):
        load_scenario(tmp_path)


def test_shipped_scenario_takes_precedence_over_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steady").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_scenario("steady").scenario.name == "steady"


def test_overrides_are_validated() -> None:
    loaded = load_scenario("leader-failover")
    assert apply_overrides(loaded, seed=7).scenario.run_id == "leader-failover-7"
    assert apply_overrides(loaded).scenario is loaded.scenario
    with pytest.raises(ScenarioError, match=r"seed = -1: must be greater than or equal to 0"):
        apply_overrides(loaded, seed=-1)
    with pytest.raises(ScenarioError, match=r"faults\[0\].at_ms = 5000: must be below"):
        apply_overrides(loaded, duration_ms=5_000)
