-- Heat maps: a row per heat map and pair of values. The seeds of each point are averaged first, then
-- the points with the same two values.

-- A point of a heat map: its measure over all of its seeds.
create view point_measures as
select heatmap, x_level, y_level, point, count(*) as scenarios, count(error) as failed,
    count(measured) as seeds, avg(measured) as point_mean, var_samp(measured) as variance
from heatmap_points
group by heatmap, x_level, y_level, point;

-- The standard deviation between the seeds of a point is pooled: weighted by degrees of freedom.
create view heatmap_cells as
select heatmap, x_level, y_level, count(*) as points,
    cast(sum(scenarios) as bigint) as scenarios, cast(sum(failed) as bigint) as failed,
    avg(point_mean) as mean,
    sqrt(sum(variance * (seeds - 1)) / sum(case when seeds > 1 then seeds - 1 end)) as seed_sd,
    min(point_mean) as least, max(point_mean) as most
from point_measures
group by heatmap, x_level, y_level;

create view heatmaps as
select /*+ broadcast(s), broadcast(a), broadcast(b) */ c.heatmap, s.x_setting, s.y_setting,
    s.measure, c.x_level, a.label as x, c.y_level, b.label as y, c.points, c.scenarios, c.failed,
    c.mean, c.seed_sd, c.least, c.most
from heatmap_cells c
join heatmap_settings s on c.heatmap = s.heatmap
left join heatmap_labels a on c.heatmap = a.heatmap and a.axis = 'x' and c.x_level = a.level
left join heatmap_labels b on c.heatmap = b.heatmap and b.axis = 'y' and c.y_level = b.level
order by c.heatmap, c.y_level, c.x_level;
