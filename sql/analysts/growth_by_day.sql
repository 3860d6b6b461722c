--- Objects that exist today, and their bytes, by the day (UTC) of their creation
CREATE VIEW mantle.growth_by_day WITH (security_invoker = true) AS
SELECT n.name AS namespace, s.day, s.objects, s.bytes
  FROM (SELECT m.ns, (m.created AT TIME ZONE 'UTC')::date AS day, count(*) AS objects, sum(m.size)::bigint AS bytes
          FROM mantle.meta m WHERE m.id IS NOT NULL AND m.explicit IS NULL GROUP BY 1, 2) AS s
  JOIN mantle.namespaces n ON n.ns = s.ns
 ORDER BY 1, 2;
GRANT SELECT ON mantle.growth_by_day TO mantle_analyst;
