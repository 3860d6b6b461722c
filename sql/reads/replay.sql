-- Asked before resolving when the client supplied the request id: a retry might resolve elsewhere and apply twice
-- (PROTOCOLS 19).
CREATE FUNCTION mantle.replay(
    p_principal int, p_ns bigint, p_request uuid, p_hash bigint,
    OUT found boolean, OUT code text, OUT verb text, OUT id bigint, OUT version bigint, OUT flush_lsn pg_lsn)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT o.code IS NOT NULL OR coalesce(o.replayed, false), o.code,
           (SELECT r.verb FROM mantle.requests r
             WHERE o.replayed AND r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request),
           o.id, o.version, o.flush_lsn
      FROM mantle.recall(p_principal, p_ns, p_request, p_hash) AS o
$$;
COMMENT ON FUNCTION mantle.replay(int, bigint, uuid, bigint) IS
    'The first answer to a request id, if there is one; MT020 when it was used for another request';
REVOKE ALL ON FUNCTION mantle.replay(int, bigint, uuid, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.replay(int, bigint, uuid, bigint) TO mantle_gateway;
