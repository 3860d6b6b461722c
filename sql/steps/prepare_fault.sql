-- Checks that the index has prepared exactly this change. PostgreSQL cannot see the index's locks, so the group's
-- leader signs what it locked (P31).

--- index: The key with which an index group signs what it has prepared; NULL: it does not sign yet
CREATE FUNCTION mantle.prepare_key(p_index_group int) RETURNS bytea LANGUAGE sql STABLE {as_owner} AS $$
    SELECT k.key FROM mantle.prepare_keys k WHERE k.index_group = p_index_group
$$;

--- {not_prepared} for a change that the index has not prepared with these arguments
-- A removal moves to the trash (pid 1), under an empty name.
CREATE FUNCTION mantle.prepare_fault(p_proof bytea, {prepared.parameters_of_one}) RETURNS text
LANGUAGE plpgsql STABLE {as_caller} AS $$
DECLARE v_key bytea := (SELECT k.key FROM mantle.prepare_keys k WHERE k.index_group = p_index_group);
BEGIN
    RETURN CASE WHEN v_key IS NOT NULL AND mantle.is_proven(v_key, p_proof, {prepared.arguments}) IS NOT TRUE
                THEN '{not_prepared}' END;
END $$;

--- The signature that an index group would give to a prepared change; only for use while no index runs
-- For a superuser who must carry out by hand what no index prepares, and for tests.
CREATE FUNCTION mantle.prove({prepared.parameters_of_one}) RETURNS bytea LANGUAGE plpgsql STABLE {as_caller} AS $$
DECLARE v_key bytea := mantle.prepare_key(p_index_group);
BEGIN
    RETURN mantle.proof(v_key, {prepared.arguments});
END $$;
