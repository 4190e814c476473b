-- The operations of each run and purgatory by their waits; pending ones have waited so far.
create view ranked_operations as
select run_id, purgatory, cast(row_number() over (
        partition by run_id, purgatory order by wait_us desc, start_us, operation
    ) as int) as rank,
    operation, broker, kind, outcome, start_us, end_us, wait_us, timeout_ms, watch_keys
from chosen_operations;

-- An operation with one of the longest waits; of equal waits, the earlier one comes first.
create table slowest as
select run_id, purgatory, rank, operation, broker, kind, outcome, start_us, end_us, wait_us,
    timeout_ms, watch_keys
from ranked_operations
where rank <= :number;
