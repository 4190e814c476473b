"""The programs of the corpus have the bugs that they are there for, and no others."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial

import pytest

from purgatory.virtual import World
from tests.benchmarks.world_kafka_programs import KAFKA_PROGRAMS, KafkaProgram, run_in_world
from tests.benchmarks.world_programs import PROGRAMS, Program, search_worlds

pytestmark = [
    pytest.mark.timeout(600),
    # A process that crashed leaves its clients unclosed.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MENDED_SEEDS = 6


@pytest.fixture(autouse=True)
def _collect_unclosed_clients() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.parametrize("program", PROGRAMS)
def test_first_in_first_out_shows_no_bug_and_other_orders_do(program: Program) -> None:
    with World() as world:
        world.run(program())
    found = search_worlds(program.__name__, lambda world: world.run(program()), 0, "mixed", 400)
    assert found.size, f"no bug in {found.runs} runs"


@pytest.mark.slow
@pytest.mark.parametrize("program", KAFKA_PROGRAMS, ids=lambda program: program.name)
def test_kafka_program_fails_until_it_is_corrected(program: KafkaProgram) -> None:
    run = partial(run_in_world, program)
    found = search_worlds(program.name, run, 0, "fifo", 40)
    assert found.size is not None, f"no bug in {found.runs} runs"
    for seed in {found.runs - 1, *range(MENDED_SEEDS)}:
        with World(seed) as world:
            run_in_world(program, world, is_mended=True)
