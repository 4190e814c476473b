-- The scenarios of a sweep that failed: their number, and the first of them.

create view failed_points as
select * from points where error is not null;

create view failure_count as
select count(*) as failed from failed_points;

create view first_failures as
select * from failed_points
order by point, seed
limit :most_named;
