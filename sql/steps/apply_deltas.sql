-- In place only where the primary attribute record could be locked without waiting; held, absent or removed look alike and
-- append a delta record (PROTOCOLS 10). Callers hold the shared latch of every pid. One record a directory and call.
-- Locking and updating are two statements: the second sees the version that the first locked.

-- The usual case, one directory: three plain statements at most, no sets.
CREATE FUNCTION mantle.apply_delta(p_ns bigint, p_delta mantle.delta)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM mantle.meta m
      WHERE m.pid = p_delta.pid AND m.name = '/_ATTR' AND m.ts = 0 AND m.removed IS NOT TRUE FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        UPDATE mantle.meta m
           SET entries = m.entries + p_delta.entries, subdirectories = m.subdirectories + p_delta.subdirectories,
               bytes = m.bytes + p_delta.bytes, modified = greatest(m.modified, now())
         WHERE m.pid = p_delta.pid AND m.name = '/_ATTR' AND m.ts = 0;
    ELSE
        INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)
        VALUES (p_delta.pid, '/_ATTR', nextval('mantle.delta_ts'), p_ns, p_delta.entries, p_delta.subdirectories,
                p_delta.bytes, now());
    END IF;
END $$;
COMMENT ON FUNCTION mantle.apply_delta(bigint, mantle.delta) IS 'Adds to one directory''s counts without waiting';
REVOKE ALL ON FUNCTION mantle.apply_delta(bigint, mantle.delta) FROM PUBLIC;

CREATE FUNCTION mantle.apply_deltas(p_ns bigint, p_deltas mantle.delta[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_pids bigint[] := ARRAY(SELECT DISTINCT d.pid FROM unnest(p_deltas) AS d);
    v_held bigint[];
BEGIN
    v_held := ARRAY(SELECT m.pid FROM mantle.meta m
                     WHERE m.pid = ANY (v_pids) AND m.name = '/_ATTR' AND m.ts = 0 AND m.removed IS NOT TRUE
                       FOR UPDATE SKIP LOCKED);
    IF cardinality(v_held) > 0 THEN
        UPDATE mantle.meta m
           SET entries = m.entries + d.entries, subdirectories = m.subdirectories + d.subdirectories,
               bytes = m.bytes + d.bytes, modified = greatest(m.modified, now())
          FROM (SELECT pid, sum(entries) AS entries, sum(subdirectories) AS subdirectories, sum(bytes) AS bytes
                  FROM unnest(p_deltas) GROUP BY pid) AS d
         WHERE m.pid = d.pid AND m.pid = ANY (v_held) AND m.name = '/_ATTR' AND m.ts = 0;
    END IF;
    IF cardinality(v_held) < cardinality(v_pids) THEN
        INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)
        SELECT pid, '/_ATTR', nextval('mantle.delta_ts'), p_ns, sum(entries), sum(subdirectories), sum(bytes), now()
          FROM unnest(p_deltas) WHERE pid <> ALL (v_held) GROUP BY pid;
    END IF;
END $$;
COMMENT ON FUNCTION mantle.apply_deltas(bigint, mantle.delta[]) IS
    'Adds to directories'' counts without waiting: in place, or as delta records';
REVOKE ALL ON FUNCTION mantle.apply_deltas(bigint, mantle.delta[]) FROM PUBLIC;
