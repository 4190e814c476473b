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

-- A row per offset of these polls and of those before them: the least of its values.
create table odd_poll_offsets as
select r.run_id, r."group", r.consumer, r.topic, r."partition", r.poll, r."offset",
    min(r.value_id) as value_id, min(r.time_us) as time_us
from (
    select run_id, "group", consumer, topic, "partition", poll, "offset", value_id, time_us
    from reads
    where (run_id, "group", consumer, topic, "partition", poll) in (
        select run_id, "group", consumer, topic, "partition", poll from odd_polls
        union all
        select run_id, "group", consumer, topic, "partition", earlier_poll from odd_polls
        where earlier_poll is not null
    )
) r
    left join unplaced_records u
        on r.run_id = u.run_id and r.topic = u.topic and r.value_id = u.value_id
    join read_pieces p
        on r.run_id = p.run_id and r."group" = p."group" and r.consumer = p.consumer
        and r.topic = p.topic and r."partition" = p."partition" and r.poll = p.poll
        and int_div(r."offset" + 600000000000000000, 60) = p.piece
where u.value_id is null
    and p.shown_bits
        & (cast(1 as bigint) << cast((r."offset" + 600000000000000000) % 60 as int)) <> 0
group by r.run_id, r."group", r.consumer, r.topic, r."partition", r.poll, r."offset";

-- A row per odd poll, with the values at its ends and at the end of the poll before it.
create view odd_poll_values as
select o.run_id, o."group", o.consumer, o.topic, o."partition", o.poll, o.first_offset, o.has_holes,
    o.step, t.time_us, f.value_id as first_value, l.value_id as last_value,
    e.value_id as earlier_value
from odd_polls o
    join (
        select run_id, "group", consumer, topic, "partition", poll, min(time_us) as time_us
        from odd_poll_offsets
        group by run_id, "group", consumer, topic, "partition", poll
    ) t using (run_id, "group", consumer, topic, "partition", poll)
    join odd_poll_offsets f
        on o.run_id = f.run_id and o."group" = f."group" and o.consumer = f.consumer
        and o.topic = f.topic and o."partition" = f."partition" and o.poll = f.poll
        and o.first_offset = f."offset"
    join odd_poll_offsets l
        on o.run_id = l.run_id and o."group" = l."group" and o.consumer = l.consumer
        and o.topic = l.topic and o."partition" = l."partition" and o.poll = l.poll
        and o.last_offset = l."offset"
    left join odd_poll_offsets e
        on o.run_id = e.run_id and o."group" = e."group" and o.consumer = e.consumer
        and o.topic = e.topic and o."partition" = e."partition" and o.earlier_poll = e.poll
        and o.earlier_offset = e."offset";

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
