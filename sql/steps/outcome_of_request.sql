--- The answer of a recorded request to a request with this hash
CREATE FUNCTION mantle.outcome_of_request(p_recorded mantle.requests, p_hash bigint) RETURNS mantle.outcome
LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_outcome mantle.outcome;
BEGIN
    IF p_recorded.request_id IS NULL THEN
        RETURN NULL;
    ELSIF p_recorded.request_hash IS DISTINCT FROM coalesce(p_hash, 0) OR p_recorded.verb = 'fence' THEN
        -- A fence keeps the request from being carried out (sql/verbs/complete_upload.sql).
        v_outcome.code := '{request_mismatch}';
    ELSE
        v_outcome.id := p_recorded.id;
        v_outcome.version := p_recorded.version;
        v_outcome.replayed := true;
        -- Its commit is flushed, otherwise it would not be visible. So a reader of the stream up to here has read it.
        v_outcome.flush_lsn := pg_current_wal_flush_lsn();
    END IF;
    RETURN v_outcome;
END $$;
