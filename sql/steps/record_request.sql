--- Records a request's answer; false if it has one already or is too old (mantle.recorded_outcome says which)
-- Called when every check has passed and nothing is written. Waits for the end of a concurrent call of the same
-- request; if a row exists then, that call was first.
CREATE FUNCTION mantle.record_request(
    p_principal int, p_ns bigint, p_request uuid, p_hash bigint, p_verb text, p_pid bigint, p_id bigint,
    p_version bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- Not the column's default: Citus caches no plan of a statement with a volatile function.
    v_created timestamptz := clock_timestamp();
BEGIN
    INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version, created)
    VALUES (p_ns, p_principal, p_request, coalesce(p_hash, 0), p_verb, p_pid, p_id, p_version, v_created)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF mantle.request_fault(p_request) IS NULL THEN
        RETURN true;
    END IF;
    -- Its answer was purged after this call had searched for it.
    DELETE FROM mantle.requests r
     WHERE r.pid = p_pid AND r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request;
    RETURN false;
END $$;
