-- In place only where the primary attribute record could be locked without waiting; held, absent or removed look alike and
-- append a delta record (PROTOCOLS 10). Callers hold the shared latch of every pid. One record a directory and call.
-- Locking and updating are two statements: the second sees the version that the first locked.
-- `mantle.delta_records` chooses for the ablation: always a delta record; never one, but the wait for the record.

CREATE FUNCTION mantle.append_deltas(p_deltas mantle.delta[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)
    SELECT d.pid, '/_ATTR', nextval('mantle.delta_ts'), min(d.ns), sum(d.entries), sum(d.subdirectories), sum(d.bytes), now()
      FROM unnest(p_deltas) AS d GROUP BY d.pid;
END $$;
COMMENT ON FUNCTION mantle.append_deltas(mantle.delta[]) IS 'Appends a delta record to each directory';
REVOKE ALL ON FUNCTION mantle.append_deltas(mantle.delta[]) FROM PUBLIC;

-- In order of pids, or two batches deadlock.
CREATE FUNCTION mantle.add_deltas_waiting(p_deltas mantle.delta[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, modified, removed)
    SELECT d.pid, '/_ATTR', 0, min(d.ns), sum(d.entries), sum(d.subdirectories), sum(d.bytes), now(), false
      FROM unnest(p_deltas) AS d GROUP BY d.pid ORDER BY d.pid
    ON CONFLICT (pid, name, ts) DO UPDATE
       SET entries = m.entries + excluded.entries, subdirectories = m.subdirectories + excluded.subdirectories,
           bytes = m.bytes + excluded.bytes, modified = greatest(m.modified, excluded.modified);
END $$;
COMMENT ON FUNCTION mantle.add_deltas_waiting(mantle.delta[]) IS
    'Adds to primary attribute records, made where absent; waits for whoever holds one';
REVOKE ALL ON FUNCTION mantle.add_deltas_waiting(mantle.delta[]) FROM PUBLIC;

-- The usual case, one directory: two plain statements, no sets.
CREATE FUNCTION mantle.add_counts(
    p_ns bigint, p_pid bigint, p_entries bigint, p_subdirectories bigint, p_bytes bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_mode text := current_setting('mantle.delta_records');
BEGIN
    IF v_mode = 'never' THEN
        PERFORM mantle.add_deltas_waiting(ARRAY[ROW(p_ns, p_pid, p_entries, p_subdirectories, p_bytes)::mantle.delta]);
        RETURN;
    ELSIF v_mode = 'auto' THEN
        PERFORM FROM mantle.meta m
          WHERE m.pid = p_pid AND m.name = '/_ATTR' AND m.ts = 0 AND m.removed IS NOT TRUE FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE mantle.meta m
               SET entries = m.entries + p_entries, subdirectories = m.subdirectories + p_subdirectories,
                   bytes = m.bytes + p_bytes, modified = greatest(m.modified, now())
             WHERE m.pid = p_pid AND m.name = '/_ATTR' AND m.ts = 0;
            RETURN;
        END IF;
    END IF;
    INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)
    VALUES (p_pid, '/_ATTR', nextval('mantle.delta_ts'), p_ns, p_entries, p_subdirectories, p_bytes, now());
END $$;
COMMENT ON FUNCTION mantle.add_counts(bigint, bigint, bigint, bigint, bigint) IS
    'Adds to one directory''s counts, as mantle.delta_records says';
REVOKE ALL ON FUNCTION mantle.add_counts(bigint, bigint, bigint, bigint, bigint) FROM PUBLIC;

CREATE FUNCTION mantle.apply_deltas(p_deltas mantle.delta[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_mode text := current_setting('mantle.delta_records');
    v_pids bigint[];
    v_held bigint[];
BEGIN
    IF v_mode <> 'auto' THEN
        PERFORM CASE v_mode WHEN 'never' THEN mantle.add_deltas_waiting(p_deltas) ELSE mantle.append_deltas(p_deltas) END;
        RETURN;
    END IF;
    v_pids := ARRAY(SELECT DISTINCT d.pid FROM unnest(p_deltas) AS d);
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
        PERFORM mantle.append_deltas(ARRAY(SELECT d::mantle.delta FROM unnest(p_deltas) AS d WHERE d.pid <> ALL (v_held)));
    END IF;
END $$;
COMMENT ON FUNCTION mantle.apply_deltas(mantle.delta[]) IS
    'Adds to directories'' counts, as mantle.delta_records says: in place, or as delta records';
REVOKE ALL ON FUNCTION mantle.apply_deltas(mantle.delta[]) FROM PUBLIC;
