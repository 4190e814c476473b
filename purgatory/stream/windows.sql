-- The changes of a batch to windows. The inputs are `counts` of the batch, and `open`, the windows
-- that were open before it, counted likewise. :watermark_us is the watermark before the batch,
-- :closed_us the one after it.

create view quarantine as
select
    '' as run_id,
    'operations' as source,
    'bad row: ' || problem as reason,
    sum(operations) as "rows",
    min(example) as example
from counts
where problem is not null
group by problem
union all
select
    run_id,
    'operations' as source,
    'late' as reason,
    sum(operations) as "rows",
    purgatory || ' of ' || kind || ', in the window of '
        || cast(timestamp_micros(max(window_start_us)) as string) as example
from counts
where problem is null and window_start_us + :window_us <= :watermark_us
group by run_id, purgatory, kind
union all
select
    run_id,
    'operations' as source,
    'outlasted' as reason,
    sum(outlasted) as "rows",
    purgatory || ' of ' || kind || ', waited ' || cast(max(max_us) as string) || ' us' as example
from counts
where problem is null and outlasted > 0 and window_start_us + :window_us > :watermark_us
group by run_id, purgatory, kind;

create table windows as
select
    run_id,
    purgatory,
    kind,
    outcome,
    window_start_us,
    rounded_us,
    sum(operations) as operations,
    sum(sum_us) as sum_us,
    max(max_us) as max_us
from (
    select run_id, purgatory, kind, outcome, window_start_us, rounded_us, operations, sum_us, max_us
    from open
    union all
    select run_id, purgatory, kind, outcome, window_start_us, rounded_us, operations, sum_us, max_us
    from counts
    where problem is null and window_start_us + :window_us > :watermark_us
)
group by run_id, purgatory, kind, outcome, window_start_us, rounded_us;

create view still_open as
select *
from windows
where window_start_us + :window_us > :closed_us;

create view closed as
select
    run_id,
    purgatory,
    kind,
    window_start_us,
    sum(operations) as operations,
    coalesce(sum(operations) filter (where outcome = 'immediate'), 0) as immediate,
    coalesce(sum(operations) filter (where outcome = 'completed'), 0) as completed,
    coalesce(sum(operations) filter (where outcome = 'expired'), 0) as expired,
    coalesce(sum(operations) filter (where outcome = 'cancelled'), 0) as cancelled,
    coalesce(sum(operations) filter (where outcome = 'failed'), 0) as failed,
    coalesce(sum(operations) filter (where outcome = 'pending'), 0) as pending,
    sum(operations) filter (where outcome <> 'pending') as finished,
    sum(sum_us) filter (where outcome <> 'pending') as sum_us,
    max(max_us) filter (where outcome <> 'pending') as max_us,
    max(rounded_us) filter (where outcome <> 'pending') as rounded_us,
    percentile(rounded_us, array(0.5e0, 0.95e0, 0.99e0), operations)
        filter (where outcome <> 'pending') as rounded_percentiles
from windows
where window_start_us + :window_us <= :closed_us
group by run_id, purgatory, kind, window_start_us;

-- The longest wait counts as it was: what rounding took from it is given back to a percentile by as
-- much as the percentile lies behind the second longest.
create view waits as
select
    run_id,
    purgatory,
    kind,
    timestamp_micros(window_start_us) as window_start,
    timestamp_micros(window_start_us + :window_us) as window_end,
    operations,
    immediate,
    completed,
    expired,
    cancelled,
    failed,
    pending,
    expired / finished as expiry_ratio,
    sum_us / finished as wait_mean_us,
    max_us as wait_max_us,
    round(
        rounded_percentiles[0]
            + (max_us - rounded_us) * greatest(1e0 - 0.5e0 * (finished - 1), 0e0), 3
    ) as wait_p50_us,
    round(
        rounded_percentiles[1]
            + (max_us - rounded_us) * greatest(1e0 - 0.05e0 * (finished - 1), 0e0), 3
    ) as wait_p95_us,
    round(
        rounded_percentiles[2]
            + (max_us - rounded_us) * greatest(1e0 - 0.01e0 * (finished - 1), 0e0), 3
    ) as wait_p99_us
from closed;
