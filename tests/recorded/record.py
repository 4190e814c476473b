"""Records what a real Kafka answers the programs: `make record`.

    make record                          # all programs, all versions: half an hour
    make record KAFKA=4.3.1 ONLY=fetch   # the programs of one file
    make record PORT=27000               # where the default port is taken

Each program runs at two fresh clusters. A field in which the two differ is noise, and is compared
with nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import click

from tests.recorded.comparison import VARIES, without_noise
from tests.recorded.placement import Placement, place
from tests.recorded.programs.expirations import CHECK_INTERVAL_MS, RETENTION_MINUTES
from tests.recorded.programs.registry import EXPIRATIONS, PROGRAMS, SEEDS, SEQUENCES
from tests.recorded.real_kafka import (
    DEFAULT_PORT,
    HOST,
    RealKafka,
    RealKafkaError,
    clients_jar,
    real_kafka,
)
from tests.recorded.recorder import Step, run_program, warm_up
from tests.recorded.recordings import NEWEST, VERSIONS, write_recording
from tests.recorded.replay import our_placement
from tests.recorded.schemas import has_schemas, store_schemas
from tests.recorded.sequences import kills_brokers

_AT_ONCE = 4
_ALONE = ("garbage.", "deaths.", "configs.listed_resources", "configs.altered_settings")
"""Programs that others would notice: they run alone, at the end."""

_EXPIRING = {
    "offsets.retention.minutes": RETENTION_MINUTES,
    "offsets.retention.check.interval.ms": CHECK_INTERVAL_MS,
}
"""The settings of the brokers whose offsets expire."""

_SEQUENCES_ALONE = {f"{SEQUENCES}.seed_{seed}" for seed in SEEDS if kills_brokers(seed)}

_NEEDS_NEWEST = ("share_groups.", "streams_groups.", "sequences.", EXPIRATIONS)
"""Programs of requests whose versions the others don't know, and those that tell less of them."""


@click.command()
@click.option("--version", "versions", multiple=True, help="A version of Kafka; all by default.")
@click.option("--only", multiple=True, help="Programs whose names begin so.")
@click.option("--port", default=DEFAULT_PORT, help="The first broker's port.")
def main(versions: Sequence[str], only: Sequence[str], port: int) -> None:
    """Record programs."""
    try:
        if not only or not has_schemas():
            store_schemas(clients_jar(NEWEST))
        for version in versions or VERSIONS:
            _record(version, only, port)
    except RealKafkaError as error:
        raise click.ClickException(str(error)) from None


def _record(version: str, only: Sequence[str], port: int) -> None:
    names = [name for name in PROGRAMS if name.startswith(tuple(only) or "")]
    if version != NEWEST:
        names = [name for name in names if not name.startswith(_NEEDS_NEWEST)]
    runs, placement = [], our_placement()
    expiring = [name for name in names if name.startswith(EXPIRATIONS)]
    others = [name for name in names if name not in expiring]
    for run in ("r1a2b3c", "r4d5e6f"):
        found: dict[str, list[Step]] = {}
        for part, more in ((others, lambda _: {}), (expiring, lambda _: _EXPIRING)):
            if part:
                with real_kafka(version, port, more=more) as kafka:
                    found |= asyncio.run(_run_all(part, kafka, run, placement))
        runs.append(found)
        click.echo(f"Kafka {version}: ran {len(names)} programs as {run}")
    for name in names:
        one, other = (run[name] for run in runs)
        steps = _without_noise(one, other)
        noisy = sum(VARIES in str(step.answer) for step in steps)
        ends = [f", {step.name}: {step.answer}" for step in steps if step.name.startswith("end of")]
        click.echo(f"{version} {name}: {len(steps)} steps, {noisy} with noise{''.join(ends)}")
        write_recording(version, name, steps)


async def _run_all(
    names: Sequence[str], kafka: RealKafka, run: str, placement: Placement
) -> Mapping[str, list[Step]]:
    await place(HOST, kafka.port, placement)
    await warm_up(HOST, kafka.port)
    found: dict[str, list[Step]] = {}
    free = asyncio.Semaphore(_AT_ONCE)

    async def run_one(name: str) -> None:
        async with free:
            found[name] = await run_program(PROGRAMS[name], HOST, kafka.port, run, kafka)

    alone = [name for name in names if name.startswith(_ALONE) or name in _SEQUENCES_ALONE]
    await asyncio.gather(*(run_one(name) for name in names if name not in alone))
    for name in alone:
        await run_one(name)
    return found


def _without_noise(one: Sequence[Step], other: Sequence[Step]) -> list[Step]:
    again = dict(other)
    return [Step(name, without_noise(answer, again.get(name, VARIES))) for name, answer in one]


if __name__ == "__main__":
    main()
