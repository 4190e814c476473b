-- How long operations waited: counts, shares and percentiles, in a row per run, window of time,
-- purgatory, topic, kind and outcome, and in rows over all topics, kinds and outcomes.
--
-- No task holds all waits of a row: operations are counted by steps, ranges of waits that are ten
-- percent wide or less; the counts give the rank of each step; and only the operations in the few
-- steps around a percentile are counted by their waits, or, for approximate percentiles, by their
-- rounded waits.

-- An operation and its window of time; without windows, both columns are null.
create view timed_operations as
select run_id, cast(start_us - start_us % window_us as bigint) as window_start_us, window_us,
    purgatory, kind, outcome, wait_us, watch_keys
from windowed_operations;

create view stepped_operations as
select run_id, window_start_us, window_us, purgatory, kind, outcome, wait_us, watch_keys,
    coarse_wait(wait_us) as step,
    case when :approximate then rounded_wait(wait_us) else wait_us end as counted_us
from timed_operations;

-- An operation and its topics, with a null where its keys are unknown. A single one also stands for
-- all topics; elsewhere, * is one of the topics.
create view operation_topics as
select run_id, window_start_us, window_us, purgatory, kind, outcome, wait_us, step, counted_us,
    topics_of(watch_keys) as topics, coalesce(list_size(watch_keys) = 1, false) as has_single
from stepped_operations
where :by_topic;

create view topic_operations as
select run_id, window_start_us, window_us, purgatory, '*' as topic, true as of_all, kind, outcome,
    wait_us, step
from stepped_operations
where not :by_topic
union all
select run_id, window_start_us, window_us, purgatory, explode_outer(topics) as topic,
    has_single as of_all, kind, outcome, wait_us, step
from operation_topics;

-- The operations of one topic, kind and outcome in a step.
create view step_counts as
select run_id, window_start_us, max(window_us) as window_us, purgatory, topic,
    of_all or coalesce(topic = '*', false) as of_all, kind, outcome, step, count(*) as operations,
    cast(sum(wait_us) as bigint) as sum_us, max(wait_us) as max_us
from topic_operations
group by run_id, window_start_us, purgatory, topic, of_all, kind, outcome, step;

-- The operations in a step of each topic and over all topics, also of all kinds and of all
-- outcomes. Waits over all outcomes are those of completed operations: how long pending ones will
-- wait is unknown.
create view all_step_counts as
select run_id, window_start_us, max(window_us) as window_us, purgatory,
    grouping(topic) = 1 as all_topics, topic, of_all,
    grouping(kind) = 1 as all_kinds, kind, grouping(outcome) = 1 as all_outcomes, outcome, step,
    cast(sum(operations) as bigint) as operations,
    cast(sum(case when outcome = 'expired' then operations else 0 end) as bigint) as expired,
    cast(sum(case when outcome <> 'pending' then operations else 0 end) as bigint) as completed,
    cast(sum(case when outcome <> 'pending' then sum_us end) as bigint) as completed_sum_us,
    max(case when outcome <> 'pending' then max_us end) as completed_max_us,
    cast(sum(sum_us) as bigint) as sum_us, max(max_us) as max_us
from step_counts
group by run_id, window_start_us, purgatory, step, cube(kind, outcome),
    grouping sets ((topic), (of_all));

-- The same, with the waits that count in the row.
create view row_steps as
select run_id, window_start_us, window_us, purgatory,
    case when all_topics then '*' else topic end as topic, all_kinds, kind, all_outcomes, outcome,
    step, operations, expired,
    case when all_outcomes then completed else operations end as waits_number,
    case when all_outcomes then completed_sum_us else sum_us end as sum_us,
    case when all_outcomes then completed_max_us else max_us end as max_us
from all_step_counts
where of_all or not all_topics and topic is distinct from '*';

-- The same, with the rank of the step's shortest wait among those of the row, from 0.
create table ranked_steps as
select run_id, window_start_us, window_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome,
    step, operations, expired, waits_number, sum_us, max_us,
    cast(sum(waits_number) over up_to_step as bigint) - waits_number as first_rank,
    cast(sum(waits_number) over whole_row as bigint) as total,
    max(max_us) over whole_row as longest_us
from row_steps
window
    whole_row as (
        partition by run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes,
            outcome),
    up_to_step as (
        partition by run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes,
            outcome
        order by step rows between unbounded preceding and current row);

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

create view row_totals as
select run_id, window_start_us, max(window_us) as window_us, purgatory, topic, all_kinds, kind,
    all_outcomes, outcome, cast(sum(operations) as bigint) as operations,
    cast(sum(expired) as bigint) as expired, cast(sum(waits_number) as bigint) as waits_number,
    cast(sum(sum_us) as bigint) as sum_us, max(max_us) as max_us
from ranked_steps
group by run_id, window_start_us, purgatory, topic, all_kinds, kind, all_outcomes, outcome;

-- The row over all outcomes has the most operations of its purgatory, topic and kind.
create table waits as
select t.run_id, t.window_start_us, t.window_start_us + t.window_us as window_end_us, t.purgatory,
    case when t.all_kinds then 'all' else t.kind end as kind, t.topic,
    case when t.all_outcomes then 'all' else t.outcome end as outcome, t.operations,
    t.operations / max(t.operations) over (
        partition by t.run_id, t.window_start_us, t.purgatory, t.topic, t.all_kinds, t.kind
    ) as share,
    case when t.all_outcomes then ratio(t.expired, t.waits_number) end as expiry_ratio,
    ratio(t.sum_us, t.waits_number) as wait_mean_us, round(p50_us, :decimals) as wait_p50_us,
    round(p95_us, :decimals) as wait_p95_us, round(p99_us, :decimals) as wait_p99_us,
    round(p999_us, :decimals) as wait_p999_us, t.max_us as wait_max_us
from row_totals t
left join percentiles p
    on t.run_id = p.run_id and t.purgatory = p.purgatory
    and t.window_start_us is not distinct from p.window_start_us
    and t.topic is not distinct from p.topic
    and t.all_kinds = p.all_kinds and t.kind is not distinct from p.kind
    and t.all_outcomes = p.all_outcomes and t.outcome is not distinct from p.outcome;
