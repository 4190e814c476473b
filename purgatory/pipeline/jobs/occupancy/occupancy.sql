-- The mean and the maximum of a purgatory's size in each bucket of `every_bucket`, and in each with
-- changes.

create view changed_buckets as
select run_id, purgatory, broker, bucket, change, area, rise, left_us from broker_buckets
union all
select run_id, purgatory, cast(null as int) as broker, bucket, cast(sum(change) as bigint),
    cast(sum(area) as bigint), max(whole_rise), max(left_us)
from broker_buckets
group by run_id, purgatory, bucket
union all
select run_id, purgatory, broker, bucket, 0, 0, null, null from every_bucket;

create view all_buckets as
select run_id, purgatory, broker, bucket, cast(sum(change) as bigint) as change,
    cast(sum(area) as bigint) as area, max(rise) as rise, max(left_us) as left_us
from changed_buckets
group by run_id, purgatory, broker, bucket;

create view open_buckets as
select run_id, purgatory, broker, bucket * width_us as bucket_start_us,
    least((bucket + 1) * width_us, end_us) as bucket_end_us,
    cast(sum(change) over (
        partition by run_id, purgatory, broker order by bucket
        rows between unbounded preceding and current row
    ) as bigint) - change as opening, area, rise, left_us
from all_buckets
join spans using (run_id);

-- The size at the start of a bucket counts, unless it changed at once.
create table occupancy as
select run_id, purgatory, broker, bucket_start_us, bucket_end_us,
    opening + area / (bucket_end_us - bucket_start_us) as size_mean,
    opening + case when left_us = bucket_end_us - bucket_start_us then rise
        else greatest(rise, 0) end as size_max
from open_buckets;
