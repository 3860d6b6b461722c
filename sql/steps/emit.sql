--- Says in the change stream that one part of a change across nodes is done, on the node of p_pid
-- The request counts as applied when both parts are (P2), so the change itself then names no request.
CREATE FUNCTION mantle.part_marker(p_ns bigint, p_pid bigint, p_principal int, p_request uuid)
RETURNS mantle.directory_change LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(NULL, p_ns, p_pid, '', 0, 0, 0, 0, 0, p_principal, p_request)::mantle.directory_change
$$;

--- Emits the one message of a call if it changed directories
-- `p_cause_ns`: the namespace of the request ids if it differs from that of the changed directories (0 for the
-- creation and removal of a namespace).
CREATE FUNCTION mantle.emit(p_cause_ns bigint, p_attempt bigint, p_changes mantle.directory_change[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(p_changes) > 0 THEN
        PERFORM mantle.raise_fault(mantle.emit_directories(
                    p_cause_ns, p_attempt, array_agg(c.removed ORDER BY c.n), array_agg(c.ns ORDER BY c.n),
                    array_agg(c.pid ORDER BY c.n), array_agg(c.name ORDER BY c.n), array_agg(c.id ORDER BY c.n),
                    array_agg(c.version ORDER BY c.n), array_agg(c.owner ORDER BY c.n), array_agg(c.grp ORDER BY c.n),
                    array_agg(c.mode ORDER BY c.n), array_agg(c.principal ORDER BY c.n),
                    array_agg(c.request ORDER BY c.n)))
           FROM unnest(p_changes) WITH ORDINALITY
                AS c(removed, ns, pid, name, id, version, owner, grp, mode, principal, request, n);
    END IF;
END $$;
