-- Several writers at a partition that should have one: a producer that began to write to it before an
-- earlier one had ended. An interval goes from the first send to the last answer, or to the last send
-- if that came later. Sends that definitely failed don't count. Each producer that begins within
-- another's interval is one case, so that n writers at once are n - 1.

-- A row per producer and partition: its interval.
create view writing as
select run_id, topic, "partition", "group", producer, min(send_us) as start_us,
    max(send_us) as last_us, max(greatest(send_us, answer_us)) as end_us
from sends
where outcome <> 'fail'
group by run_id, topic, "partition", "group", producer;

-- A row per interval that began within another: that of the earlier ones which ended last.
create table overlapping_writers as
select *
from (
    select run_id, topic, "partition", "group", producer, start_us,
        max(end_us) over earlier as other_end_us,
        max_by("group", end_rank) over earlier as other_group,
        max_by(producer, end_rank) over earlier as other_producer,
        max_by(last_us, end_rank) over earlier as other_last_us
    from (
        select *, row_number() over (
            partition by run_id, topic, "partition" order by end_us, producer, "group"
        ) as end_rank
        from writing
    ) ranked_intervals
    window earlier as (
        partition by run_id, topic, "partition" order by start_us, producer, "group"
        rows between unbounded preceding and 1 preceding
    )
) intervals
where start_us < other_end_us;

-- A row per overlap and end of an interval: of what is sent in one microsecond, the lower value counts
-- as sent first.
create table overlapping_values as
select run_id, topic, "partition", "group", producer, send_us, min(value_id) as first_value,
    max(value_id) as last_value
from sends
where outcome <> 'fail' and (run_id, topic, "partition", "group", producer, send_us) in (
    select run_id, topic, "partition", "group", producer, start_us from overlapping_writers
    union all
    select run_id, topic, "partition", other_group, other_producer, other_last_us from overlapping_writers
)
group by run_id, topic, "partition", "group", producer, send_us;

create view writer_cases as
select o.run_id, 'multi_writer' as anomaly, o."group" as producer_group, o.other_group, o.topic,
    o."partition", o.producer, f.first_value as value_id, o.start_us as time_us, true as excusable,
    o.topic as record_topic, l.last_value as record_value,
    o.topic as other_topic, f.first_value as other_value
from overlapping_writers o
    join overlapping_values f
        on o.run_id = f.run_id and o.topic = f.topic and o."partition" = f."partition"
        and o."group" = f."group" and o.producer = f.producer and o.start_us = f.send_us
    join overlapping_values l
        on o.run_id = l.run_id and o.topic = l.topic and o."partition" = l."partition"
        and o.other_group = l."group" and o.other_producer = l.producer
        and o.other_last_us = l.send_us;
