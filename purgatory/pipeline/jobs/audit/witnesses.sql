-- Some cases of each run and anomaly, with the rows of the trace that belong to them.

-- A row per witness: the first cases of a run and anomaly. Violations come first, then what is
-- indeterminate, then by time, then by all else that a witness shows: cases that tie are the same to
-- the reader, so nothing depends on the order of rows.
create table witness_cases as
select *
from (
    select
        run_id, anomaly,
        cast(row_number() over (
            partition by run_id, anomaly
            order by
                case verdict when 'violation' then 1 when 'indeterminate' then 2 else 3 end,
                time_us, topic, "partition", "offset", producer, sequence, consumer, value_id,
                "key", transaction, "group", setting, weight,
                record_topic, record_value, other_topic, other_value,
                input_group, input_topic, input_partition, input_offset,
                other_input_partition, other_input_offset
        ) as int) as "rank",
        verdict, setting, "group", topic, "partition", "offset", producer, consumer, "key",
        value_id, sequence, transaction, time_us, weight,
        record_topic, record_value, other_topic, other_value,
        input_group, input_topic, input_partition, input_offset,
        other_input_partition, other_input_offset
    from cases
) as ranked
where "rank" <= :witnesses;

-- A row per witness and record of it.
create view witness_records as
select run_id, anomaly, "rank", record_topic as topic, record_value as value_id
from witness_cases
where record_value is not null
union
select run_id, anomaly, "rank", other_topic, other_value
from witness_cases
where other_value is not null;

-- A row per witness and input of it.
create view witness_inputs as
select
    run_id, anomaly, "rank", input_group as "group", input_topic as topic,
    input_partition as "partition", input_offset as "offset"
from witness_cases
where input_offset is not null
union
select
    run_id, anomaly, "rank", input_group, input_topic, other_input_partition, other_input_offset
from witness_cases
where other_input_offset is not null;

-- A row per witness and row of the trace that belongs to it.
create view witness_rows as
select /*+ broadcast(witness_records) */
    run_id, anomaly, "rank",
    send_us as time_us, 'send' as event, "group", producer, cast(null as bigint) as consumer,
    sequence, attempt, acks, outcome, error, answer_us as until_us, cast(null as bigint) as poll,
    cast(null as boolean) as applied, "key", cast(null as bigint) as version, value_id,
    topic, "partition", "offset", transactional_id, epoch, transaction,
    cast(null as string) as isolation, cast(null as boolean) as held
from sends
join witness_records using (run_id, topic, value_id)
union all
select /*+ broadcast(witness_records) */
    run_id, anomaly, "rank",
    time_us, 'read', "group", null, consumer, null, null, null, null, null, null, poll, applied,
    null, null, value_id, topic, "partition", "offset", null, null, null, isolation, null
from reads
join witness_records using (run_id, topic, value_id)
union all
select /*+ broadcast(witness_inputs) */
    run_id, anomaly, "rank",
    time_us, 'read', client, null, consumer, null, null, null, null, null, null, poll, applied,
    null, null, value_id, topic, "partition", "offset", null, null, null, isolation, null
from read_rows
join witness_inputs using (run_id, "group", topic, "partition", "offset")
union all
select /*+ broadcast(witness_inputs) */
    run_id, anomaly, "rank",
    time_us, 'effect', "group", null, consumer, null, null, null, null, null, null, null, null,
    "key", version, null, topic, "partition", "offset", null, null, transaction, null, null
from effects
join witness_inputs using (run_id, "group", topic, "partition", "offset")
union all
select /*+ broadcast(witness_inputs) */
    run_id, anomaly, "rank",
    time_us, 'commit', "group", null, null, null, null, null, null, null, null, null, null,
    null, null, null, topic, "partition", "offset", null, null, transaction, null, held
from commits
join witness_inputs using (run_id, "group", topic, "partition", "offset")
union all
select /*+ broadcast(named) */
    run_id, anomaly, "rank",
    begun_us, 'transaction', null, null, null, null, null, null, outcome, null, ended_us, null,
    null, null, null, null, null, null, null, transactional_id, epoch, transaction, null, null
from transactions
join (
    select run_id, anomaly, "rank", transaction from witness_cases where transaction is not null
) as named using (run_id, transaction);

-- The same, each once, numbered in the order of a witness: that of its columns.
create view witness_events as
select *
from (
    select
        distinct_rows.*,
        row_number() over (
            partition by run_id, anomaly, "rank"
            order by
                time_us, event, "group", producer, consumer, sequence, attempt, acks, outcome,
                error, until_us, poll, applied, "key", version, value_id, topic, "partition",
                "offset", transactional_id, epoch, transaction, isolation, held
        ) as number
    from (select distinct * from witness_rows) as distinct_rows
) as numbered
where number <= :most_events;

-- A row per witness, with its earliest rows of the trace in their order.
create view witnesses as
select
    run_id, anomaly, "rank", verdict, setting, "group", topic, "partition", "offset", producer,
    consumer, "key", value_id, sequence, transaction, time_us, weight as "count",
    some_events(events) as events
from witness_cases
left join (
    select run_id, anomaly, "rank", events
    from (
        select run_id, anomaly, "rank", number, array_agg(event_row(
            time_us, event, "group", producer, consumer, sequence, attempt, acks, outcome, error,
            until_us, poll, applied, "key", version, value_id, topic, "partition", "offset",
            transactional_id, epoch, transaction, isolation, held
        )) over (
            partition by run_id, anomaly, "rank" order by number
            rows between unbounded preceding and unbounded following
        ) as events
        from witness_events
    ) as gathered
    where number = 1
) as shown using (run_id, anomaly, "rank");
