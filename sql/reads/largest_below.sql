--- gateway: What the largest key below a directory has beyond the directory's own key, in components and bytes. NULL if it has
--- {MEASURED_ENTRIES_MAX} entries below it, or more
CREATE FUNCTION mantle.largest_below(p_pid bigint, OUT levels int, OUT bytes int)
LANGUAGE plpgsql STABLE {as_owner} AS $$
DECLARE
    -- The directories of a level, and the bytes from the top to each.
    v_pids bigint[] := ARRAY[p_pid];
    v_above int[] := ARRAY[0];
    v_left bigint := {MEASURED_ENTRIES_MAX};
    v_entries bigint;
    v_largest int;
BEGIN
    levels := 0;
    bytes := 0;
    LOOP
        -- The limit is a constant, so that Citus sends it to the shards.
        SELECT count(*), max(a.above + e.bytes),
               array_agg(e.id ORDER BY e.id) FILTER (WHERE e.is_directory),
               array_agg(a.above + e.bytes ORDER BY e.id) FILTER (WHERE e.is_directory)
          INTO v_entries, v_largest, v_pids, v_above
          FROM (SELECT m.pid, m.id, octet_length(m.name) AS bytes, m.explicit IS NOT NULL AS is_directory
                  FROM mantle.meta m WHERE m.pid = ANY (v_pids) AND m.ts = 0 AND m.id IS NOT NULL
                 LIMIT {MEASURED_ENTRIES_MAX}) AS e
          JOIN unnest(v_pids, v_above) AS a(pid, above) ON a.pid = e.pid;
        EXIT WHEN v_entries = 0;
        v_left := v_left - v_entries;
        IF v_left <= 0 THEN
            levels := NULL;
            bytes := NULL;
            RETURN;
        END IF;
        levels := levels + 1;
        bytes := greatest(bytes, v_largest);
        EXIT WHEN v_pids IS NULL;
    END LOOP;
END $$;
