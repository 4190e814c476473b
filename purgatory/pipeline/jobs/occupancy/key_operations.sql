-- An operation that waited, once for each of its different keys.
create view key_operations as
select run_id, purgatory, explode(array_distinct(watch_keys)) as "key", start_us, end_us, outcome
from operations
where outcome <> 'immediate';
