--- Ends a mutation: applies the counts, then emits the one message
CREATE FUNCTION mantle.count_and_emit(p_attempt bigint, p_changes mantle.directory_change[], p_deltas mantle.delta[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(p_deltas) > 0 THEN
        PERFORM mantle.apply_deltas(p_deltas);
    END IF;
    IF cardinality(p_changes) > 0 THEN
        PERFORM mantle.emit(NULL, p_attempt, p_changes);
    END IF;
END $$;
