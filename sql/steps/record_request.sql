-- Called when every check has passed and nothing has been written. A concurrent call of the same request makes this wait
-- for its end: a row then means that it was first.
CREATE FUNCTION mantle.record_request(
    p_principal int, p_ns bigint, p_request uuid, p_hash bigint, p_verb text, p_pid bigint, p_id bigint, p_version bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- Not by the column's default: Citus keeps no plan of a statement with a volatile function.
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
    -- Its answer was purged after this call had looked for it.
    DELETE FROM mantle.requests r WHERE r.pid = p_pid AND r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request;
    RETURN false;
END $$;
COMMENT ON FUNCTION mantle.record_request IS
    'Records a request''s answer; false when it has one already, or is too old to get one: mantle.recorded_outcome says which';
