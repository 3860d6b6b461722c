-- What an index's initial copy reads, under an exported snapshot:
-- COPY (SELECT * FROM mantle.directories) TO STDOUT (FORMAT binary). Read as the owner, so row-level security does not touch it.
CREATE VIEW mantle.directories AS
    SELECT m.ns, m.pid, m.id, m.version, m.owner, m.grp, m.mode, left(m.name, -1) AS name
      FROM mantle.meta m WHERE m.explicit IS NOT NULL;
COMMENT ON VIEW mantle.directories IS 'All directories as the index knows them: names without their slash';
GRANT SELECT ON mantle.directories TO mantle_index;
