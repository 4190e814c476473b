-- Transactions of which a group read some records and skipped others, or which a consumer with
-- read_committed read before they were committed.

-- A row per acknowledged place of a transaction that was not aborted.
create view written_places as
select
    run_id, topic, "partition", "offset", transaction,
    max(fate) as fate,
    max(decided_us) as decided_us,
    min(value_id) as value_id
from resolved_sends
where fate in ('committed', 'open') and outcome = 'ok' and "offset" is not null
group by run_id, topic, "partition", "offset", transaction;

-- A row per group and place: when the group read it first, and with which isolation.
create view delivered_places as
select /*+ broadcast(consumer_settings) */
    run_id, topic, "partition", "offset", "group",
    min(time_us) as read_us,
    min(case when coalesce(reads.isolation, consumer_settings.isolation) = 'read_committed'
        then time_us end) as committed_read_us,
    bool_or(coalesce(reads.isolation, consumer_settings.isolation, '') = 'read_committed')
        as committed_read,
    bool_or(coalesce(reads.isolation, consumer_settings.isolation) is null) as unknown_read
from reads
left join consumer_settings using (run_id, "group")
group by run_id, topic, "partition", "offset", "group";

-- A row per transaction, group and place of the transaction up to which the group read, or beyond.
create view transaction_places as
select /*+ broadcast(reached_places) */
    run_id, "group", transaction, topic, "partition", "offset", value_id, fate,
    read_us, committed_read, unknown_read,
    committed_read_us is not null
        and (fate = 'open' or coalesce(committed_read_us < decided_us, false)) as early
from written_places
join (
    select run_id, "group", topic, "partition", max("offset") as reached
    from reads
    group by run_id, "group", topic, "partition"
) as reached_places using (run_id, topic, "partition")
left join delivered_places using (run_id, topic, "partition", "offset", "group")
where "offset" <= reached;

-- A row per transaction and group that saw it in parts or early.
create table split_transactions as
select
    run_id, "group", transaction,
    max(fate) <> 'open' and count(read_us) > 0 and count(read_us) < count(*) as split,
    bool_or(coalesce(committed_read, false)) as committed_read,
    bool_or(coalesce(unknown_read, false)) as unknown_read,
    min(read_us) as time_us
from transaction_places
group by run_id, "group", transaction
having bool_or(early)
    or (max(fate) <> 'open' and count(read_us) > 0 and count(read_us) < count(*));

-- The same, with the first place that the group read, and the first that it missed, or else read
-- early.
create view part_cases as
select
    run_id,
    'partial_transaction' as anomaly,
    "group" as consumer_group,
    max(case when shown then topic end) as topic,
    max(case when shown then "partition" end) as "partition",
    max(case when shown then "offset" end) as "offset",
    max(case when shown then value_id end) as value_id,
    transaction,
    time_us,
    case when not committed_read and not unknown_read then 'isolation=read_uncommitted' end
        as permit,
    case when not committed_read and unknown_read then 'configuration unknown: isolation' end
        as doubt,
    'isolation=read_committed' as broken,
    max(case when seen then topic end) as record_topic,
    max(case when seen then value_id end) as record_value,
    max(case when shown then topic end) as other_topic,
    max(case when shown then value_id end) as other_value
from (
    select
        run_id, "group", transaction, topic, "partition", "offset", value_id,
        time_us, committed_read, unknown_read,
        is_seen and row_number() over (
            partition by run_id, "group", transaction, is_seen
            order by topic, "partition", "offset"
        ) = 1 as seen,
        is_shown and row_number() over (
            partition by run_id, "group", transaction, is_shown
            order by topic, "partition", "offset"
        ) = 1 as shown
    from (
        select
            run_id, "group", transaction, topic, "partition", "offset", value_id,
            split_transactions.time_us,
            split_transactions.committed_read,
            split_transactions.unknown_read,
            read_us is not null as is_seen,
            case when split then read_us is null else early end as is_shown
        from transaction_places
        join split_transactions using (run_id, "group", transaction)
    ) as places
) as first_places
group by run_id, "group", transaction, time_us, committed_read, unknown_read;
