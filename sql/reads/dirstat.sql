--- gateway: Counts of directories: entries, subdirectories, bytes of their own objects; {directory_removed} if removed
-- One statement per directory reads primary and delta records in one snapshot; two statements were wrong during
-- compaction (P10).
CREATE FUNCTION mantle.dirstat(p_ns bigint, p_id bigint[])
RETURNS TABLE (ord int, code text, entries bigint, subdirectories bigint, bytes bigint, modified timestamptz)
LANGUAGE plpgsql STABLE {as_owner} SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_id bigint;
BEGIN
    ord := 0;
    FOREACH v_id IN ARRAY p_id LOOP
        SELECT coalesce(sum(m.entries), 0), coalesce(sum(m.subdirectories), 0), coalesce(sum(m.bytes), 0),
               max(m.modified), CASE WHEN bool_or(m.removed) THEN '{directory_removed}' END
          INTO entries, subdirectories, bytes, modified, code
          FROM mantle.meta m WHERE m.pid = v_id AND m.name = '/_ATTR' AND (m.ns = p_ns OR v_id = 0);
        ord := ord + 1;
        RETURN NEXT;
    END LOOP;
END $$;
