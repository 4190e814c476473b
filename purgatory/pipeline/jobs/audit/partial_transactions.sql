-- Transactions of which a group read some records and skipped others, or which a consumer with
-- read_committed read before they were committed.
--
-- Most transactions were read as a whole. Sets of bits of 60 offsets (`read_pieces`) find the ones
-- that may not have been, and only their records are compared with the reads.

-- A row per acknowledged record of a transaction that was not aborted, if compaction takes none.
create view transactional_writes as
select
    run_id, topic, "partition", "offset", value_id, transaction, fate, decided_us,
    int_div("offset" + 600000000000000000, 60) as piece
from sends
join transaction_ends using (run_id, transaction)
where
    fate in ('committed', 'open') and sends.outcome = 'ok' and "offset" is not null
    and compaction is null;

-- A row per transaction and piece: where it wrote.
create view written_pieces as
select
    run_id, topic, "partition", piece, transaction, fate, decided_us,
    bit_or(cast(1 as bigint) << cast(("offset" + 600000000000000000) % 60 as int)) as written_bits
from transactional_writes
group by run_id, topic, "partition", piece, transaction, fate, decided_us;

-- A row per group and partition: the last offset that the group read.
create view reached_offsets as
select
    run_id, "group", topic, "partition",
    max(piece * 60 - 600000000000000001 + length(bin(read_bits))) as reached
from read_pieces
group by run_id, "group", topic, "partition";

-- A row per transaction, group and piece up to which the group read, or beyond.
create view passed_pieces as
select /*+ broadcast(reached_offsets) */
    run_id, "group", topic, "partition", piece, transaction, fate, decided_us,
    case
        when reached >= piece * 60 - 599999999999999941 then written_bits
        else written_bits & ((cast(1 as bigint)
            << cast(reached - (piece * 60 - 600000000000000001) as int)) - 1)
    end as passed_bits
from written_pieces
join reached_offsets using (run_id, topic, "partition")
where reached >= piece * 60 - 600000000000000000;

-- A row per transaction and group that perhaps read a part of it, or something early.
create view doubtful_transactions as
select run_id, "group", transaction
from (
    select
        run_id, "group", transaction, fate,
        bit_or(passed_bits & coalesce(read_bits, 0)) <> 0 as seen,
        (max(passed_bits) & ~bit_or(coalesce(read_bits, 0))) <> 0 as missed,
        bool_or((passed_bits & read_bits) <> 0 and committed_us is not null
            and (fate = 'open' or coalesce(committed_us < decided_us, false))) as early
    from passed_pieces
    left join read_pieces using (run_id, "group", topic, "partition", piece)
    group by run_id, "group", topic, "partition", piece, transaction, fate
) as seen_pieces
group by run_id, "group", transaction
having bool_or(early) or (max(fate) <> 'open' and bool_or(seen) and bool_or(missed));

-- A row per place of these transactions.
create table written_places as
select
    run_id, topic, "partition", "offset", transaction, fate, decided_us,
    min(value_id) as value_id
from transactional_writes
semi join doubtful_transactions using (run_id, transaction)
group by run_id, topic, "partition", "offset", transaction, fate, decided_us;

-- A row per group and place of these: when the group read it first, and with which isolation.
create view delivered_places as
select /*+ broadcast(consumer_settings) */
    run_id, topic, "partition", "offset", "group",
    min(time_us) as read_us,
    min(case when coalesce(read_rows.isolation, consumer_settings.isolation) = 'read_committed'
        then time_us end) as committed_read_us,
    bool_or(coalesce(read_rows.isolation, consumer_settings.isolation, '') = 'read_committed')
        as committed_read,
    bool_or(coalesce(read_rows.isolation, consumer_settings.isolation) is null) as unknown_read
from read_rows
semi join written_places using (run_id, topic, "partition", "offset")
left join consumer_settings using (run_id, "group")
group by run_id, topic, "partition", "offset", "group";

-- A row per transaction, group and place of the transaction up to which the group read, or beyond;
-- and whether it read a part of the transaction.
create view transaction_places as
select /*+ broadcast(reached_offsets) */
    run_id, "group", transaction, topic, "partition", "offset", value_id,
    read_us is not null as is_seen,
    read_us, committed_read, unknown_read,
    committed_read_us is not null
        and (fate = 'open' or coalesce(committed_read_us < decided_us, false)) as early,
    fate <> 'open'
        and count(read_us) over (partition by run_id, "group", transaction) > 0
        and count(read_us) over (partition by run_id, "group", transaction)
            < count(*) over (partition by run_id, "group", transaction) as split
from written_places
join reached_offsets using (run_id, topic, "partition")
left join delivered_places using (run_id, topic, "partition", "offset", "group")
where "offset" <= reached;

-- The same, with a mark at the first place that the group read, and at the first that shows the case:
-- it missed that one, or else read it early.
create view marked_places as
select
    run_id, "group", transaction, topic, "partition", "offset", value_id, read_us, committed_read,
    unknown_read,
    is_seen and row_number() over (
        partition by run_id, "group", transaction, is_seen order by topic, "partition", "offset"
    ) = 1 as is_first_seen,
    is_shown and row_number() over (
        partition by run_id, "group", transaction, is_shown order by topic, "partition", "offset"
    ) = 1 as is_first_shown
from (
    select *, case when split then not is_seen else early end as is_shown from transaction_places
) as places;

create view part_cases as
select
    run_id,
    'partial_transaction' as anomaly,
    consumer_group, topic, "partition", "offset", value_id, transaction, time_us,
    case when not committed_read and not unknown_read then 'isolation=read_uncommitted' end
        as permit,
    case when not committed_read and unknown_read then 'configuration unknown: isolation' end
        as doubt,
    'isolation=read_committed' as broken,
    record_topic, record_value,
    topic as other_topic,
    value_id as other_value
from (
    select
        run_id,
        "group" as consumer_group,
        transaction,
        max(case when is_first_shown then topic end) as topic,
        max(case when is_first_shown then "partition" end) as "partition",
        max(case when is_first_shown then "offset" end) as "offset",
        max(case when is_first_shown then value_id end) as value_id,
        max(case when is_first_seen then topic end) as record_topic,
        max(case when is_first_seen then value_id end) as record_value,
        bool_or(coalesce(committed_read, false)) as committed_read,
        bool_or(coalesce(unknown_read, false)) as unknown_read,
        min(read_us) as time_us
    from marked_places
    group by run_id, "group", transaction
    having bool_or(is_first_shown)
) as split_transactions;
