-- A namespace's directories, if it holds nothing but implicit ones and no more than a batch may latch; else NULL. Depth
-- first or not does not matter: all go in one transaction.
CREATE FUNCTION mantle.removable_directories(p_root bigint) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_all bigint[] := ARRAY[p_root];
    v_level bigint[] := ARRAY[p_root];
BEGIN
    LOOP
        IF EXISTS (SELECT FROM mantle.meta m WHERE m.pid = ANY (v_level) AND m.name < '/' AND m.explicit IS DISTINCT FROM false)
           OR EXISTS (SELECT FROM mantle.meta m WHERE m.pid = ANY (v_level) AND m.name >= '0' AND m.explicit IS DISTINCT FROM false)
        THEN
            RETURN NULL;
        END IF;
        v_level := ARRAY(SELECT m.id FROM mantle.meta m WHERE m.pid = ANY (v_level) AND m.explicit IS NOT NULL LIMIT 512);
        EXIT WHEN cardinality(v_level) = 0;
        v_all := v_all || v_level;
        IF cardinality(v_all) > 500 THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RETURN v_all;
END $$;
COMMENT ON FUNCTION mantle.removable_directories(bigint) IS
    'Directories to be removed with a namespace, NULL when it has content';
REVOKE ALL ON FUNCTION mantle.removable_directories(bigint) FROM PUBLIC;

-- Looks first, then latches every directory exclusively, then looks again: what came in between is content.
CREATE FUNCTION mantle.delete_namespace(
    p_principal int, p_name text, p_request uuid, p_hash bigint,
    OUT code text, OUT ns bigint, OUT replayed boolean, OUT flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    o mantle.outcome;
    v_ns bigint;
    v_all bigint[];
    v_changes mantle.directory_change[];
BEGIN
    replayed := false;
    PERFORM mantle.fault(mantle.mutation_fault_code());
    SELECT n.ns INTO v_ns FROM mantle.namespaces n WHERE n.name = p_name;
    v_all := mantle.removable_directories(v_ns);
    PERFORM mantle.fault(mantle.latch_entries(ARRAY[0::bigint], ARRAY[p_name], coalesce(v_all, '{}')));
    o := mantle.recall(p_principal, 0, p_request, p_hash);
    IF o.code IS NOT NULL OR o.replayed THEN
        code := o.code; ns := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN;
    END IF;
    code := CASE
        WHEN p_request IS NULL THEN 'MT006'
        WHEN v_ns IS NULL OR NOT EXISTS (SELECT FROM mantle.namespaces n WHERE n.ns = v_ns) THEN 'MT011'
        WHEN v_all IS NULL OR (mantle.removable_directories(v_ns) <@ v_all) IS NOT TRUE THEN 'MT017' END;
    IF code IS NOT NULL THEN
        RETURN;
    END IF;
    IF NOT mantle.claim(p_principal, 0, p_request, p_hash, 'delete_namespace', 0, v_ns, NULL) THEN
        o := mantle.recall(p_principal, 0, p_request, p_hash);
        code := o.code; ns := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN;
    END IF;
    ns := v_ns;
    WITH gone AS (
        DELETE FROM mantle.meta m WHERE m.ns = v_ns AND m.ts = 0 AND m.explicit IS NOT NULL AND m.id = ANY (v_all)
        RETURNING m.*)
    SELECT array_agg(ROW(true, v_ns, g.pid, g.name, g.id, g.version + 1, g.owner, g.grp, g.mode, p_principal,
                         CASE WHEN g.id = v_ns THEN p_request END)::mantle.directory_change ORDER BY g.id DESC)
      INTO v_changes FROM gone g;
    PERFORM mantle.bury(v_ns, d.id) FROM unnest(v_changes) AS d;
    DELETE FROM mantle.namespaces n WHERE n.ns = v_ns;
    DELETE FROM mantle.namespace_grants g WHERE g.ns = v_ns;
    PERFORM mantle.add_counts(0, 0, -1, -1, 0);
    PERFORM mantle.emit(0, 0, v_changes);
END $$;
COMMENT ON FUNCTION mantle.delete_namespace(int, text, uuid, bigint) IS
    'Removes a namespace that holds nothing but implicit directories; MT017 otherwise';
REVOKE ALL ON FUNCTION mantle.delete_namespace(int, text, uuid, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.delete_namespace(int, text, uuid, bigint) TO mantle_gateway;
