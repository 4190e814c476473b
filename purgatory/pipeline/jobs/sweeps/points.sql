-- The results of a sweep beside its plan: a row per scenario of the plan, joined by key.

-- A scenario has several results where its task ran again, or where it was tried again after it
-- failed: the first of them has no error, if one has none.
create view ranked_results as
select *, row_number() over (
        partition by "key"
        order by case when error is null then 0 else 1 end, error, computed_s, elapsed_s
    ) as place
from results;

create view first_results as
select * from ranked_results where place = 1;

-- A scenario that is not done yet has no results.
create view planned_results as
select * from plan left join first_results using ("key");
