--- Objects of one namespace with the same etag and size: their number, and the bytes of all but one
-- Compares the size too, because the etag of a multipart upload is not a digest of the content alone.
CREATE VIEW mantle.duplicates WITH (security_invoker = true) AS
SELECT n.name AS namespace, s.etag, s.size, s.copies, (s.copies - 1) * s.size AS wasted_bytes
  FROM (SELECT m.ns, m.etag, m.size, count(*) AS copies
          FROM mantle.meta m WHERE m.id IS NOT NULL AND m.explicit IS NULL AND m.etag IS NOT NULL
         GROUP BY m.ns, m.etag, m.size HAVING count(*) > 1) AS s
  JOIN mantle.namespaces n ON n.ns = s.ns;
GRANT SELECT ON mantle.duplicates TO mantle_analyst;
