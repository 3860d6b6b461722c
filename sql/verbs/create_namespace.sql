CREATE FUNCTION mantle.create_namespace(
    p_principal int, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int, p_request uuid, p_hash bigint,
    OUT code text, OUT ns bigint, OUT owner int, OUT replayed boolean, OUT flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    c mantle.batch_context;
    o mantle.outcome;
BEGIN
    replayed := false;
    PERFORM mantle.fault(mantle.latch_entries(ARRAY[0::bigint], ARRAY[p_name]));
    c := mantle.batch_context(ARRAY[p_principal], '{0}', '{}', ARRAY[p_id], ARRAY[p_request]);
    IF p_request = ANY (c.known) THEN
        o := mantle.recall(p_principal, 0, p_request, p_hash);
        code := o.code; ns := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        owner := (SELECT n.owner FROM mantle.namespaces n WHERE n.ns = o.id);
        RETURN;
    END IF;
    SELECT 'MT013', n.ns, n.owner INTO code, ns, owner FROM mantle.namespaces n WHERE n.name = p_name;
    code := CASE
        WHEN mantle.namespace_name_fault(p_name) IS NOT NULL THEN mantle.namespace_name_fault(p_name)
        WHEN code IS NOT NULL THEN code
        WHEN (p_owner >= 0 AND p_grp >= 0 AND p_mode BETWEEN 0 AND 511 AND p_request IS NOT NULL) IS NOT TRUE THEN 'MT006'
        WHEN p_id IS NULL OR p_id = ANY (c.unrecorded) THEN 'MT040' END;
    IF code IS NOT NULL THEN
        RETURN;
    END IF;
    IF NOT mantle.claim(p_principal, 0, p_request, p_hash, 'create_namespace', 0, p_id, 1) THEN
        o := mantle.recall(p_principal, 0, p_request, p_hash);
        code := o.code; ns := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN;
    END IF;
    INSERT INTO mantle.namespaces (ns, name, owner) VALUES (p_id, p_name, p_owner);
    INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, created)
    VALUES (0, p_name || '/', p_id, p_id, p_owner, p_grp, p_mode, 1, true, now());
    ns := p_id;
    owner := p_owner;
    PERFORM mantle.add_counts(0, 0, 1, 1, 0);
    PERFORM mantle.emit(0, 0, ARRAY[
        ROW(false, p_id, 0, p_name || '/', p_id, 1, p_owner, p_grp, p_mode, p_principal, p_request)::mantle.directory_change]);
END $$;
COMMENT ON FUNCTION mantle.create_namespace(int, text, bigint, int, int, int, uuid, bigint) IS
    'Makes a namespace and its root directory; MT013 with number and owner when the name is taken';
REVOKE ALL ON FUNCTION mantle.create_namespace(int, text, bigint, int, int, int, uuid, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.create_namespace(int, text, bigint, int, int, int, uuid, bigint) TO mantle_gateway;
