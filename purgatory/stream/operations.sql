-- Records of the topic as operations. The input is `records`: "value", "topic" and "partition".
-- An invalid record has the reason in "problem", and of its columns only those of its place.

create view parsed as
select
    topic,
    "partition",
    cast(value as string) as text,
    from_json(
        cast(value as string),
        :columns,
        map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_corrupt')
    ) as record
from records;

create view placed as
select
    topic,
    "partition",
    text,
    record.*,
    try_add(coalesce(record.started_us, 0), record.end_us) as event_us  -- null beyond 64 bits
from parsed;

-- Spark's current_timestamp is a constant in the code that it generates for a batch, and would have
-- it compiled for each. Java's clock is read instead, only for rows too far ahead at the start.
create view checked as
select
    *,
    case
        when _corrupt is not null or trim(coalesce(text, '')) = '' then 'no row of JSON'
        {rules}
        when event_us is null or event_us < 0 then 'impossible time'
        when event_us > :surely_us
            and event_us > :ahead_us
                + 1000 * cast(java_method('java.lang.System', 'currentTimeMillis') as bigint)
            then 'from the future'
    end as problem
from placed;

create view operations as
select
    topic,
    "partition",
    problem,
    case when problem is not null then substring(text, 1, 200) end as example,
    case when problem is null then coalesce(run_id, '') end as run_id,
    case when problem is null then broker end as broker,
    case when problem is null then purgatory end as purgatory,
    case when problem is null then kind end as kind,
    case when problem is null then outcome end as outcome,
    case when problem is null then wait_us end as wait_us,
    case when problem is null then event_us end as event_us
from checked;
