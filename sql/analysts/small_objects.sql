--- How many of a namespace's objects are small: at most 512 KB (524,288 bytes)
CREATE VIEW mantle.small_objects WITH (security_invoker = true) AS
SELECT n.name AS namespace, s.objects, s.small_objects, round(s.small_objects::numeric / s.objects, 4) AS ratio,
       s.bytes, s.small_bytes
  FROM (SELECT m.ns, count(*) AS objects, count(*) FILTER (WHERE m.size <= 524288) AS small_objects,
               sum(m.size)::bigint AS bytes,
               coalesce(sum(m.size) FILTER (WHERE m.size <= 524288), 0)::bigint AS small_bytes
          FROM mantle.meta m WHERE m.id IS NOT NULL AND m.explicit IS NULL GROUP BY m.ns) AS s
  JOIN mantle.namespaces n ON n.ns = s.ns
 ORDER BY 1;
GRANT SELECT ON mantle.small_objects TO mantle_analyst;
