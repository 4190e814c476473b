-- Little's law in a trace: the mean size is the rate of arrivals times the mean wait.
--
-- Both sides are computed independently: the mean size from the sweep over starts and ends, the
-- rest from the operations. They are equal if no operation is parked at the end of the run. The
-- waits of those that are, are unknown, and not part of the mean wait: that explains a discrepancy,
-- and the table has how much of it. An unexplained rest is an error in the trace or in the sweep.

-- The area of a whole number: rounded, it has the same sum in whatever order the buckets come.
create view swept_sizes as
select run_id, purgatory, broker,
    sum(round(size_mean * (bucket_end_us - bucket_start_us))) as area_us
from occupancy
group by run_id, purgatory, broker;

create view broker_waits as
select /*+ broadcast(s) */ o.run_id, o.purgatory, o.broker, count(*) as entries,
    count_if(o.outcome = 'pending') as pending, count_if(o.outcome <> 'pending') as settled,
    sum(case when o.outcome <> 'pending' then o.end_us - o.start_us end) as settled_wait_us,
    sum(greatest(
        case when o.outcome = 'pending' then s.end_us else least(o.end_us, s.end_us) end
            - o.start_us, 0)) as wait_in_run_us
from operations o
join spans s on o.run_id = s.run_id
where o.outcome <> 'immediate'
group by o.run_id, o.purgatory, o.broker;

-- The same, also over all brokers.
create view purgatory_waits as
select run_id, purgatory, broker, grouping(broker) as of_all,
    cast(sum(entries) as bigint) as entries, cast(sum(pending) as bigint) as pending,
    cast(sum(settled) as bigint) as settled,
    cast(sum(settled_wait_us) as bigint) as settled_wait_us,
    cast(sum(wait_in_run_us) as bigint) as wait_in_run_us
from broker_waits
group by run_id, purgatory, rollup(broker);

create view size_terms as
select w.run_id, w.purgatory, w.broker, entries, pending,
    entries / (end_us / 1000000) as arrivals_per_s,
    ratio(settled_wait_us, settled) as mean_wait_us,
    entries * ratio(settled_wait_us, settled) / end_us as arrivals_times_wait,
    area_us / end_us as mean_parked, wait_in_run_us / end_us as parked_in_run
from swept_sizes z
join purgatory_waits w
    on z.run_id = w.run_id and z.purgatory = w.purgatory and z.broker is not distinct from w.broker
join spans s on w.run_id = s.run_id;

-- A row per run, purgatory and broker; null: all brokers. What the end of the run explains is the
-- difference to Little's law with each wait clipped to the run.
create table littles_law as
select run_id, purgatory, broker, entries, pending, arrivals_per_s, mean_wait_us,
    arrivals_times_wait, mean_parked, arrivals_times_wait - mean_parked as discrepancy,
    arrivals_times_wait - parked_in_run as explained_by_end,
    parked_in_run - mean_parked as unexplained
from size_terms;
