-- The operations with the longest waits. Few operations are sorted: those with waits as long as the
-- step, a range of waits ten percent wide or less, in which the last of them is.

create view wait_steps as
select run_id, purgatory, coarse_wait(wait_us) as step, count(*) as waits_number
from chosen_operations
group by run_id, purgatory, coarse_wait(wait_us);

create view longest_steps as
select run_id, purgatory, step, sum(waits_number) over (
        partition by run_id, purgatory order by step desc
        rows between unbounded preceding and current row
    ) - waits_number as longer
from wait_steps;

create view least_waits as
select run_id, purgatory, min(step) as least_us
from longest_steps
where longer < :number
group by run_id, purgatory;

-- The slow operations of each run and purgatory by their waits; pending ones have waited so far.
create view ranked_operations as
select /*+ broadcast(l) */ o.run_id, o.purgatory, cast(row_number() over (
        partition by o.run_id, o.purgatory order by o.wait_us desc, o.start_us, o.operation
    ) as int) as rank,
    o.operation, o.broker, o.kind, o.outcome, o.start_us, o.end_us, o.wait_us, o.timeout_ms,
    o.watch_keys
from chosen_operations o
join least_waits l
    on o.run_id = l.run_id and o.purgatory = l.purgatory and o.wait_us >= l.least_us;

-- An operation with one of the longest waits; of equal waits, the earlier one comes first.
create table slowest as
select run_id, purgatory, rank, operation, broker, kind, outcome, start_us, end_us, wait_us,
    timeout_ms, watch_keys
from ranked_operations
where rank <= :number;
