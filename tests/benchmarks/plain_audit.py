"""The counts of an audit by plain SQL of DuckDB, as somebody writes it by hand for one trace.

    python -m tests.benchmarks.plain_audit TRACE

It takes a trace of `large_traces` and prints how often each anomaly is there, and the seconds of
computing, as JSON. Rows are not checked, nothing is judged, no case is shown, and it knows of no
settings, text ids or unknown times: it is what the audit's costs are measured against.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb

TABLES = ("sends", "reads", "effects", "commits", "transactions")

STEPS = (
    """
create temp table fenced as
with epochs as (
    select transactional_id, epoch, min(epoch_us) as given_us from transactions group by all
    union all select distinct transactional_id, epoch, null from sends
    where transactional_id is not null
)
select transactional_id, epoch, min(min(given_us)) over (
           partition by transactional_id order by epoch desc
           rows between unbounded preceding and 1 preceding) as fenced_us
from epochs group by transactional_id, epoch
""",
    # A row per record that was sent.
    """
create temp table records as
with attempts as (
    select value_id, producer, sequence, topic, "partition", attempt, "offset", send_us,
           ends.outcome = 'aborted' as aborted,
           case when ends.outcome = 'aborted' then 'fail' else sends.outcome end as outcome,
           send_us > ended_us or send_us > fenced_us as late
    from sends left join transactions as ends using (transaction)
    left join fenced on fenced.transactional_id = sends.transactional_id
                    and fenced.epoch = sends.epoch
), sent as (
    select value_id, any_value(producer) as producer, any_value(sequence) as sequence,
           any_value(topic) as topic, any_value("partition") as "partition",
           max(attempt) as attempts, bool_or(outcome = 'ok') as ok,
           bool_and(outcome = 'fail') as failed, bool_or(aborted) as aborted,
           bool_or(late and outcome = 'ok') as late,
           min(attempt) filter (outcome = 'unknown') as unknown_attempt,
           max("offset") filter (outcome = 'ok') as acked
    from attempts group by value_id
), stored as (
    select value_id, count(distinct "offset") as places, min("offset") as first
    from reads group by value_id
), reached as (
    select topic, "partition", max("offset") as reached from reads group by all
)
select sent.*, coalesce(places, 0) as places, first, acked > reached as beyond,
       places = 1 and acked <= reached and acked <> first as moved
from sent left join stored using (value_id) left join reached using (topic, "partition")
""",
)

QUESTIONS = (
    """
select count_if((places > 1 and aborted is not true) or moved) as duplicate,
       count_if(places > 1 and unknown_attempt < attempts) as lost_ack_duplicate,
       count_if(ok and places = 0 and not beyond) as lost_write,
       count_if(moved) as moved_write,
       count_if(ok and places = 0 and beyond) as unseen,
       count_if(failed and places > 0) as aborted_read,
       count_if(late) as zombie_write,
       count_if(not ok and places = 0 and aborted is not true) as failed_send
from records
""",
    """
select count(*) as inconsistent_offset from (
    select 1 from (
        select topic, "partition", "offset", value_id from reads
        union all select topic, "partition", "offset", value_id from sends where outcome = 'ok')
    group by topic, "partition", "offset" having min(value_id) <> max(value_id))
""",
    """
with placed as (
    select producer, topic, "partition", sequence, attempts,
           case when places > 0 then first when beyond then acked end as place
    from records where aborted is not true
), known as (
    select place, attempts, min(place) over (partition by producer, topic, "partition"
        order by sequence desc rows between unbounded preceding and 1 preceding) as later
    from placed where place is not null
)
select count_if(later < place and attempts > 1) as retry_reorder,
       count_if(later < place and attempts = 1) as nonmonotonic_send
from known
""",
    """
select sum(missing)::bigint as sequence_gap from (
    select max(sequence) - min(sequence) + 1 - count(distinct sequence) as missing
    from records where places > 0 or aborted or beyond group by producer)
""",
    """
