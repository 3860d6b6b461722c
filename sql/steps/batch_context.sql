-- Verbs and reads run with plan_cache_mode = force_generic_plan: a plan for the array at hand always looks cheaper than one
-- for any array, so PostgreSQL would plan every statement again in every call (half of the time of a put).
--
-- Read in one statement after the latches. `missing`: namespaces that are not there; `removed`: pids with a tombstone (checked by every create, PROTOCOLS 7);
-- `unrecorded`: ids outside every block (PROTOCOLS 9); `known`: request ids that were answered before.
-- One probe of the primary key an element (OFFSET 0 keeps the planner from joining): `request_id = ANY (…)` became a scan of
-- all requests of the namespace, 4–5 ms a call after 4,000 requests; likewise a scan of all tombstones.
CREATE FUNCTION mantle.batch_context(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_id bigint[], p_request uuid[])
RETURNS mantle.batch_context LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_context mantle.batch_context;
BEGIN
    SELECT ARRAY(SELECT u.ns FROM (SELECT DISTINCT unnest(p_ns)) AS u(ns)
                  WHERE u.ns <> 0 AND NOT EXISTS (SELECT FROM mantle.namespaces n WHERE n.ns = u.ns OFFSET 0)),
           ARRAY(SELECT u.request FROM unnest(p_principal, p_ns, p_request) AS u(principal, ns, request) CROSS JOIN LATERAL (
                     SELECT FROM mantle.requests r
                      WHERE r.ns = u.ns AND r.principal = u.principal AND r.request_id = u.request OFFSET 0) AS answered),
           ARRAY(SELECT u.pid FROM (SELECT DISTINCT unnest(p_pid)) AS u(pid) CROSS JOIN LATERAL (
                     SELECT FROM mantle.meta m
                      WHERE m.pid = u.pid AND m.name = '/_ATTR' AND m.ts = 0 AND coalesce(m.removed, false) OFFSET 0) AS gone),
           ARRAY(SELECT u.id FROM unnest(p_id) AS u(id)
                  WHERE NOT coalesce((SELECT b.last_id >= u.id FROM mantle.id_blocks b
                                       WHERE b.first_id <= u.id ORDER BY b.first_id DESC LIMIT 1), false))
      INTO v_context;
    RETURN v_context;
END $$;
COMMENT ON FUNCTION mantle.batch_context(int[], bigint[], bigint[], bigint[], uuid[]) IS
    'What a batch of mutations reads once, after its latches';
REVOKE ALL ON FUNCTION mantle.batch_context(int[], bigint[], bigint[], bigint[], uuid[]) FROM PUBLIC;
