-- For the DBA: only the extension's owner and superusers may call these functions.

--- The number of a namespace in namespace_grants; 0 for *, which means all, including future ones
-- No namespace can have that name.
CREATE FUNCTION mantle.grantable(p_name text) RETURNS bigint LANGUAGE plpgsql STABLE {as_caller} AS $$
DECLARE v_ns bigint;
BEGIN
    IF p_name = '*' THEN
        RETURN 0;
    END IF;
    SELECT n.ns INTO v_ns FROM mantle.namespaces n WHERE n.name = p_name;
    IF NOT FOUND THEN
        PERFORM mantle.raise_fault('{namespace_not_found}');
    END IF;
    RETURN v_ns;
END $$;

--- Lets a role and its members read a namespace (*: all); the role must also be a member of mantle_analyst
CREATE FUNCTION mantle.grant_namespace(ns text, role name) RETURNS void LANGUAGE plpgsql VOLATILE {as_caller} AS $$
BEGIN
    IF to_regrole(quote_ident(role)) IS NULL THEN
        RAISE EXCEPTION 'role "%" does not exist', role USING ERRCODE = 'undefined_object';
    END IF;
    INSERT INTO mantle.namespace_grants AS g (role, ns)
        VALUES (grant_namespace.role, mantle.grantable(grant_namespace.ns))
    ON CONFLICT ON CONSTRAINT namespace_grants_pkey DO NOTHING;
END $$;

--- Revokes what grant_namespace granted; revoke a grant of * as *
-- The role may be gone already: its grants may be revoked after it was dropped.
CREATE FUNCTION mantle.revoke_namespace(ns text, role name) RETURNS void LANGUAGE plpgsql VOLATILE {as_caller} AS $$
DECLARE v_ns bigint := mantle.grantable(ns);
BEGIN
    DELETE FROM mantle.namespace_grants g WHERE g.ns = v_ns AND g.role = revoke_namespace.role;
END $$;
