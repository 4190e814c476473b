-- The percentiles of waits. No task holds all waits of a row: the counts of `step_counts.sql` give
-- the rank of each step, and only the operations in the few steps around a percentile are counted by
-- their waits, or, for approximate percentiles, by their rounded waits.

-- The share s of n waits lies at the rank s (n - 1): perhaps between two ranks.
create view shares as
select share from (values (0.5e0), (0.95e0), (0.99e0), (0.999e0)) as listed(share);

-- A step with a wait at a rank around a percentile, and a number for it.
create table wanted_steps as
select run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome, step,
    first_rank, total, longest_us,
    row_number() over (
        order by run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome,
            step
    ) as place
from (
    select distinct run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes,
        outcome, step, first_rank, total, longest_us
    from ranked_steps
    cross join shares
    where waits_number > 0
        and floor(share * (total - 1)) between first_rank - 1 and first_rank + waits_number - 1
) as distinct_steps;

create view wanted_topic_operations as
select run_id, window_start_us, purgatory, explode_outer(topics) as topic, kind, outcome, step, counted_us
from operation_topics;

-- A wait in such a step, and how many operations have it.
create view wanted_waits as
select w.place, o.counted_us, count(*) as number
from stepped_operations o
join wanted_steps w
    on o.run_id = w.run_id and o.purgatory = w.purgatory and o.step = w.step
    and o.window_start_us is not distinct from w.window_start_us
    and (w.all_kinds or o.kind = w.kind)
    and (o.outcome = w.outcome or w.all_outcomes and o.outcome <> 'pending')
where w.topic = '*'
group by w.place, o.counted_us
union all
select w.place, o.counted_us, count(*) as number
from wanted_topic_operations o
join wanted_steps w
    on o.run_id = w.run_id and o.purgatory = w.purgatory and o.step = w.step
    and o.topic is not distinct from w.topic
    and o.window_start_us is not distinct from w.window_start_us
    and (w.all_kinds or o.kind = w.kind)
    and (o.outcome = w.outcome or w.all_outcomes and o.outcome <> 'pending')
where w.topic is distinct from '*'
group by w.place, o.counted_us;

create view ranked_waits as
select run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome,
    counted_us as wait_us, total, longest_us, number,
    first_rank - number + cast(
        sum(number) over (
            partition by place order by counted_us
            rows between unbounded preceding and current row) as bigint
    ) as first_rank
from wanted_waits
join wanted_steps using (place);

-- The waits at the two ranks around a share. The last rank is the longest wait, also of rounded.
create view share_waits as
select run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome, share,
    share * (total - 1) - floor(share * (total - 1)) as weight,
    case when floor(share * (total - 1)) >= total - 1 then longest_us
        else max(case when floor(share * (total - 1)) between first_rank and first_rank + number - 1
            then wait_us end) end as low_us,
    case when floor(share * (total - 1)) + 1 >= total - 1 then longest_us
        else max(case when floor(share * (total - 1)) + 1
            between first_rank and first_rank + number - 1 then wait_us end) end as high_us
from ranked_waits
cross join shares
group by run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome, share,
    total, longest_us;

create view percentiles as
select run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome,
    max(case when share = 0.5e0 then low_us + (high_us - low_us) * weight end) as p50_us,
    max(case when share = 0.95e0 then low_us + (high_us - low_us) * weight end) as p95_us,
    max(case when share = 0.99e0 then low_us + (high_us - low_us) * weight end) as p99_us,
    max(case when share = 0.999e0 then low_us + (high_us - low_us) * weight end) as p999_us
from share_waits
group by run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome;
