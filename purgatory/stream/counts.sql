-- The operations of one batch, counted. A wait keeps four digits, rounded down, so that a window has
-- some ten thousand different ones at most, however many operations there are.

create view counts as
select
    topic,
    "partition",
    problem,
    run_id,
    purgatory,
    kind,
    outcome,
    event_us - pmod(event_us, :window_us) as window_start_us,
    cast(
        rpad(left(cast(wait_us as string), 4), length(cast(wait_us as string)), '0') as bigint
    ) as rounded_us,
    count(*) as operations,
    sum(wait_us) as sum_us,
    max(wait_us) as max_us,
    count_if(outcome <> 'immediate' and wait_us > :longest_wait_us) as outlasted,
    max(event_us) as newest_us,
    min(example) as example
from operations
group by topic, "partition", problem, run_id, purgatory, kind, outcome, window_start_us, rounded_us;
