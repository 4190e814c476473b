-- How long operations waited: counts, shares and percentiles, in a row per run, window of time,
-- purgatory, topic, kind and outcome, and in rows over all topics, kinds and outcomes.

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
