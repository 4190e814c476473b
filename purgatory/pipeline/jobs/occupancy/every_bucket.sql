-- The buckets that have a row, also without changes: all from 0 to the end of the run.

-- Brokers with operations, and null for all brokers of a purgatory.
create view purgatory_brokers as
select distinct run_id, purgatory, broker from operations;

create table size_series as
select run_id, purgatory, broker from purgatory_brokers
union all
select distinct run_id, purgatory, cast(null as int) as broker from purgatory_brokers;

create view every_bucket as
select run_id, purgatory, broker, explode(sequence(0, last_bucket)) as bucket
from size_series
join (select run_id, int_div(end_us - 1, width_us) as last_bucket from spans where end_us > 0)
    using (run_id);
