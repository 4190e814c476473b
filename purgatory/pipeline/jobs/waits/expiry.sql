-- A completed operation that waited, once for each of its keys, and once under null for its broker.
create view keyed_operations as
select run_id, purgatory, broker, cast(null as string) as watch_key, outcome, start_us, end_us
from chosen_operations
where outcome not in ('immediate', 'pending')
union all
select run_id, purgatory, broker, explode(array_distinct(watch_keys)) as watch_key, outcome,
    start_us, end_us
from chosen_operations
where outcome not in ('immediate', 'pending');

create table key_expiry as
select run_id, purgatory, broker, watch_key, count(*) as operations,
    cast(count_if(outcome = 'expired') as bigint) as expired,
    min(case when outcome = 'expired' then start_us end) as from_us,
    max(case when outcome = 'expired' then end_us end) as until_us
from keyed_operations
group by run_id, purgatory, broker, watch_key;

-- The keys of a run, those with most expired operations first.
create view ranked_keys as
select run_id, watch_key, row_number() over (
        partition by run_id order by sum(expired) desc, sum(operations) desc, watch_key
    ) as place
from key_expiry
where watch_key is not null
group by run_id, watch_key;

create table expiry as
select run_id, purgatory, broker, watch_key, operations, expired,
    expired / operations as expiry_ratio, from_us, until_us
from key_expiry
where watch_key is null
    or (run_id, watch_key) in (
        select run_id, watch_key from ranked_keys where place <= :most_keys);
