--- mantle.abort_rename on the node of its record, which is the namespace's
-- Waits for a transaction of this attempt that is in progress or prepared: the unique key decides.
CREATE FUNCTION mantle.abort_rename_delegated(p_pid bigint, p_principal int, p_request uuid, p_attempt bigint)
RETURNS text LANGUAGE plpgsql VOLATILE {delegated} SET lock_timeout = '20s' AS $$
DECLARE v_state text;
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    INSERT INTO mantle.rename_attempts (ns, principal, request_id, attempt, state)
    VALUES (p_pid, p_principal, p_request, p_attempt, 'aborted') ON CONFLICT DO NOTHING;
    SELECT a.state INTO STRICT v_state FROM mantle.rename_attempts a
     WHERE a.ns = p_pid AND a.principal = p_principal AND a.request_id = p_request AND a.attempt = p_attempt;
    RETURN v_state;
END $$;

--- index: Ensures that a rename's attempt can no longer commit, or says that it has: aborted or committed
CREATE FUNCTION mantle.abort_rename(p_principal int, p_ns bigint, p_request uuid, p_attempt bigint) RETURNS text
LANGUAGE plpgsql VOLATILE {as_owner} SET lock_timeout = '20s' AS $$
DECLARE v_state text;
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    SELECT s INTO v_state FROM mantle.abort_rename_delegated(p_ns, p_principal, p_request, p_attempt) AS s;
    RETURN v_state;
END $$;
