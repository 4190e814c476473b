-- The waits in the windows that are closed now, as the batch job's chain reads operations: what was
-- parked before these windows rises at their start. A pending operation has ended with its run.

create view operations as
select
    run_id,
    purgatory,
    broker,
    greatest(start_us, :from_us) as start_us,
    end_us,
    'parked' as outcome
from parked;
