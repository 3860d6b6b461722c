--- gateway: As mantle.replay, by this node's rows only
-- On Citus a gateway asks all nodes at once: a query of all shards costs many times more. `searched` are the places of answers
-- that this node has searched, of all `placements`. The answers of several nodes make one if they name the same placements,
-- and have searched all of them. `placements` is NULL if a shard may have moved meanwhile (P57): then mantle.replay answers.
CREATE FUNCTION mantle.replay_local(
    p_principal int, p_ns bigint, p_request uuid, p_hash bigint, OUT placements bigint[], OUT searched bigint[],
    OUT known boolean, OUT code text, OUT id bigint, OUT version bigint, OUT flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE
    v_request mantle.requests;
    o mantle.outcome;
BEGIN
    SELECT r.placements, r.searched, r.request_hash, r.verb, r.id, r.version
      INTO placements, searched, v_request.request_hash, v_request.verb, v_request.id, v_request.version
      FROM mantle.recorded_local(p_ns, p_principal, p_request) AS r;
    known := v_request.request_hash IS NOT NULL;
    IF NOT known THEN
        code := mantle.request_fault(p_request);
        RETURN;
    END IF;
    v_request.request_id := p_request;
    o := mantle.outcome_of_request(v_request, p_hash);
    code := o.code; id := o.id; version := o.version; flush_lsn := o.flush_lsn;
END $$;
