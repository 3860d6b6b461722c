--- Writes the tombstone of a removed directory
-- The caller holds the exclusive latch of p_id and has found it empty since. The tombstone refuses creates that
-- resolved the directory before. Delta records are deleted in the same transaction.
CREATE FUNCTION mantle.write_tombstone(p_ns bigint, p_id bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM mantle.meta m WHERE m.pid = p_id AND m.name = '/_ATTR' AND m.ts > 0;
    INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, created, modified, removed)
    VALUES (p_id, '/_ATTR', 0, p_ns, 0, 0, 0, clock_timestamp(), clock_timestamp(), true)
    ON CONFLICT (pid, name, ts) DO UPDATE
       SET entries = 0, subdirectories = 0, bytes = 0, created = excluded.created, modified = excluded.modified,
           removed = true;
END $$;