with spans as (
    select topic, "partition", producer, min(send_us) as start_us,
           max(greatest(send_us, answer_us)) as end_us
    from sends where outcome <> 'fail' group by all
), known as (
    select start_us, max(end_us) over (partition by topic, "partition" order by start_us, producer
        rows between unbounded preceding and 1 preceding) as earlier_us from spans
)
select count_if(start_us < earlier_us) as multi_writer from known
""",
    """
with visible as (
    select topic, "partition", "offset", "group", consumer, poll
    from reads anti join (select value_id from records where aborted) using (value_id)
), numbered as (
    select *, dense_rank() over (partition by topic, "partition" order by "offset") as place
    from visible
), polls as (
    select "group", consumer, topic, "partition", poll, min(place) as first, max(place) as last,
           count(distinct place) as places
    from numbered group by all
), steps as (
    select *, lag(last) over (
        partition by "group", consumer, topic, "partition" order by poll) as before
    from polls
)
select count_if(first > before + 1) + count_if(last - first + 1 > places) as poll_skip,
       count_if(first <= before) as nonmonotonic_poll
from steps
""",
    """
with known as (
    select version, max(version) over (partition by "group", topic, key
        order by time_us, "partition", "offset"
        rows between unbounded preceding and 1 preceding) as highest
    from effects
)
select count_if(version < highest) as key_order_violation from known
""",
    """
with committed as (
    select "group", topic, "partition", max("offset") as committed,
           list(distinct transaction) as stored_in
    from commits group by all
), applied as (
    select "group", topic, "partition", "offset", count(*) as effects,
           any_value(transaction) as transaction
    from effects group by all
), delivered as (
    select "group", topic, "partition", "offset", count(*) as deliveries,
           count_if(applied) as applied
    from reads group by all
), appliers as (
    select distinct "group", true as recorded from effects
), inputs as (
    select *, case when recorded then coalesce(effects, 0) else applied end as times
    from delivered full join applied using ("group", topic, "partition", "offset")
    left join committed using ("group", topic, "partition") left join appliers using ("group")
)
select count_if(deliveries > 1 and times = 1) as reprocess,
       count_if(times > 1) as effect_duplicate,
       count_if(recorded and times = 0 and "offset" < committed) as offset_without_result,
       count_if(recorded and times > 0 and ("offset" >= coalesce(committed, 0)
           or (transaction is not null and list_contains(stored_in, transaction) is not true)))
           as result_without_offset
from inputs
""",
    """
with written as (
    select transaction, topic, "partition", "offset", ends.outcome, decided_us
    from sends join transactions as ends using (transaction)
    where ends.outcome <> 'aborted' and sends.outcome = 'ok'
), reached as (
    select "group", topic, "partition", max("offset") as reached from reads group by all
), delivered as (
    select "group", topic, "partition", "offset", min(time_us) as read_us
    from reads semi join written using (topic, "partition", "offset") group by all
), parts as (
    select max(written.outcome) as outcome, count(read_us) as seen, count(*) as passed,
           bool_or(read_us < decided_us) as early
    from written join reached using (topic, "partition")
    left join delivered using ("group", topic, "partition", "offset")
    where "offset" <= reached group by "group", transaction
)
select count(*) filter (early or (seen > 0 and (seen < passed or outcome = 'open')))
           as partial_transaction
from parts
""",
)


def plain_counts(folder: Path) -> dict[str, int]:
    """The number of cases of each anomaly in a trace."""
    counts: dict[str, int] = {}
    with duckdb.connect() as connection:
        connection.execute("SET preserve_insertion_order = false")
        for name in TABLES:
            connection.execute(
                f"CREATE VIEW {name} AS FROM read_parquet('{folder}/{name}/*.parquet')"
            )
        for step in STEPS:
            connection.execute(step)
        for question in QUESTIONS:
            found = connection.execute(question)
            names = [column[0] for column in found.description or ()]
            counts.update(zip(names, found.fetchone() or (), strict=True))
    return counts


if __name__ == "__main__":
    print(json.dumps(plain_counts(Path(sys.argv[1])) | {"cpu_s": round(time.process_time(), 1)}))
