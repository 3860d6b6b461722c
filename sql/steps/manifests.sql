-- How the bytes of objects with a manifest are freed (P60). A copy of such an object, or of a part of it, marks it as shared. So if
-- it is not, nothing else names the extents that are the manifest's own.

--- The number of the upload whose extents are an object's bytes; NULL for the locator of any other object
CREATE FUNCTION mantle.manifest_id(p_locator text) RETURNS bigint
LANGUAGE sql IMMUTABLE RETURN CASE WHEN p_locator ~ '^manifest:[1-9][0-9]{0,17}$' THEN substr(p_locator, 10)::bigint END;

--- Frees the bytes of a manifest after the change has removed the only row that named it
-- The sweeper is left what is not certain at once: if the upload is not done, a repeated CompleteMultipartUpload may put its
-- object again; if somebody has its latch, this does not wait, since the caller holds latches already (P12); files are removed
-- by gateways, and after those who read them. The upload's row stays for the sweeper (mantle.drop_manifest_delegated).
CREATE FUNCTION mantle.free_manifest_delegated(p_upload bigint) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE
    v_is_done boolean;
    v_own text[];
    v_copied text[];
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    IF NOT mantle.try_latch_exclusive(p_upload) THEN
        RETURN;
    END IF;
    PERFORM FROM mantle.uploads u WHERE u.id = p_upload AND u.state = 'done';
    v_is_done := FOUND;
    -- Citus cannot plan an expression with a subquery here, where the coordinator may run the function itself.
    PERFORM FROM mantle.extents e WHERE e.upload = p_upload AND e.length > 0 AND NOT e.locator {in_volume};
    IF v_is_done AND NOT FOUND THEN
        SELECT array_agg(e.locator ORDER BY e.locator) FILTER (WHERE NOT e.copied),
               array_agg(e.locator ORDER BY e.locator) FILTER (WHERE e.copied)
          INTO v_own, v_copied FROM mantle.extents e WHERE e.upload = p_upload;
        PERFORM mantle.free_bytes(v_own);
        PERFORM mantle.free_bytes(v_copied, true);
        DELETE FROM mantle.extents e WHERE e.upload = p_upload;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
END $$;

--- Frees the bytes of the manifests among these locators, on any node; no row names these manifests any more
-- A part of a change that was sent to another node cannot go on to a third one, since Citus prepares it only where the first
-- node sent it. Then the sweeper comes. Calls are dynamic, with constants: Citus sends only such a call to another node.
CREATE FUNCTION mantle.free_manifests(p_locators text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_upload bigint;
BEGIN
    IF mantle.is_distributed() AND current_setting('citus.allow_nested_distributed_execution', true) = 'on' THEN
        RETURN;
    END IF;
    FOR v_upload
        IN SELECT u.id FROM (SELECT DISTINCT mantle.manifest_id(l) AS id FROM unnest(p_locators) AS l) AS u
         WHERE u.id IS NOT NULL ORDER BY u.id
    LOOP
        EXECUTE 'SELECT FROM mantle.free_manifest_delegated($1)' USING v_upload;
    END LOOP;
END $$;
