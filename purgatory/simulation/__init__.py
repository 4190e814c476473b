"""A simulated cluster in virtual time: its produces and fetches wait in real purgatories.

    from purgatory.simulation import Simulation, load_scenario

    summary = Simulation(load_scenario("slow-follower")).run()

A scenario (`scenario`, `scenario_file`) describes the cluster, its clients and the faults. The
engine (`engine`) runs it on the project's own timer; `purgatory.kafka` is the brokers' code; the
other modules are producers, consumers, followers, a controller and the network. The trace goes to
Parquet (`purgatory.trace`), the summary (`summary`) to the screen.
"""

from purgatory.import_names import needs_extra

with needs_extra(__name__, "simulation"):
    from purgatory.simulation.arrivals import Arrivals, ArrivalsError, BadRow, read_arrivals
    from purgatory.simulation.invariants import InvariantViolation
    from purgatory.simulation.scenario import Scenario
    from purgatory.simulation.scenario_file import (
        LoadedScenario,
        ScenarioError,
        apply_overrides,
        load_scenario,
        parse_scenario,
        shipped_scenarios,
    )
    from purgatory.simulation.simulation import Simulation
    from purgatory.trace.trace_schema import SCHEMA_VERSION
    from purgatory.trace.trace_writer import TraceError

__all__ = [
    "SCHEMA_VERSION",
    "Arrivals",
    "ArrivalsError",
    "BadRow",
    "InvariantViolation",
    "LoadedScenario",
    "Scenario",
    "ScenarioError",
    "Simulation",
    "TraceError",
    "apply_overrides",
    "load_scenario",
    "parse_scenario",
    "read_arrivals",
    "shipped_scenarios",
]
