-- The peaks of parked operations, and their causes.
--
-- A peak is the maximum of a bucket that no bucket around it exceeds. For the highest of each run
-- and purgatory, the parked operations are counted by kind, outcome, broker and key; the table also
-- has the arrivals just before, and the active faults.

create view bucket_surroundings as
select run_id, purgatory, bucket_start_us, size_max,
    coalesce(max(size_max) over (
        partition by run_id, purgatory order by bucket_start_us
        rows between :buckets_apart preceding and 1 preceding), 0) as before_max,
    coalesce(max(size_max) over (
        partition by run_id, purgatory order by bucket_start_us
        rows between 1 following and :buckets_apart following), 0) as after_max
from occupancy
where broker is null;

create view ranked_peaks as
select run_id, purgatory, bucket_start_us, size_max, cast(row_number() over (
        partition by run_id, purgatory order by size_max desc, bucket_start_us
    ) as int) as rank
from bucket_surroundings
where size_max > before_max and size_max >= after_max;

create table highest_peaks as
select run_id, purgatory, rank, size_max as size, bucket_start_us,
    int_div(bucket_start_us, width_us) as bucket, width_us, end_us
from ranked_peaks
join spans using (run_id)
where rank <= :number;

-- A change in the bucket of a peak, and how far the size rose until then.
create view peak_changes as
select /*+ broadcast(p) */ p.run_id, p.purgatory, p.rank, p.bucket_start_us, c.at_us,
    sum(c.change) over (partition by p.run_id, p.purgatory, p.rank order by c.at_us) as rise
from size_changes c
join highest_peaks p
    on c.run_id = p.run_id and c.purgatory = p.purgatory and c.bucket = p.bucket;

create view topped_changes as
select run_id, purgatory, rank, bucket_start_us, at_us, rise,
    max(rise) over (partition by run_id, purgatory, rank) as top_rise
from peak_changes;

-- The first time at which the size rose furthest over what it was at the start of the bucket; null
-- where it only fell from there.
create view peak_times as
select run_id, purgatory, rank,
    case when top_rise > 0 or min(at_us) <= bucket_start_us
        then min(case when rise = top_rise then at_us end) end as top_us
from topped_changes
group by run_id, purgatory, rank, top_rise, bucket_start_us;

-- The moment of a peak, and a look back: as far as a bucket is wide, or to the start of the run.
create table peak_moments as
select h.run_id, h.purgatory, h.rank, h.size, h.end_us,
    coalesce(t.top_us, h.bucket_start_us) as at_us,
    least(h.width_us, coalesce(t.top_us, h.bucket_start_us)) as before_us
from highest_peaks h
left join peak_times t using (run_id, purgatory, rank);

-- An operation parked at a peak, or that came shortly before it, once per peak.
create view close_operations as
select /*+ broadcast(m) */ m.run_id, m.purgatory, m.rank, o.broker, o.kind, o.outcome, o.start_us,
    o.watch_keys, o.end_us > m.at_us or o.outcome = 'pending' as parked,
    o.start_us > m.at_us - m.before_us as arrived
from operations o
join peak_moments m on o.run_id = m.run_id and o.purgatory = m.purgatory
where o.outcome <> 'immediate' and o.start_us <= m.at_us;

create table peak_operations as
select run_id, purgatory, rank, broker, kind, outcome, start_us, watch_keys, parked, arrived
from close_operations
where parked or arrived;

create view peak_counts as
select run_id, purgatory, rank, cast(count_if(arrived) as bigint) as arrivals_before,
    min(case when parked then start_us end) as oldest_start_us
from peak_operations
group by run_id, purgatory, rank;

-- A kind, outcome, broker or key of an operation that was parked at a peak.
create view parked_names as
select run_id, purgatory, rank, 'kinds' as list, kind as name from peak_operations where parked
union all
select run_id, purgatory, rank, 'outcomes' as list, outcome as name
from peak_operations
where parked
union all
select run_id, purgatory, rank, 'brokers' as list, cast(broker as string) as name
from peak_operations
where parked
union all
select run_id, purgatory, rank, 'keys' as list, explode(array_distinct(watch_keys)) as name
from peak_operations
where parked;

create view placed_names as
select run_id, purgatory, rank, list, name, count(*) as parked, row_number() over (
        partition by run_id, purgatory, rank, list order by count(*) desc, name
    ) as place
from parked_names
group by run_id, purgatory, rank, list, name;

-- The most frequent names with their counts, as four arrays in each row of a peak.
create view name_lists as
select run_id, purgatory, rank,
    array_agg(case when list = 'kinds' then named_count(name, parked) end) over in_order as kinds,
    array_agg(case when list = 'outcomes' then named_count(name, parked) end) over in_order
        as outcomes,
    array_agg(case when list = 'brokers' then named_count(name, parked) end) over in_order
        as brokers,
    array_agg(case when list = 'keys' then named_count(name, parked) end) over in_order as keys,
    row_number() over (partition by run_id, purgatory, rank order by list, place) as number
from placed_names
where place <= :most_named
window in_order as (
    partition by run_id, purgatory, rank order by list, place
    rows between unbounded preceding and unbounded following);

-- The faults at work at a peak or shortly before it, as texts such as `stall_follower 2`.
create view peak_faults as
select /*+ broadcast(f) */ m.run_id, m.purgatory, m.rank,
    array_sort(array_compact(array_agg(distinct
        case when f.broker is null then f.kind
            else f.kind || ' ' || cast(f.broker as string) end))) as faults
from peak_moments m
left join faults f
    on m.run_id = f.run_id and f.from_us <= m.at_us
    and coalesce(f.until_us, m.at_us) >= m.at_us - m.before_us
group by m.run_id, m.purgatory, m.rank;

create view purgatory_entries as
select run_id, purgatory, count(*) as entries
from operations
where outcome <> 'immediate'
group by run_id, purgatory;

-- A row per peak: its size and moment, the age of the oldest parked operation, arrivals just before
-- and those of an average time as long, and what was parked.
create table peaks as
select m.run_id, m.purgatory, m.rank, m.at_us, m.size, m.at_us - c.oldest_start_us as oldest_us,
    m.before_us, coalesce(c.arrivals_before, 0) as arrivals_before,
    e.entries * (m.before_us / m.end_us) as arrivals_usual,
    array_compact(n.kinds) as kinds, array_compact(n.outcomes) as outcomes,
    array_compact(n.brokers) as brokers, array_compact(n.keys) as keys, f.faults
from peak_moments m
join peak_faults f using (run_id, purgatory, rank)
left join purgatory_entries e on m.run_id = e.run_id and m.purgatory = e.purgatory
left join peak_counts c
    on m.run_id = c.run_id and m.purgatory = c.purgatory and m.rank = c.rank
left join name_lists n
    on m.run_id = n.run_id and m.purgatory = n.purgatory and m.rank = n.rank and n.number = 1;
