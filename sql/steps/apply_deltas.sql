--- Adds to directories' counts, as mantle.delta_records says
-- One record per directory and call, in order of pids. See extension/src/steps/counts.rs.
CREATE FUNCTION mantle.apply_deltas(p_deltas mantle.delta[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM mantle.add_counts(d.ns, d.pid, d.entries::bigint, d.subdirectories::bigint, d.bytes::bigint)
       FROM (SELECT u.pid, min(u.ns) AS ns, sum(u.entries) AS entries, sum(u.subdirectories) AS subdirectories,
                    sum(u.bytes) AS bytes FROM unnest(p_deltas) AS u GROUP BY u.pid ORDER BY u.pid) AS d;
END $$;

--- Adds to primary attribute records, makes missing ones, and waits for a locked one
-- For bulk imports, which hold exclusive latches. In order of pids, because two imports in different orders would
-- deadlock.
CREATE FUNCTION mantle.add_deltas_waiting(p_deltas mantle.delta[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, modified, removed)
    SELECT d.pid, '/_ATTR', 0, min(d.ns), sum(d.entries), sum(d.subdirectories), sum(d.bytes), now(), false
      FROM unnest(p_deltas) AS d GROUP BY d.pid ORDER BY d.pid
    {or_add};
END $$;
