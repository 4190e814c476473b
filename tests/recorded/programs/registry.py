"""All programs by name, in the order in which a real cluster runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.recorded.programs import (
    configs,
    consumer_groups,
    deaths,
    expirations,
    fetch,
    garbage,
    groups,
    metadata,
    offsets,
    produce,
    security,
    share_groups,
    streams_groups,
    topics,
    transactions,
)
from tests.recorded.recorder import Program
from tests.recorded.sequences import random_program

_PROGRAMS: Sequence[Program] = (
    metadata.api_versions,
    metadata.api_versions_of_the_future,
    metadata.metadata,
    metadata.automatic_topics,
    metadata.describe_cluster,
    metadata.topic_partitions,
    topics.create_topics,
    topics.create_partitions,
    topics.delete_topics,
    topics.elect_leaders,
    topics.reassignments,
    topics.log_dirs,
    configs.topic_settings,
    configs.broker_settings,
    configs.created_settings,
    configs.replaced_settings,
    produce.versions,
    produce.without_acks,
    produce.odd_batches,
    produce.topics_limits,
    produce.idempotent,
    produce.unknown_producers,
    fetch.fetch,
    fetch.followers,
    fetch.sessions,
    fetch.list_offsets,
    fetch.greatest_timestamp,
    fetch.delete_records,
    fetch.compacted,
    fetch.leader_epochs,
    fetch.open_transaction,
    groups.find_coordinator,
    groups.errors,
    groups.two_members,
    groups.static_members,
    groups.static_members_wait,
    groups.late_members,
    groups.generations,
    groups.never_came,
    offsets.commits,
    offsets.last_offset,
    offsets.members_commits,
    offsets.lists_of_groups,
    consumer_groups.joining,
    consumer_groups.one_member,
    consumer_groups.two_members,
    consumer_groups.static_member,
    consumer_groups.regular_expression,
    consumer_groups.kinds_together,
    share_groups.heartbeats,
    share_groups.records,
    share_groups.offsets,
    share_groups.left_alone,
    streams_groups.joining,
    streams_groups.internal_topics,
    streams_groups.unfit_topics,
    streams_groups.two_members,
    streams_groups.kinds_together,
    transactions.init,
    transactions.old_protocol,
    transactions.next_protocol,
    transactions.mixed_protocols,
    transactions.offsets,
    transactions.pending_group,
    transactions.ended_again,
    transactions.old_offsets,
    transactions.timeout,
    transactions.timeout_of_next,
    transactions.lists,
    transactions.markers,
    security.access_control,
    security.credentials,
    security.quotas,
    security.throttled_clients,
    garbage.bytes_of_no_request,
    garbage.rare_requests,
    deaths.coordinator_of_a_group,
    deaths.leader_without_followers,
    deaths.leader_with_followers,
    deaths.too_few_replicas,
    configs.listed_resources,
    configs.altered_settings,
    expirations.groups,
    expirations.deletions,
)


def _name(program: Program) -> str:
    return f"{program.__module__.rsplit('.', 1)[-1]}.{program.__qualname__}"


SEEDS = (1, 2, 3, 4, 5, 6, 101, 1054, 1063, 1064, 1115, 1165, 10_005)
"""The random sequences that are recorded, too: a few, and those that found a difference."""

EXPIRATIONS = "expirations."
"""The start of the programs whose brokers keep offsets for a short time."""

SEQUENCES = "sequences"
"""The start of their names."""

PROGRAMS: Mapping[str, Program] = {
    **{f"{SEQUENCES}.seed_{seed}": random_program(seed) for seed in SEEDS},
    **{_name(program): program for program in _PROGRAMS},
}
"""Those that alter a cluster for all are the last."""
