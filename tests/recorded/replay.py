"""The programs at ours, in virtual time, and what a real Kafka was answered beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import structlog

from purgatory.cluster import Authorization
from purgatory.kafka import GroupConfig
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.recorded.comparison import Difference, compare
from tests.recorded.placement import Placement, read_placement
from tests.recorded.programs.expirations import CHECK_INTERVAL_MS, RETENTION_MINUTES
from tests.recorded.programs.registry import EXPIRATIONS, PROGRAMS
from tests.recorded.recorder import Pace, Program, Step, run_program, warm_up
from tests.recorded.recordings import NEWEST, has_recording, read_recording

BROKERS = 3
OFFSETS_PARTITIONS = TRANSACTIONS_PARTITIONS = 5
MIN_SESSION_TIMEOUT_MS = 100
RUN = "r000000"
SUPER_USER = "User:ANONYMOUS"
"""All clients, since none of them logs in."""

_SEED = 1
_GROUPS = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=MIN_SESSION_TIMEOUT_MS)
_EXPIRING = replace(
    _GROUPS,
    offsets_retention_ms=60_000 * RETENTION_MINUTES,
    offsets_retention_check_interval_ms=CHECK_INTERVAL_MS,
)


def replay_named(name: str) -> list[Step]:
    """Run a program of the registry at a cluster of ours, as it is recorded."""
    return replay(PROGRAMS[name], expires=name.startswith(EXPIRATIONS))


def replay(
    program: Program, run: str = RUN, pace: Pace | None = None, expires: bool = False
) -> list[Step]:
    """Run a program at a cluster of ours, with the settings of the real one.

    Args:
        expires: whether offsets are kept for a short time.
    """
    with _cluster(_EXPIRING if expires else _GROUPS) as (world, cluster):
        return world.run(run_program(program, *_address(cluster), run, cluster, pace))


def our_placement() -> Placement:
    """Return where the coordinators' topics are at a cluster of ours before a program."""
    with _cluster(_GROUPS) as (world, cluster):
        return world.run(read_placement(*_address(cluster)))


@contextmanager
def _cluster(groups: GroupConfig) -> Iterator[tuple[World, WorldCluster]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with World(_SEED, plain_network=True) as world:
        cluster = world.cluster(
            BROKERS,
            default_replication=1,
            authorization=Authorization(super_users=[SUPER_USER]),
            offsets_partitions=OFFSETS_PARTITIONS,
            transactions_partitions=TRANSACTIONS_PARTITIONS,
            groups=groups,
        )
        world.run(warm_up(*_address(cluster)))
        yield world, cluster


def _address(cluster: WorldCluster) -> tuple[str, int]:
    host, port = cluster.bootstrap_servers.split(",")[0].split(":")
    return host, int(port)


def differences_from(
    name: str, replayed: Sequence[Step], version: str = NEWEST
) -> list[Difference]:
    """Return a program's differences from a version of Kafka.

    Ours is right where it is as the newest Kafka, and an older one differs.
    """
    older = compare(read_recording(version, name), replayed)
    if version == NEWEST or not has_recording(NEWEST, name):
        return older
    recorded = read_recording(NEWEST, name)
    of_newest = compare(recorded, replayed)
    known = {step.name for step in recorded}
    places = {(one.step, one.path) for one in of_newest}
    return [one for one in older if one.step not in known or _is_at(one, places)]


def _is_at(difference: Difference, places: set[tuple[str, str]]) -> bool:
    """Whether the newest Kafka differs from ours there, too."""
    step, path = difference.step, difference.path
    return any(
        step == other and (path.startswith(place) or place.startswith(path))
        for other, place in places
    )
