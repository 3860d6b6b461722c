--- Objects by the time since their last change, in classes; stale: 90 days and more
CREATE VIEW mantle.stale_data WITH (security_invoker = true) AS
SELECT n.name AS namespace, s.days AS not_modified_for_days, s.days >= 90 AS stale, s.objects, s.bytes
  FROM (SELECT m.ns, CASE WHEN m.modified > now() - interval '7 days' THEN 0
                          WHEN m.modified > now() - interval '30 days' THEN 7
                          WHEN m.modified > now() - interval '90 days' THEN 30
                          WHEN m.modified > now() - interval '365 days' THEN 90
                          ELSE 365 END AS days, count(*) AS objects, sum(m.size)::bigint AS bytes
          FROM mantle.meta m WHERE m.id IS NOT NULL AND m.explicit IS NULL GROUP BY 1, 2) AS s
  JOIN mantle.namespaces n ON n.ns = s.ns
 ORDER BY 1, 2;
GRANT SELECT ON mantle.stale_data TO mantle_analyst;
COMMENT ON COLUMN mantle.stale_data.not_modified_for_days IS
    'At least so long, and less than the next class (0, 7, 30, 90, 365)';
