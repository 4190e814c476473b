-- The mean and the maximum of a purgatory's size in each bucket of time. Both are exact: a peak of
-- one microsecond is in the maximum of its bucket.
--
-- No task has a whole run. The starts and ends in one run, purgatory and bucket are one task, which
-- sums them in the order of time, and finds how far the size rose above that at the start of the
-- bucket. The size at the start is the sum of all earlier changes, one sum per bucket.

-- How far the size rose above that at the start of the bucket, over all brokers and of each. A sum
-- in order of time is up to all changes of the same time.
create view whole_rises as
select run_id, purgatory, broker, at_us, bucket, change, left_us,
    sum(change) over (partition by run_id, purgatory, bucket order by at_us) as whole_rise
from size_changes;

create view broker_rises as
select run_id, purgatory, broker, bucket, change, left_us, whole_rise,
    sum(change) over (partition by run_id, purgatory, bucket, broker order by at_us) as rise
from whole_rises;

-- A bucket of a broker: its change, and the area between the size and that at its start.
create table broker_buckets as
select run_id, purgatory, broker, bucket, cast(sum(change) as bigint) as change,
    cast(sum(change * left_us) as bigint) as area, cast(max(rise) as bigint) as rise,
    cast(max(whole_rise) as bigint) as whole_rise, max(left_us) as left_us
from broker_rises
group by run_id, purgatory, broker, bucket;

-- Brokers with operations, and null for all brokers of a purgatory.
create view purgatory_brokers as
select distinct run_id, purgatory, broker from operations;

create table size_series as
select run_id, purgatory, broker from purgatory_brokers
union all
select distinct run_id, purgatory, cast(null as int) as broker from purgatory_brokers;

-- Every bucket from 0 to the end of the run, also without changes.
create view every_bucket as
select run_id, purgatory, broker, explode(sequence(0, last_bucket)) as bucket
from size_series
join (select run_id, int_div(end_us - 1, width_us) as last_bucket from spans where end_us > 0)
    using (run_id);

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
