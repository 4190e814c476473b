-- The candidates for the answers to a sweep's questions: a row per question, value of the setting
-- that is asked for (`level`) and values of those it is asked per (`per_level`). Worse is greater,
-- whichever side the bound is on.

-- A point: its measure over all of its seeds, and how many of these keep the bound.
create view point_results as
select question, per_level, level, point, count(measured) as seeds, avg(measured) as mean,
    case when min(measured) < max(measured) then stddev_samp(measured)
        when count(measured) > 1 then 0e0 end as sd,
    count(case when measured < bound then 1 end) as kept, count(error) = count(*) as has_failed
from question_points
group by question, per_level, level, point;

-- The same, with the upper limit of its mean by Student's t, and its place: the worst point first.
create view limited_points as
select /*+ broadcast(q) */ p.question, p.per_level, p.level, p.seeds, p.mean, p.sd, p.kept,
    p.has_failed, p.mean + q.quantile * p.sd / sqrt(p.seeds) as upper_limit,
    row_number() over (
        partition by p.question, p.per_level, p.level
        order by p.mean desc, p.sd desc, p.seeds desc
    ) as place
from point_results p
left join t_quantiles q on p.question = q.question and p.seeds = q.seeds;

create view candidates as
select question, per_level, level, count(*) as points,
    count(case when has_failed then 1 end) as failed,
    max(case when place = 1 then mean end) as worst_mean,
    max(case when place = 1 then sd end) as worst_sd,
    max(case when place = 1 then seeds end) as worst_seeds, max(upper_limit) as upper_limit,
    count(case when seeds = 1 then 1 end) as of_one_seed, cast(sum(kept) as bigint) as kept,
    cast(sum(seeds) as bigint) as measured
from limited_points
group by question, per_level, level;
