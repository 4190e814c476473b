-- An operation that was not immediate and its window of time, which has the width of its run.
create view timed_operations as
select /*+ broadcast(windows) */ run_id, start_us - start_us % window_us as window_start_us,
    window_us, purgatory, kind, outcome, wait_us, watch_keys
from chosen_operations
join windows using (run_id)
where outcome <> 'immediate';
