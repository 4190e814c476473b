-- The keys on which most operations were parked.

create view key_waits as
select /*+ broadcast(s) */ o.run_id, o.purgatory, o."key", s.end_us as run_end_us, o.outcome,
    greatest(
        case when o.outcome = 'pending' then s.end_us else least(o.end_us, s.end_us) end
            - o.start_us, 0) as parked_us
from key_operations o
join spans s on o.run_id = s.run_id;

create view key_totals as
select run_id, purgatory, "key", count(*) as entries,
    cast(count_if(outcome = 'expired') as bigint) as expired,
    cast(sum(parked_us) as bigint) as parked_us, max(parked_us) as wait_max_us,
    max(run_end_us) as run_end_us
from key_waits
group by run_id, purgatory, "key";

create view ranked_totals as
select run_id, purgatory, "key", entries, expired, parked_us, wait_max_us, run_end_us,
    cast(row_number() over (
        partition by run_id, purgatory order by parked_us desc, "key"
    ) as int) as rank
from key_totals;

-- The keys with the highest mean size of each run and purgatory.
create table hot_keys as
select run_id, purgatory, rank, "key", entries, expired, ratio(parked_us, run_end_us) as mean_parked,
    ratio(parked_us, entries) as wait_mean_us, wait_max_us
from ranked_totals
where rank <= :hot_keys;
