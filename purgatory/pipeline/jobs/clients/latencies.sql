-- Latencies of clients: times until a response or an acknowledgement, in a row per run, group of
-- producers and span. They are longer than a purgatory's wait, which begins when the broker handles
-- a request: a broker handles one request of a connection at a time, and the others queue.

-- A span of an attempt to send; one of which the trace lacks a time has none.
create view attempt_times as
select run_id, "group", span,
    case span
        when 'attempt' then answer_us - send_us
        when 'network' then answer_us - send_us - (settled_us - arrived_us)
        when 'queue' then served_us - arrived_us
        when 'wait' then settled_us - served_us
        when 'broken' then case when error = 'DISCONNECTED' then answer_us - send_us end
    end as time_us
from sends
cross join (values ('attempt'), ('network'), ('queue'), ('wait'), ('broken')) as listed(span)
where answer_us is not null;

create view record_times as
select run_id, "group", 'record' as span,
    min(case when outcome = 'ok' then answer_us end) - min(coalesce(created_us, send_us)) as time_us
from sends
group by run_id, "group", producer, sequence;

create view span_times as
select run_id, "group", span, time_us from attempt_times where time_us is not null
union all
select run_id, "group", span, time_us from record_times where time_us is not null;

-- A rounded time, and how many attempts or records took that long.
create view time_counts as
select run_id, "group", span, rounded_wait(time_us) as rounded_us, count(*) as number,
    cast(sum(time_us) as bigint) as sum_us, max(time_us) as max_us
from span_times
group by run_id, "group", span, rounded_wait(time_us);

create table ranked_times as
select run_id, "group", span, rounded_us, number, sum_us, max_us,
    cast(sum(number) over (
        partition by run_id, "group", span order by rounded_us
        rows between unbounded preceding and current row
    ) as bigint) - number as first_rank,
    cast(sum(number) over (partition by run_id, "group", span) as bigint) as total
from time_counts;

-- The times at the two ranks around a share: the share s of n times lies at the rank s (n - 1).
create view share_times as
select run_id, "group", span, share,
    share * (total - 1) - floor(share * (total - 1)) as weight,
    max(case when floor(share * (total - 1)) between first_rank and first_rank + number - 1
        then rounded_us end) as low_us,
    max(case when least(floor(share * (total - 1)) + 1, total - 1)
        between first_rank and first_rank + number - 1 then rounded_us end) as high_us
from ranked_times
cross join (values (0.5e0), (0.95e0), (0.99e0), (0.999e0)) as listed(share)
group by run_id, "group", span, share, total;

create view time_percentiles as
select run_id, "group", span,
    max(case when share = 0.5e0 then low_us + (high_us - low_us) * weight end) as p50_us,
    max(case when share = 0.95e0 then low_us + (high_us - low_us) * weight end) as p95_us,
    max(case when share = 0.99e0 then low_us + (high_us - low_us) * weight end) as p99_us,
    max(case when share = 0.999e0 then low_us + (high_us - low_us) * weight end) as p999_us
from share_times
group by run_id, "group", span;

create view time_totals as
select run_id, "group", span, cast(sum(number) as bigint) as "count",
    cast(sum(sum_us) as bigint) as sum_us, max(max_us) as max_us
from ranked_times
group by run_id, "group", span;

-- Percentiles are up to 0.1 % too small above 10 ms.
create table latencies as
select run_id, "group", span, "count", sum_us / "count" as latency_mean_us,
    round(p50_us, :decimals) as latency_p50_us, round(p95_us, :decimals) as latency_p95_us,
    round(p99_us, :decimals) as latency_p99_us, round(p999_us, :decimals) as latency_p999_us,
    max_us as latency_max_us
from time_totals
join time_percentiles using (run_id, "group", span);
