-- The number of parked operations over time: the size of a purgatory as a step function.
--
-- The size rises by one when an operation starts to wait, and falls by one when its wait ends. A
-- wait includes its start, and not its end.

create view wait_ends as
select run_id, purgatory, broker, start_us as at_us, 1 as change
from operations
where outcome <> 'immediate'
union all
select run_id, purgatory, broker, end_us as at_us, -1 as change
from operations
where outcome not in ('immediate', 'pending');

-- A start or an end of a wait, before the end of the run; `left_us` is the time from then to the
-- end of its bucket.
create view size_changes as
select /*+ broadcast(spans) */ run_id, purgatory, broker, at_us, int_div(at_us, width_us) as bucket,
    change, least((int_div(at_us, width_us) + 1) * width_us, end_us) - at_us as left_us
from wait_ends
join spans using (run_id)
where at_us < end_us;
