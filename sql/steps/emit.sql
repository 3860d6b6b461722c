CREATE FUNCTION mantle.emit(
    p_principal int, p_cause_ns bigint, p_attempt bigint, p_ns bigint, p_changes mantle.directory_change[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(p_changes) > 0 THEN
        PERFORM mantle.fault(mantle.emit_directories(
                    p_principal, p_cause_ns, p_attempt, array_agg(c.removed), p_ns, array_agg(c.pid), array_agg(c.name),
                    array_agg(c.id), array_agg(c.version), array_agg(c.owner), array_agg(c.grp), array_agg(c.mode),
                    array_agg(c.request)))
           FROM unnest(p_changes) AS c;
    END IF;
END $$;
COMMENT ON FUNCTION mantle.emit(int, bigint, bigint, bigint, mantle.directory_change[]) IS
    'Emits the one message of a call, if it changed directories';
REVOKE ALL ON FUNCTION mantle.emit(int, bigint, bigint, bigint, mantle.directory_change[]) FROM PUBLIC;
