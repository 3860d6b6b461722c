-- replayed = true: the first answer. code MT020: the request id was used for another request. Neither: not known.
CREATE FUNCTION mantle.recall(p_principal int, p_ns bigint, p_request uuid, p_hash bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_request mantle.requests;
    v_outcome mantle.outcome;
BEGIN
    SELECT * INTO v_request FROM mantle.requests r
     WHERE r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF v_request.request_hash IS DISTINCT FROM coalesce(p_hash, 0) THEN
        v_outcome.code := 'MT020';
    ELSE
        v_outcome.id := v_request.id;
        v_outcome.version := v_request.version;
        v_outcome.replayed := true;
        -- Its commit is flushed, or it would not be visible: whoever has read the stream up to here has read it.
        v_outcome.flush_lsn := pg_current_wal_flush_lsn();
    END IF;
    RETURN v_outcome;
END $$;
COMMENT ON FUNCTION mantle.recall(int, bigint, uuid, bigint) IS 'The recorded answer to a request id';
REVOKE ALL ON FUNCTION mantle.recall(int, bigint, uuid, bigint) FROM PUBLIC;
