-- Offsets with two or more values, by reads and acknowledgements.
--
-- An acknowledgement with acks=1 is of one broker, whose log may be lost: it permits differences, as
-- long as all others agree.

create view offset_cases as
select run_id, 'inconsistent_offset' as anomaly, topic, "partition", "offset",
    one_value as value_id, time_us,
    case when coalesce(firm_one = firm_other, true) then 'acks=1' end as permit,
    topic as record_topic, one_value as record_value,
    topic as other_topic, another_value as other_value
from (
    select run_id, topic, "partition", "offset", min(value_id) as one_value,
        max(value_id) as another_value, min(firm_value) as firm_one, max(firm_value) as firm_other,
        min(time_us) as time_us
    from (
        select run_id, topic, "partition", "offset", value_id, send_us as time_us,
            case when acks = -1 then value_id end as firm_value
        from sends
        where outcome = 'ok' and "offset" is not null
        union all
        select run_id, topic, "partition", "offset", value_id, time_us, value_id
        from reads
    ) observations
    group by run_id, topic, "partition", "offset"
) values_of_offsets
where one_value <> another_value;
