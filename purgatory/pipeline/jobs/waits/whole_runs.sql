-- An operation and its window of time; without windows, both columns are null.
create view timed_operations as
select run_id, cast(start_us - start_us % :window_us as bigint) as window_start_us,
    cast(:window_us as bigint) as window_us, purgatory, kind, outcome, wait_us, watch_keys
from chosen_operations;
