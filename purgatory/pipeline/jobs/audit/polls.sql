-- Order within a reader: polls that jump over known offsets, or go back.
--
-- Offsets may be sparse, so they are ranked densely in each partition, over all that anybody read in
-- it. A poll is what a reader got at once: it should begin one rank behind the end of the last one.
-- Windows see sets of bits or polls, not records.

-- A row per piece of a partition: all offsets in it that were read, and how many there are before.
create view known_pieces as
select
    run_id, topic, "partition", piece, known_bits,
    coalesce(cast(sum(bit_count(known_bits)) over (
        partition by run_id, topic, "partition" order by piece
        rows between unbounded preceding and 1 preceding
    ) as bigint), 0) as known_before
from (
    select run_id, topic, "partition", piece, bit_or(shown_bits) as known_bits
    from read_pieces
    where shown_bits <> 0
    group by run_id, topic, "partition", piece
) as known_offsets;

-- A row per poll and partition: the ranks and offsets of its first and its last record, and how many
-- offsets it has. `b & -b` is the lowest bit of b, and `bin(b)` is as long as its highest is high.
create view polls as
select
    run_id, "group", reader, topic, "partition", poll,
    min(known_before + bit_count(known_bits & ((shown_bits & -shown_bits) - 1)) + 1) as first_rank,
    max(known_before + bit_count(known_bits & ((cast(1 as bigint) << length(bin(shown_bits))) - 1)))
        as last_rank,
    cast(sum(bit_count(shown_bits)) as bigint) as distinct_offsets,
    min(piece * 60 - 600000000000000000 + bit_count((shown_bits & -shown_bits) - 1))
        as first_offset,
    max(piece * 60 - 600000000000000001 + length(bin(shown_bits))) as last_offset
from read_pieces
join known_pieces using (run_id, topic, "partition", piece)
where shown_bits <> 0 and reader is not null
group by run_id, "group", reader, topic, "partition", poll;

-- A row per poll that skips, in itself or behind the one before it, or goes back.
create table odd_polls as
select *
from (
    select
        run_id, "group", reader, topic, "partition", poll, first_offset, last_offset,
        last_rank - first_rank + 1 > distinct_offsets as has_holes,
        first_rank - lag(last_rank) over of_reader as step,
        lag(poll) over of_reader as earlier_poll,
        lag(last_offset) over of_reader as earlier_offset
    from polls
    window of_reader as (partition by run_id, "group", reader, topic, "partition" order by poll)
) as steps
where has_holes or coalesce(step <> 1, false);

-- A row per odd poll, with the values at its ends and at the end of the poll before it: of several at
-- one offset, the least.
create view odd_poll_values as
select
    run_id, "group", reader, topic, "partition", poll, first_offset, has_holes, step,
    min(case when is_own then time_us end) as time_us,
    min(case when is_own then consumer end) as consumer,
    bool_or(is_own and reading is not null) as observed,
    min(case when is_own and "offset" = first_offset then value_id end) as first_value,
    min(case when is_own and "offset" = last_offset then value_id end) as last_value,
    min(case when not is_own and "offset" = earlier_offset then value_id end) as earlier_value
from (
    select
        run_id, "group", reader, topic, "partition", odd.poll, first_offset, last_offset,
        has_holes, step, earlier_offset, is_own, read_poll, value_id, time_us, consumer, reading,
        "offset",
        int_div("offset" + 600000000000000000, 60) as piece,
        cast(1 as bigint) << cast(("offset" + 600000000000000000) % 60 as int) as bit
    from (
        select *, which = 0 as is_own, case when which = 0 then poll else earlier_poll end as read_poll
        from (select *, explode(sequence(0, 1)) as which from odd_polls) as twice
    ) as odd
    join (
        select run_id, "group", reader, topic, "partition", poll as read_poll, value_id, time_us,
            "offset", consumer, reading
        from read_rows
    ) as reads_of_polls using (run_id, "group", reader, topic, "partition", read_poll)
) as reads_of_odd
anti join unplaced_records using (run_id, topic, value_id)
join (
    select run_id, "group", reader, topic, "partition", poll as read_poll, piece, shown_bits
    from read_pieces
) as pieces_of_polls using (run_id, "group", reader, topic, "partition", read_poll, piece)
where (shown_bits & bit) <> 0
group by
    run_id, "group", reader, topic, "partition", poll, first_offset, has_holes, step;

-- A row per topic of which compaction takes records: they may be skipped.
create view compacted_topics as
select distinct run_id, topic, true as compacts from sends where compaction is not null;

-- No rebalance takes place within a poll, so nothing excuses a record skipped there. A reader that
-- brokers saw go back without a reason may have sought, or given up what it had fetched.
create view poll_cases as
select run_id, anomaly, "group" as consumer_group, topic, "partition", first_offset as "offset",
    consumer, first_value as value_id, time_us,
    between_polls and not (observed and anomaly = 'nonmonotonic_poll') as excusable,
    topic as record_topic,
    case when between_polls then earlier_value else first_value end as record_value,
    topic as other_topic,
    case when between_polls then first_value else last_value end as other_value,
    case when observed and anomaly = 'nonmonotonic_poll' then :fetched_again end as doubt
from (
    select
        *, which = 0 as between_polls,
        case
            when which = 1 then case when has_holes then 'poll_skip' end
            when step > 1 then 'poll_skip'
            when step < 1 then 'nonmonotonic_poll'
        end as anomaly
    from (select *, explode(sequence(0, 1)) as which from odd_poll_values) as twice
) kinds
left join compacted_topics using (run_id, topic)
where anomaly = 'nonmonotonic_poll' or (anomaly = 'poll_skip' and compacts is null);
