--- Waits for whoever is recording an answer to a request id on this node, for at most 2 s
-- A change that has committed and waits for its standby is seen by nobody yet, but the index may show it already, because
-- it reads the change stream (P19).
CREATE FUNCTION mantle.await_answer(p_principal int, p_ns bigint, p_request uuid) RETURNS void
LANGUAGE plpgsql VOLATILE {as_change} AS $$
BEGIN
    PERFORM mantle.await_recording(p_ns, p_principal, p_request);
END $$;
