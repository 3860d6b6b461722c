--- gateway: The first answer to a request id if there is one; {request_mismatch} if another request used the id;
--- {request_expired} if it is too old to be known
-- Called before resolving if the client supplied the request id, because a retry might resolve differently (P19). First waits,
-- for at most 2 s, for whoever is recording an answer to the request on this node. A change that has committed and waits for its
-- standby is seen by nobody yet, but the index may show it already, because it reads the change stream. On Citus gateways call
-- mantle.replay_local first, which waits on each node.
CREATE FUNCTION mantle.replay(
    p_principal int, p_ns bigint, p_request uuid, p_hash bigint, OUT known boolean, OUT code text, OUT verb text,
    OUT id bigint, OUT version bigint, OUT flush_lsn pg_lsn) LANGUAGE plpgsql VOLATILE {as_change} AS $$
#variable_conflict use_column
DECLARE
    v_request mantle.requests;
    o mantle.outcome;
BEGIN
    PERFORM mantle.await_recording(p_ns, p_principal, p_request);
    SELECT * INTO v_request FROM mantle.requests r
     WHERE r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request LIMIT 1;
    o := mantle.outcome_of_request(v_request, p_hash);
    code := o.code; id := o.id; version := o.version; flush_lsn := o.flush_lsn;
    known := v_request.request_id IS NOT NULL;
    IF NOT known THEN
        code := mantle.request_fault(p_request);
    END IF;
    verb := CASE WHEN o.replayed THEN v_request.verb END;
END $$;
