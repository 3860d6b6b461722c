--- The recorded answer to a request id, or why there can be none
-- replayed = true: the first answer. code `request_mismatch`: the request id was used for another request. code
-- `request_expired`: it is not recorded, and so old that its answer may have been purged. Neither: not recorded.
-- On Citus an answer is stored where the change was, and this reads only there; mantle.replay reads every node.
CREATE FUNCTION mantle.recorded_outcome(p_principal int, p_ns bigint, p_request uuid, p_hash bigint, p_pid bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_request mantle.requests;
    o mantle.outcome;
BEGIN
    IF mantle.is_distributed() THEN
        SELECT * INTO v_request FROM mantle.requests r
         WHERE r.pid = p_pid AND r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request;
    ELSE
        SELECT * INTO v_request FROM mantle.requests r
         WHERE r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request;
    END IF;
    IF v_request.request_id IS NULL THEN
        o.code := mantle.request_fault(p_request);
        RETURN o;
    END IF;
    RETURN mantle.outcome_of_request(v_request, p_hash);
END $$;
