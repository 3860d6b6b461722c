-- `p_cause_ns`: the namespace that the requests' ids belong to where it is not the changed directories' own (0: the creation
-- and the removal of a namespace).
CREATE FUNCTION mantle.emit(p_cause_ns bigint, p_attempt bigint, p_changes mantle.directory_change[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(p_changes) > 0 THEN
        PERFORM mantle.fault(mantle.emit_directories(
                    p_cause_ns, p_attempt, array_agg(c.removed), array_agg(c.ns), array_agg(c.pid), array_agg(c.name),
                    array_agg(c.id), array_agg(c.version), array_agg(c.owner), array_agg(c.grp), array_agg(c.mode),
                    array_agg(c.principal), array_agg(c.request)))
           FROM unnest(p_changes) AS c;
    END IF;
END $$;
COMMENT ON FUNCTION mantle.emit(bigint, bigint, mantle.directory_change[]) IS
    'Emits the one message of a call, if it changed directories';
REVOKE ALL ON FUNCTION mantle.emit(bigint, bigint, mantle.directory_change[]) FROM PUBLIC;
