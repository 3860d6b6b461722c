--- analyst: 1, 2, 4, …, up to the largest bigint
CREATE FUNCTION mantle.powers_of_two() RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(1::bigint << i ORDER BY i) FROM generate_series(0, 62) AS i
$$;

--- Objects by size, in powers of two, by namespace
-- The analysts' views read the tables as the querying role (security_invoker), so the policies apply.
CREATE VIEW mantle.size_histogram WITH (security_invoker = true) AS
SELECT n.name AS namespace, CASE s.class WHEN 0 THEN 0 ELSE 1::bigint << (s.class - 1) END AS size_from,
       CASE WHEN s.class < 63 THEN 1::bigint << s.class END AS size_below, s.objects, s.bytes
  FROM (SELECT m.ns, width_bucket(m.size, mantle.powers_of_two()) AS class, count(*) AS objects,
               sum(m.size)::bigint AS bytes
          FROM mantle.meta m WHERE m.id IS NOT NULL AND m.explicit IS NULL GROUP BY 1, 2) AS s
  JOIN mantle.namespaces n ON n.ns = s.ns
 ORDER BY 1, 2;
GRANT SELECT ON mantle.size_histogram TO mantle_analyst;
COMMENT ON COLUMN mantle.size_histogram.size_below IS
    'Objects of this class are smaller, and not smaller than size_from';
