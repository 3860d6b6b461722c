--- One walk of mantle.resolve_path, with the ids and versions on the way
-- Walks level by level in the calling statement's snapshot, so it cannot mix a directory's old place with its new one.
-- Citus has no such snapshot, so there it repeats until two walks agree (P25).
CREATE FUNCTION mantle.walk_down(
    p_ns_name text, p_components text[], OUT ns bigint, OUT depth int, OUT id bigint, OUT parent_id bigint,
    OUT owner int, OUT grp int, OUT mode int, OUT version bigint, OUT chain_owner int[], OUT chain_grp int[],
    OUT chain_mode int[], OUT ids bigint[])
LANGUAGE plpgsql STABLE {as_caller} SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_pid bigint := 0;
    v_name text := p_ns_name || '/';
    m record;
BEGIN
    LOOP
        SELECT e.ns, e.id, e.owner, e.grp, e.mode, e.version INTO m
          FROM mantle.meta e WHERE e.pid = v_pid AND e.name = v_name AND e.ts = 0;
        EXIT WHEN m.id IS NULL;
        ns := m.ns; id := m.id; parent_id := v_pid; owner := m.owner; grp := m.grp; mode := m.mode;
        version := m.version;
        depth := coalesce(depth + 1, 0);
        chain_owner := chain_owner || owner; chain_grp := chain_grp || grp; chain_mode := chain_mode || mode;
        ids := ids || id || version;
        EXIT WHEN depth = cardinality(p_components);
        v_pid := id;
        v_name := p_components[depth + 1] || '/';
    END LOOP;
END $$;

--- gateway: The deepest existing directory on a path, and the permissions of all on the way, root first; no row if the
--- namespace does not exist
CREATE FUNCTION mantle.resolve_path(p_ns_name text, p_components text[])
RETURNS TABLE (
    ns bigint, depth int, id bigint, parent_id bigint, owner int, grp int, mode int, version bigint, chain_owner int[],
    chain_grp int[], chain_mode int[]) LANGUAGE plpgsql STABLE {as_owner} AS $$
#variable_conflict use_column
DECLARE
    w record;
    v_before bigint[];
BEGIN
    FOR i IN 1..4 LOOP
        SELECT * INTO w FROM mantle.walk_down(p_ns_name, p_components);
        EXIT WHEN NOT mantle.is_distributed() OR w.ids IS NOT DISTINCT FROM v_before AND i > 1;
        IF i = 4 THEN
            RAISE EXCEPTION 'directories on the path are changed faster than they are read'
                USING ERRCODE = 'serialization_failure';
        END IF;
        v_before := w.ids;
    END LOOP;
    IF w.id IS NOT NULL THEN
        RETURN QUERY SELECT w.ns, w.depth, w.id, w.parent_id, w.owner, w.grp, w.mode, w.version,
                            w.chain_owner, w.chain_grp, w.chain_mode;
    END IF;
END $$;
