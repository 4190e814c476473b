-- Operations counted by steps: ranges of waits that are ten percent wide or less.

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
