-- Checks for entries without the latch first and fails fast. Then latches (the parent shared, the directory and its
-- name exclusively) under a lock_timeout, and checks again (P11). A directory's entry is stored with its parent, its
-- content and its tombstone with itself; they may be on two nodes: see sql/steps/cross_directory.sql.
-- On one PostgreSQL node the fast path removes what may be removed (extension/src/verbs/rmdir.rs); this file is the
-- fallback.

--- The parent's part: a fault's code, or the first answer; otherwise only id and version are not NULL
CREATE FUNCTION mantle.rmdir_delegated(
    p_pid bigint, p_principal int, p_ns bigint, p_name text, p_id bigint, p_request uuid, p_hash bigint, p_caller text,
    p_parent text, p_fault text) RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE
    v_old mantle.meta;
    v_directory text;
    o mantle.outcome;
BEGIN
    SELECT * INTO v_old FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 FOR UPDATE;
    v_directory := mantle.permission_of(p_pid, p_parent);
    o := mantle.record_request_delegated(p_pid, p_principal, p_ns, p_request, p_hash, 'rmdir', coalesce(
            mantle.namespace_fault(p_ns), mantle.directory_name_fault(p_name),
            CASE WHEN (p_pid >= {ID_MIN} AND p_id IS NOT NULL AND p_request IS NOT NULL AND p_principal IS NOT NULL)
                      IS NOT TRUE THEN '{invalid_argument}' END,
            mantle.removal_fault(p_principal, p_caller, v_directory, v_old.owner),
            CASE WHEN v_old.id IS NULL OR v_old.ns <> p_ns THEN '{not_found}'
                 WHEN v_old.id <> p_id THEN '{directory_removed}'
                 ELSE p_fault END), p_id, v_old.version + 1);
    IF o IS NULL THEN
        PERFORM mantle.remove_entry_delegated(p_pid, v_old::text, ARRAY[
            ROW(true, p_ns, p_pid, p_name, p_id, v_old.version + 1, v_old.owner, v_old.grp, v_old.mode,
                p_principal, p_request)::mantle.directory_change]::text, 0);
        o.id := p_id;
        o.version := v_old.version + 1;
    END IF;
    RETURN o;
END $$;

--- Removes the directories of a call that the fast path of mantle.rmdir did not remove
-- `p_made`: the numbers of those that it did; NULL if it did not begin. Otherwise everything is latched, and `p_empty` are
-- the directories that were empty before that.
CREATE FUNCTION mantle.rmdir_fallback({rmdir.parameters}, p_made int[], p_empty bigint[])
RETURNS TABLE (ord int, {rmdir.answer}) LANGUAGE plpgsql VOLATILE {as_caller} AS $$
DECLARE
    e record;
    o mantle.outcome;
    v_empty boolean[] := '{}';
    v_is boolean;
    v_fault text;
    v_placements bigint := mantle.placements();
    v_local boolean := mantle.is_local(p_pid || p_id);
BEGIN
    PERFORM mantle.raise_fault(mantle.batch_fault(cardinality(p_name), ARRAY[{rmdir.lengths}]));
    FOR i IN 1..cardinality(p_id) LOOP
        IF p_made IS NULL THEN
            SELECT f INTO v_is FROM mantle.is_empty_delegated(p_id[i]) AS f;
        ELSE
            v_is := p_id[i] = ANY (p_empty);
        END IF;
        v_empty := v_empty || v_is;
    END LOOP;
    IF v_local AND p_made IS NULL THEN
        PERFORM mantle.raise_fault(mantle.latch_entries(
            p_pid, p_name, ARRAY(SELECT u.id FROM unnest(p_id, v_empty) AS u(id, empty) WHERE u.empty)));
    ELSIF NOT v_local THEN
        PERFORM mantle.latch_across_nodes(
            p_pid, p_name, ARRAY(SELECT u.id FROM unnest(p_id, v_empty) AS u(id, empty) WHERE u.empty), NULL);
    END IF;
    FOR e
        IN SELECT u.* FROM unnest({rmdir.arguments}, v_empty) WITH ORDINALITY AS u({rmdir.columns}, empty, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        IF e.n = ANY (p_made) THEN
            ord := e.n; code := NULL; id := e.id; replayed := false; flush_lsn := NULL;
            RETURN NEXT;
            CONTINUE;
        END IF;
        v_is := e.empty;
        IF v_is THEN
            SELECT f INTO v_is FROM mantle.is_empty_delegated(e.id) AS f;
        END IF;
        v_fault := coalesce(mantle.lease_fault(e.ns, e.lease), CASE WHEN NOT v_is THEN '{not_empty}' END);
        SELECT * INTO o FROM mantle.rmdir_delegated(e.pid, e.principal, e.ns, e.name, e.id, e.request, e.hash,
                                                    e.caller, e.parent, v_fault);
        IF o.code IS NULL AND o.replayed IS NULL THEN
            PERFORM FROM mantle.write_tombstone_delegated(e.id, e.ns);
        END IF;
        ord := e.n; code := o.code; id := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
END $$;

--- gateway: Removes empty directories. {not_found} if it does not exist, {directory_removed} if another one has its
--- name, {not_empty} if it has entries
CREATE FUNCTION mantle.rmdir({rmdir.signature}) RETURNS TABLE (ord int, {rmdir.answer})
LANGUAGE c VOLATILE {as_change} AS 'MODULE_PATHNAME', 'mantle_rmdir';
