--- All directories as the index knows them: names without their slash and with it
-- Read by an index's initial copy. It is read as the owner, so row-level security does not apply. The copy reads
-- `entry` and cuts the slash off itself, because `left` costs as much as the rest of the row.
CREATE VIEW mantle.directories
    AS SELECT m.ns, m.pid, m.id, m.version, m.owner, m.grp, m.mode, left(m.name, -1) AS name, m.name AS entry
      FROM mantle.meta m WHERE m.explicit IS NOT NULL;
GRANT SELECT ON mantle.directories TO mantle_index;
