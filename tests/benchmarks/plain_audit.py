"""The counts of an audit by plain SQL, as somebody writes it for one question.

    python -m tests.benchmarks.plain_audit FOLDER

It takes the large traces of the tests (`tests/pipeline/large_traces.py`) and prints how often each
anomaly is there, as JSON. Rows are not checked, nothing is judged, no case is shown, and it knows
of no settings: it is what the audit's costs are measured against.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import duckdb

TABLES = ("sends", "reads", "effects", "commits", "transactions")

RECORDS = """
create temp table records as
with epochs as (
    select run_id, transactional_id, epoch, min(min(epoch_us)) over (
        partition by run_id, transactional_id order by epoch desc
        rows between unbounded preceding and 1 preceding) as superseded_us
    from transactions group by run_id, transactional_id, epoch
), settled as (
    select sends.*, coalesce(ends.outcome = 'aborted', false) as gone,
           coalesce(send_us > ended_us, false) or coalesce(send_us > superseded_us, false) as late
    from sends left join transactions as ends using (run_id, transaction)
    left join epochs on sends.run_id = epochs.run_id and sends.epoch = epochs.epoch
                    and sends.transactional_id = epochs.transactional_id
), sent as (
    select run_id, topic, value_id, any_value(producer) as producer,
           any_value(sequence) as sequence, any_value(partition) as partition,
           count(*) as attempts, max(attempt) as last_attempt,
           bool_or(outcome = 'ok' and not gone) as ok, bool_and(outcome = 'fail' or gone) as failed,
           bool_or(gone) as gone, bool_or(late and outcome = 'ok') as late,
           min(attempt) filter (outcome = 'unknown') as unknown_attempt,
           max("offset") filter (outcome = 'ok' and not gone) as acked
    from settled group by all
), stored as (
    select run_id, topic, value_id, count(distinct "offset") as places, min("offset") as first
    from reads group by all
), reached as (
    select run_id, topic, partition, max("offset") as reached from reads group by all
)
select sent.*, coalesce(places, 0) as places, first, reached,
       coalesce(places > 0 and acked <= reached and acked <> first and places = 1, false) as moved
from sent left join stored using (run_id, topic, value_id)
left join reached using (run_id, topic, partition)
"""

QUESTIONS = {
    "records": """
select count(*) filter ((places > 1 and not gone) or moved) as duplicate,
       count(*) filter (places > 1 and unknown_attempt < last_attempt) as lost_ack_duplicate,
       count(*) filter (ok and places = 0 and acked <= reached) as lost_write,
       count(*) filter (moved) as moved_write,
       count(*) filter (ok and places = 0 and acked > reached) as unseen,
       count(*) filter (failed and places > 0) as aborted_read,
       count(*) filter (late) as zombie_write
from records
""",
    "offsets": """
select count(*) as inconsistent_offset from (
    select 1 from (
        select run_id, topic, partition, "offset", value_id from reads
        union all select run_id, topic, partition, "offset", value_id from sends
        where outcome = 'ok' and "offset" is not null)
    group by run_id, topic, partition, "offset" having min(value_id) <> max(value_id))
""",
    "order": """
with placed as (
    select run_id, producer, topic, partition, sequence, attempts,
           coalesce(first, case when acked > reached then acked end) as place
    from records where not gone
), known as (
    select *, min(place) over (partition by run_id, producer, topic, partition
        order by sequence desc rows between unbounded preceding and 1 preceding) as later
    from placed where place is not null
)
select count(*) filter (later < place and attempts > 1) as retry_reorder,
       count(*) filter (later < place and attempts = 1) as nonmonotonic_send
from known
""",
    "numbers": """
select sum(missing)::bigint as sequence_gap from (
    select max(sequence) - min(sequence) + 1 - count(distinct sequence) as missing from records
    where places > 0 or gone or acked > reached group by run_id, producer)
""",
    "writers": """
with spans as (
    select run_id, topic, partition, producer, min(send_us) as start_us,
           max(greatest(send_us, answer_us)) as end_us
    from sends where outcome <> 'fail' group by all
), known as (
    select *, max(end_us) over (partition by run_id, topic, partition order by start_us, producer
        rows between unbounded preceding and 1 preceding) as earlier_us from spans
)
select count(*) as multi_writer from known where start_us < earlier_us
""",
    "polls": """
