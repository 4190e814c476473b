-- A row per run: how many rows its verdicts rest on. A read whose effect was applied counts as
-- applied, where the run has no effects of its own.
create view judged as
select
    run_id,
    sent_count as sent,
    acknowledged_count as acknowledged,
    read_count as "read",
    commit_count as committed,
    case when has_effects then effect_count else applied_count end as applied
from audited_runs;
