-- Duplicates, lost and moved writes, unseen records, aborted reads and zombies' writes: a row per
-- case. Each suspect stands for itself.

-- A row per suspect, with what several kinds of cases ask.
create view examined_records as
select
    run_id, topic, value_id,
    "group" as producer_group, producer, "key", sequence, transaction, attempts, acks,
    coalesce(stored_partition, "partition") as "partition",
    stored_offset, stored_partition,
    coalesce(send_us, read_us) as time_us,
    places > 1 as copied,
    coalesce(lost_ack, false) as lost_ack,
    coalesce(lost_ack, false) and places <= oks + unknowns
        and not (observed and (first_attempts > 1 or not coalesce(surely_lost_ack, false)))
        as explained,
    case
        when attempts = 0 then 'its sends are not in the trace'
        when observed and first_attempts > 1 then :equal_records
        when observed and lost_ack and not coalesce(surely_lost_ack, false) then :equal_records
        when unplaced > 0 then 'a copy, perhaps of an aborted transaction'
    end as copy_doubt,
    oks > 0 and readings = hidden_readings and not taken as unread,
    attempts > 0 and fails + unknowns = attempts and hiddens = 0 and aborts = 0 and readings = 0
        and stored_partition is null and acks <> 0 and not open as failed,
    coalesce(last_error, 'no response') as failure,
    missed_partition, missed_offset, waiting_partition, waiting_offset, unvisited,
    unplaced_unknowns,
    case when acks in (0, 1) then 'acks=' || cast(acks as string) end as acks_permit,
    case when not passed then 'every reader began behind it' end as passing_doubt,
    hiddens > 0 as may_hide,
    hidden_offset,
    case when fails = attempts and attempts > 0 then readings else hidden_readings end
        as aborted_readings,
    case when fails = attempts and attempts > 0 then committed_readings
        else hidden_committed_readings end as aborted_committed_readings,
    case when fails = attempts and attempts > 0 then unknown_readings
        else hidden_unknown_readings end as aborted_unknown_readings,
    late_oks > 0 or (late_unknowns > 0 and timely = 0 and readings > 0) as zombie
from records;

-- A row per record that is equal to an earlier one, and may be that one, sent again.
create table equal_records as
select
    run_id, topic, value_id,
    min(equal_to) as equal_to, min("group") as producer_group, min(producer) as producer,
    min("key") as "key", min(sequence) as sequence, min("partition") as "partition",
    min("offset") as "offset", min(send_us) as time_us, count(*) as attempts
from resolved_sends
where equal_to is not null and outcome <> 'fail' and not hidden
group by run_id, topic, value_id;

-- A row per such record that is stored, as the one that it is equal to.
create view stored_equals as
select /*+ broadcast(equal_sides) */ run_id, topic, value_id
from (
    select run_id, topic, value_id, case when which = 0 then value_id else equal_to end as side
    from (select *, explode(sequence(0, 1)) as which from equal_records) as twice
) as equal_sides
join (
    select run_id, topic, value_id as side from traced_records where not suspect
    union all
    select run_id, topic, value_id from records where stored_partition is not null
) as stored_records using (run_id, topic, side)
group by run_id, topic, value_id
having count(*) = 2;

create view equal_cases as
select
    run_id, 'duplicate' as anomaly, producer_group, topic, "partition", "offset", producer, "key",
    value_id, sequence, time_us, attempts, :equal_records as doubt, equal_to as other_value
from equal_records
semi join stored_equals using (run_id, topic, value_id);

-- A row per anomaly of a record.
create table record_anomalies as
select
    run_id, anomaly, producer_group, topic,
    case when anomaly in ('lost_write', 'moved_write') then missed_partition else "partition" end
        as "partition",
    case
        when anomaly in ('lost_write', 'moved_write') then missed_offset
        when anomaly = 'unseen' then waiting_offset
        when anomaly = 'aborted_read' then coalesce(hidden_offset, stored_offset)
        when anomaly <> 'failed_send' then stored_offset
    end as "offset",
    producer, "key", value_id, sequence, transaction, time_us,
    case
        when anomaly = 'failed_send' then failure
        when anomaly in ('lost_write', 'moved_write') then acks_permit
        when anomaly = 'aborted_read' and may_hide and aborted_committed_readings = 0
            and aborted_unknown_readings = 0 then 'isolation=read_uncommitted'
    end as permit,
    anomaly in ('duplicate', 'lost_ack_duplicate') and explained as excusable,
    attempts,
    case
        when anomaly in ('duplicate', 'lost_ack_duplicate') then copy_doubt
        when anomaly in ('lost_write', 'moved_write') then passing_doubt
        when anomaly = 'unseen' then case
            when waiting_partition is null then 'its offset is not known'
            when not unvisited then 'readers did not get there'
            when unplaced_unknowns > 0 then :unread_copies
            else :unread
        end
        when anomaly = 'aborted_read' and may_hide and aborted_committed_readings = 0
            then 'configuration unknown: isolation'
    end as doubt,
    case
        when anomaly in ('lost_write', 'moved_write') then 'acks=all'
        when anomaly = 'aborted_read' and may_hide then 'isolation=read_committed'
    end as broken
from (
    select
        *,
        explode(split('duplicate failed_send lost_ack_duplicate lost_write moved_write unseen '
            || 'aborted_read zombie_write', ' ')) as anomaly
    from examined_records
    where
        copied or failed or unread or missed_partition is not null or aborted_readings > 0
        or zombie
) as possible_cases
where case anomaly
    when 'duplicate' then copied
    when 'failed_send' then failed
    when 'lost_ack_duplicate' then copied and lost_ack
    when 'lost_write' then
        unread and missed_partition is not null and waiting_partition is null
    when 'moved_write' then missed_partition is not null and stored_partition is not null
    when 'unseen' then unread and (missed_partition is null or waiting_partition is not null)
    when 'aborted_read' then aborted_readings > 0
    when 'zombie_write' then zombie
end;
