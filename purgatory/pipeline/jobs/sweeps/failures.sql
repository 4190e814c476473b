-- The scenarios of a sweep that failed, the first of them, and what the others have to judge.

create view failed_points as
select * from points where error is not null;

create view sweep_basis as
select
  count(*) as scenarios,
  count(error) as failed,
  coalesce(
    sum(produce_operations + fetch_follower_operations + fetch_consumer_operations), 0
  ) as operations,
  coalesce(sum(records), 0) as records
from points;

create view first_failures as
select * from failed_points
order by point, seed
limit :most_named;
