-- A record of a producer when it was acknowledged, and one of a consumer when it was read.
create view client_records as
select run_id, 'producer' as kind, "group", topic, "partition", answer_us as time_us, "offset"
from sends
where outcome = 'ok' and answer_us is not null
union all
select run_id, 'consumer' as kind, "group", topic, "partition", time_us, "offset"
from reads;

-- Records in a window of time of a client's kind, group and partition. Ends of partitions, one past
-- the largest offset, give consumer lag.
create table throughput as
select /*+ broadcast(windows) */ run_id, time_us - time_us % window_us as window_start_us,
    time_us - time_us % window_us + window_us as window_end_us, kind, "group", topic, "partition",
    count(*) as records, max("offset") + 1 as end_offset
from client_records
join windows using (run_id)
group by run_id, time_us - time_us % window_us, window_us, kind, "group", topic, "partition";
