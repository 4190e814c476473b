"""Seeded traces of any size for the benchmark of the pipeline, made by Spark alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PARTITIONS = 48
DURATION_US_PER_OPERATION = 50
"""20,000 operations a second."""
ROWS_PER_FILE = 1_000_000


def write_operations(session: Any, rows: int, folder: Path) -> None:
    """Operations of three brokers: two thirds fetches, exponential waits, 1.5 % expired."""
    ids = session.range(rows, numPartitions=_files(rows))
    chances = [f"rand({seed}) as chance_{seed}" for seed in range(1, 6)]
    ids.selectExpr("id", *chances).selectExpr(
        "*",
        "case when chance_1 < 0.35 then 'producer' when chance_1 < 0.75 then 'follower' "
        "else 'consumer' end as kind",
        "case when chance_2 < 0.05 then 'immediate' when chance_2 < 0.984 then 'completed' "
        "when chance_2 < 0.999 then 'expired' else 'failed' end as outcome",
        f"id * {DURATION_US_PER_OPERATION} + cast(chance_3 * 50 as bigint) as start_us",
    ).selectExpr(
        "*",
        "case outcome when 'immediate' then 0L "
        "when 'expired' then 1500000 + cast(chance_4 * 1000 as bigint) "
        "else cast(-ln(1 - chance_4) * if(kind = 'producer', 8000, 20000) as bigint) end "
        "as wait_us",
        f"cast(floor(chance_5 * {PARTITIONS}) as int) as place",
    ).selectExpr(
        "'scale' as run_id",
        "place % 3 as broker",
        "if(kind = 'producer', 'Produce', 'Fetch') as purgatory",
        "id as operation",
        "1 as keys",
        "1500L as timeout_ms",
        "start_us",
        "start_us + wait_us as end_us",
        "wait_us",
        "outcome",
        "kind",
        "array(concat('orders-', place)) as watch_keys",
    ).write.parquet(f"file:{folder}")


def write_sends_and_reads(session: Any, rows: int, folder: Path) -> None:
    """Half of the rows are sends of 1,000 idempotent producers; each send is read once."""
    numbers = session.range(rows // 2, numPartitions=_files(rows)).selectExpr(
        "id",
        f"cast(id % {PARTITIONS} as int) as place",
        f"id div {PARTITIONS} as place_offset",
        f"(id % {PARTITIONS}) * 21 + (id div {PARTITIONS}) % 21 as producer",
        f"(id div {PARTITIONS}) div 21 as sequence",
        "id * 100 as at_us",
    )
    numbers.selectExpr(
        "'scale' as run_id",
        "'orders' as `group`",
        "producer",
        "sequence",
        "1 as attempt",
        "id as key",
        "id as value_id",
        "-1 as acks",
        "'ok' as outcome",
        "cast(null as string) as error",
        "at_us as send_us",
        "at_us + 3000 as answer_us",
        "'orders' as topic",
        "place as `partition`",
        "place_offset as `offset`",
        "200L as size_bytes",
    ).write.parquet(f"file:{folder}/sends")
    numbers.selectExpr(
        "'scale' as run_id",
        "'readers' as `group`",
        "cast(place % 4 as bigint) as consumer",
        "place_offset div 50 as poll",
        "'orders' as topic",
        "place as `partition`",
        "place_offset as `offset`",
        "id as value_id",
        "at_us + 9000 as time_us",
        "true as applied",
    ).write.parquet(f"file:{folder}/reads")


def audit_configuration() -> Any:
    """The settings of these producers and consumers."""
    from purgatory.pipeline.jobs.audit import ConsumerSettings, ProducerSettings, RunConfiguration

    return RunConfiguration(
        producers=[ProducerSettings("orders", idempotence=True, max_in_flight=5, retries=10)],
        consumers=[ConsumerSettings("readers", "assign", "read_uncommitted")],
    )


def _files(rows: int) -> int:
    return max(2, rows // ROWS_PER_FILE)