with seen as (
    select run_id, topic, partition, "offset", "group", consumer, poll,
           dense_rank() over (partition by run_id, topic, partition order by "offset") as place
    from reads anti join (select run_id, topic, value_id from records where gone)
    using (run_id, topic, value_id)
), polls as (
    select run_id, "group", consumer, topic, partition, poll, min(place) as first,
           max(place) as last, count(distinct place) as number
    from seen group by all
), steps as (
    select *, lag(last) over (partition by run_id, "group", consumer, topic, partition
        order by poll) as before
    from polls
)
select count(*) filter (first > before + 1) + count(*) filter (last - first + 1 > number)
           as poll_skip,
       count(*) filter (first <= before) as nonmonotonic_poll
from steps
""",
    "keys": """
with known as (
    select version, max(version) over (partition by run_id, "group", topic, key
        order by time_us, partition, "offset", version
        rows between unbounded preceding and 1 preceding) as highest
    from effects
)
select count(*) as key_order_violation from known where version < highest
""",
    "inputs": """
with committed as (
    select run_id, "group", topic, partition, max("offset") as committed from commits group by all
), own as (
    select run_id, "group", topic, partition, transaction, max("offset") as committed_with_it
    from commits where transaction is not null group by all
), applied as (
    select run_id, "group", topic, partition, "offset", count(*) as effects,
           any_value(transaction) as transaction
    from effects group by all
), delivered as (
    select run_id, "group", topic, partition, "offset", count(*) as deliveries,
           count(*) filter (applied) as applied
    from reads group by all
), inputs as (
    select *, (run_id, "group") in (select distinct (run_id, "group") from effects) as recorded
    from delivered full join applied using (run_id, "group", topic, partition, "offset")
    left join committed using (run_id, "group", topic, partition)
    left join own using (run_id, "group", topic, partition, transaction)
), counted as (
    select *, case when recorded then coalesce(effects, 0) else applied end as times from inputs
)
select count(*) filter (deliveries > 1 and times = 1) as reprocess,
       count(*) filter (times > 1) as effect_duplicate,
       count(*) filter (recorded and times = 0 and "offset" < committed) as offset_without_result,
       count(*) filter (recorded and times > 0 and ("offset" >= coalesce(committed, 0)
           or (transaction is not null and coalesce("offset" >= committed_with_it, true))))
           as result_without_offset
from counted
""",
    "transactions": """
with written as (
    select run_id, transaction, topic, partition, "offset", ends.outcome, decided_us
    from sends join transactions as ends using (run_id, transaction)
    where ends.outcome <> 'aborted' and sends.outcome = 'ok'
), reached as (
    select run_id, "group", topic, partition, max("offset") as reached from reads group by all
), delivered as (
    select run_id, "group", topic, partition, "offset", min(time_us) as read_us
    from reads semi join written using (run_id, topic, partition, "offset") group by all
), parts as (
    select count(read_us) as seen, count(*) as passed, max(written.outcome) as fate,
           bool_or(read_us < decided_us) as early
    from written join reached using (run_id, topic, partition)
    left join delivered using (run_id, "group", topic, partition, "offset")
    where "offset" <= reached group by run_id, "group", transaction
)
select count(*) filter ((seen > 0 and seen < passed and fate <> 'open') or early
    or (fate = 'open' and seen > 0)) as partial_transaction
from parts
""",
}


def plain_counts(folder: Path) -> dict[str, int]:
    """How often each anomaly is there in the traces of a folder, all runs together."""
    counts: dict[str, int] = {}
    with duckdb.connect() as connection:
        connection.execute("SET preserve_insertion_order = false")
        for name in TABLES:
            connection.execute(
                f"CREATE VIEW {name} AS FROM read_parquet('{folder}/*/{name}/*.parquet')"
            )
        connection.execute(RECORDS)
        for question in QUESTIONS.values():
            found = connection.execute(question)
            names = [column[0] for column in found.description or ()]
            counts.update(zip(names, found.fetchone() or (), strict=True))
    return counts


if __name__ == "__main__":
    print(json.dumps(plain_counts(Path(sys.argv[1]))))
