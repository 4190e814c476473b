-- The windows without a change in which something was parked, as `every_bucket` of the batch job's
-- chain: from a window at whose end something is, up to the next one with a change.

create view window_changes as
select run_id, purgatory, broker, bucket, change from broker_buckets
union all
select run_id, purgatory, cast(null as int) as broker, bucket, sum(change) as change
from broker_buckets
group by run_id, purgatory, bucket;

create view window_ends as
select
    run_id,
    purgatory,
    broker,
    bucket,
    sum(change) over (partition by run_id, purgatory, broker order by bucket) as size,
    lead(bucket, 1, int_div(:until_us, :window_us))
        over (partition by run_id, purgatory, broker order by bucket) as next_bucket
from window_changes;

create view every_bucket as
select run_id, purgatory, broker, explode(sequence(bucket, next_bucket - 1)) as bucket
from window_ends
where size > 0;
