-- The size over time as in `occupancy`, of the operations of a hot key.
create view key_wait_ends as
select run_id, purgatory, "key", start_us as at_us, 1 as change from key_operations
union all
select run_id, purgatory, "key", end_us as at_us, -1 as change
from key_operations
where outcome <> 'pending';

create view key_changes as
select /*+ broadcast(h), broadcast(s) */ e.run_id, e.purgatory, e."key", e.at_us,
    int_div(e.at_us, s.width_us) as bucket, e.change,
    least((int_div(e.at_us, s.width_us) + 1) * s.width_us, s.end_us) - e.at_us as left_us
from key_wait_ends e
join hot_keys h on e.run_id = h.run_id and e.purgatory = h.purgatory and e."key" = h."key"
join spans s on e.run_id = s.run_id
where e.at_us < s.end_us;

create view key_rises as
select run_id, purgatory, "key", bucket, change, left_us,
    sum(change) over (partition by run_id, purgatory, "key", bucket order by at_us) as rise
from key_changes;

create view every_key_bucket as
select run_id, purgatory, "key", explode(sequence(0, last_bucket)) as bucket
from hot_keys
join (select run_id, int_div(end_us - 1, width_us) as last_bucket from spans where end_us > 0)
    using (run_id);

create view key_buckets as
select run_id, purgatory, "key", bucket, change, change * left_us as area, rise, left_us
from key_rises
union all
select run_id, purgatory, "key", bucket, 0, 0, null, null from every_key_bucket;

create view all_key_buckets as
select run_id, purgatory, "key", bucket, cast(sum(change) as bigint) as change,
    cast(sum(area) as bigint) as area, cast(max(rise) as bigint) as rise, max(left_us) as left_us
from key_buckets
group by run_id, purgatory, "key", bucket;

create view open_key_buckets as
select run_id, purgatory, "key", bucket * width_us as bucket_start_us,
    least((bucket + 1) * width_us, end_us) as bucket_end_us,
    cast(sum(change) over (
        partition by run_id, purgatory, "key" order by bucket
        rows between unbounded preceding and current row
    ) as bigint) - change as opening, area, rise, left_us
from all_key_buckets
join spans using (run_id);

create table key_occupancy as
select run_id, purgatory, "key", bucket_start_us, bucket_end_us,
    opening + area / (bucket_end_us - bucket_start_us) as size_mean,
    opening + case when left_us = bucket_end_us - bucket_start_us then rise
        else greatest(rise, 0) end as size_max
from open_key_buckets;
