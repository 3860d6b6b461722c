--- mantle.{verb} on the node of p_at, the one directory of all elements
-- On Citus, for a session on another node than the directories: Citus sends the call to their node, once per
-- directory. A gateway is connected to the right node and comes here only for a shard that has just moved.
-- Rendered for each verb (extension/build.rs).
CREATE FUNCTION mantle.{verb}_delegated(p_at bigint, {verb.parameters}) RETURNS TABLE (ord int, {verb.answer})
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
BEGIN
    -- Otherwise it would be sent on from here, to here.
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_at]));
    RETURN QUERY SELECT * FROM mantle.{verb}({verb.arguments});
END $$;

--- mantle.{verb} on the nodes of its directories
-- Latches in all directories before it writes in the first: see mantle.latch_across_nodes.
CREATE FUNCTION mantle.{verb}_distributed({verb.parameters}) RETURNS TABLE (ord int, {verb.answer})
LANGUAGE plpgsql VOLATILE AS $$
DECLARE g record;
BEGIN
    -- Calls are dynamic, with constants: Citus sends only such a call to another node.
    IF (SELECT count(DISTINCT u.pid) FROM unnest(p_pid) AS u(pid)) > 1 THEN
        FOR g
            IN SELECT u.pid AS directory, array_agg(u.name) AS names  -- any order
              FROM unnest(p_pid, p_name) AS u(pid, name)
             WHERE u.pid IS NOT NULL AND u.name IS NOT NULL GROUP BY u.pid ORDER BY u.pid
        LOOP
            EXECUTE 'SELECT FROM mantle.latch_delegated($1, $2, false, NULL)' USING g.directory, g.names;
        END LOOP;
    END IF;
    FOR g
        IN SELECT u.pid AS directory, array_agg(u.n ORDER BY u.n) AS ords, {verb.aggregates_of_u}
          FROM unnest({verb.arguments}) WITH ORDINALITY AS u({verb.columns}, n)
         GROUP BY u.pid ORDER BY u.pid
    LOOP
        RETURN QUERY EXECUTE
            'SELECT ($1)[r.ord]::int, {verb.answer_names}
               FROM mantle.{verb}_delegated($2, {verb.from_third}) AS r'
            USING g.ords, g.directory, {verb.columns_of_g};
    END LOOP;
END $$;
