-- A row per run: how many rows its verdicts rest on. A read whose effect was applied counts as
-- applied, where the run has no effects of its own.
create view judged as
select
    run_id,
    coalesce(sent, 0) as sent,
    coalesce(acknowledged, 0) as acknowledged,
    coalesce("read", 0) as "read",
    coalesce(committed, 0) as committed,
    coalesce(effects, read_applied, 0) as applied
from audited_runs
left join (
    select
        run_id,
        count(*) as sent,
        cast(sum(case when outcome = 'ok' then 1 else 0 end) as bigint) as acknowledged
    from sends
    group by run_id
) as judged_sends using (run_id)
left join (
    select
        run_id,
        count(*) as "read",
        cast(sum(case when applied then 1 else 0 end) as bigint) as read_applied
    from reads
    group by run_id
) as judged_reads using (run_id)
left join (
    select run_id, count(*) as committed from commits group by run_id
) as judged_commits using (run_id)
left join (
    select run_id, count(*) as effects from effects group by run_id
) as judged_effects using (run_id);
