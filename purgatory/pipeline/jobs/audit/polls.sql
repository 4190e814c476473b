-- Order within a reader: polls that jump over known offsets, or go back.
--
-- Offsets may be sparse, so they are ranked densely in each partition, over all that anybody read in
-- it. A poll is what a reader got at once: it should begin one rank behind the end of the last one.
-- Windows see ranges of pieces or of polls; what the ranges before them hold is one row each.

-- A row per piece of a partition: all offsets that somebody read.
create view known_pieces as
select run_id, topic, "partition", piece, int_div(piece, :split) as stretch,
    bit_or(shown_bits) as known_bits
from read_pieces
where shown_bits <> 0
group by run_id, topic, "partition", piece;

-- A row per stretch of pieces: how many offsets are known in the stretches before it.
create view stretches as
select run_id, topic, "partition", stretch,
    coalesce(cast(sum(known) over (
        partition by run_id, topic, "partition" order by stretch
        rows between unbounded preceding and 1 preceding
    ) as bigint), 0) as known_before
from (
    select run_id, topic, "partition", stretch, sum(bit_count(known_bits)) as known
    from known_pieces
    group by run_id, topic, "partition", stretch
) known_by_stretch;

-- A row per piece: its offsets, and how many are known before it.
create view ranked_pieces as
select k.run_id, k.topic, k."partition", k.piece, k.known_bits,
    s.known_before + coalesce(cast(sum(bit_count(k.known_bits)) over (
        partition by k.run_id, k.topic, k."partition", k.stretch order by k.piece
        rows between unbounded preceding and 1 preceding
    ) as bigint), 0) as known_before
from known_pieces k join stretches s
    on k.run_id = s.run_id and k.topic = s.topic and k."partition" = s."partition"
    and k.stretch = s.stretch;

-- A row per poll and partition: the ranks and offsets of its first and its last record, and how many
-- offsets it has. `b & -b` is the lowest bit of b, and `bin(b)` is as long as its highest is high.
create view polls as
select p.run_id, p."group", p.consumer, p.topic, p."partition", p.poll,
    int_div(p.poll, :split) as poll_range,
    min(k.known_before + bit_count(k.known_bits & ((p.shown_bits & -p.shown_bits) - 1)) + 1)
        as first_rank,
    max(k.known_before
        + bit_count(k.known_bits & ((cast(1 as bigint) << length(bin(p.shown_bits))) - 1)))
        as last_rank,
    cast(sum(bit_count(p.shown_bits)) as bigint) as distinct_offsets,
    min(p.piece * 60 - 600000000000000000 + bit_count((p.shown_bits & -p.shown_bits) - 1))
        as first_offset,
    max(p.piece * 60 - 600000000000000001 + length(bin(p.shown_bits))) as last_offset
from read_pieces p join ranked_pieces k
    on p.run_id = k.run_id and p.topic = k.topic and p."partition" = k."partition"
    and p.piece = k.piece
where p.shown_bits <> 0
group by p.run_id, p."group", p.consumer, p.topic, p."partition", p.poll;

-- A row per range of a reader's polls but the first: the end of the last poll before it.
create view previous_ends as
select run_id, "group", consumer, topic, "partition", poll_range, poll, last_rank, last_offset
from (
    select run_id, "group", consumer, topic, "partition", poll_range,
        lag(poll) over w as poll, lag(last_rank) over w as last_rank,
        lag(last_offset) over w as last_offset
    from (
        select run_id, "group", consumer, topic, "partition", poll_range, max(poll) as poll,
            max_by(last_rank, poll) as last_rank, max_by(last_offset, poll) as last_offset
        from polls
        group by run_id, "group", consumer, topic, "partition", poll_range
    ) ends_of_ranges
    window w as (partition by run_id, "group", consumer, topic, "partition" order by poll_range)
) shifted_ends
where poll is not null;

-- A row per poll that skips, in itself or behind the one before it, or goes back.
create table odd_polls as
select *
from (
    select run_id, "group", consumer, topic, "partition", poll, first_offset, last_offset,
        last_rank - first_rank + 1 > distinct_offsets as has_holes,
        first_rank - lag(last_rank) over w as step,
        lag(poll) over w as earlier_poll,
        lag(last_offset) over w as earlier_offset
    from (
        select * from polls
        union all
        select run_id, "group", consumer, topic, "partition", poll, poll_range, null, last_rank,
            null, null, last_offset
        from previous_ends
    ) polls_and_ends
    window w as (
        partition by run_id, "group", consumer, topic, "partition", poll_range order by poll
    )
) steps
where first_offset is not null and (has_holes or coalesce(step <> 1, false));

-- A row per odd poll, with the values at its ends and at the end of the poll before it: of several at
-- one offset, the least.
create view odd_poll_values as
select
    run_id, "group", consumer, topic, "partition", poll, first_offset, has_holes, step,
    min(case when is_own then time_us end) as time_us,
    min(case when is_own and "offset" = first_offset then value_id end) as first_value,
    min(case when is_own and "offset" = last_offset then value_id end) as last_value,
    min(case when not is_own and "offset" = earlier_offset then value_id end) as earlier_value
from (
    select
        run_id, "group", consumer, topic, "partition", odd.poll, first_offset, last_offset,
        has_holes, step, earlier_offset, is_own, read_poll, value_id, time_us, "offset",
        int_div("offset" + 600000000000000000, 60) as piece,
        cast(1 as bigint) << cast(("offset" + 600000000000000000) % 60 as int) as bit
    from (
        select *, true as is_own, poll as read_poll from odd_polls
        union all
        select *, false as is_own, earlier_poll as read_poll from odd_polls
    ) as odd
    join (
        select run_id, "group", consumer, topic, "partition", poll as read_poll, value_id, time_us,
            "offset"
        from reads
    ) as reads_of_polls using (run_id, "group", consumer, topic, "partition", read_poll)
) as reads_of_odd
anti join unplaced_records using (run_id, topic, value_id)
join (
    select run_id, "group", consumer, topic, "partition", poll as read_poll, piece, shown_bits
    from read_pieces
) as pieces_of_polls using (run_id, "group", consumer, topic, "partition", read_poll, piece)
where (shown_bits & bit) <> 0
group by
    run_id, "group", consumer, topic, "partition", poll, first_offset, has_holes, step;

-- No rebalance takes place within a poll, so nothing excuses what is skipped there.
create view poll_cases as
select run_id, anomaly, "group" as consumer_group, topic, "partition", first_offset as "offset",
    consumer, first_value as value_id, time_us, excusable, topic as record_topic,
    case when excusable then earlier_value else first_value end as record_value,
    topic as other_topic,
    case when excusable then first_value else last_value end as other_value
from (
    select *, true as excusable,
        case when step > 1 then 'poll_skip' when step < 1 then 'nonmonotonic_poll' end as anomaly
    from odd_poll_values
    union all
    select *, false as excusable, case when has_holes then 'poll_skip' end as anomaly
    from odd_poll_values
) kinds
where anomaly is not null;
