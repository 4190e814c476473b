-- The outcomes of attempts to send, and how often their records are stored.
--
-- A response and the log differ if a response timed out or got lost. A record counts as stored if a
-- consumer read it, once for each offset.

create view sent_attempts as
select run_id, "group", topic, value_id, outcome, error, send_us,
    coalesce(answer_us, send_us) as until_us
from sends;

-- An attempt in each of the rows that count it: `all` stands for all outcomes, `*` for all errors.
create view counted_attempts as
select run_id, "group", topic, value_id, 'all' as outcome, '*' as error, send_us, until_us
from sent_attempts
union all
select run_id, "group", topic, value_id, outcome, '*' as error, send_us, until_us
from sent_attempts
union all
select run_id, "group", topic, value_id, outcome, error, send_us, until_us
from sent_attempts
where error is not null;

-- A record in one such row: one with several outcomes counts in each of theirs, and once over all.
create view attempted_records as
select run_id, "group", outcome, error, topic, value_id, count(*) as attempts,
    min(send_us) as from_us, max(until_us) as until_us
from counted_attempts
group by run_id, "group", outcome, error, topic, value_id;

create view read_places as
select distinct run_id, topic, value_id, "partition", "offset" from reads;

create view read_records as
select run_id, topic, value_id, count(*) as places
from read_places
group by run_id, topic, value_id;

create table attempts as
select a.run_id, a."group", a.outcome, a.error, cast(sum(a.attempts) as bigint) as attempts,
    count(*) as records, count(r.places) as stored,
    count(case when r.places > 1 then 1 end) as doubled,
    cast(coalesce(sum(r.places - 1), 0) as bigint) as copies, min(a.from_us) as from_us,
    max(a.until_us) as until_us
from attempted_records a
left join read_records r
    on a.run_id = r.run_id and a.topic = r.topic and a.value_id = r.value_id
group by a.run_id, a."group", a.outcome, a.error;
