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
