-- A role that may write messages may forge the change stream (P6). The extension writes its own from C and needs no
-- EXECUTE, so the script takes it from PUBLIC.
-- pg_upgrade makes the new catalog by a dump that takes each member of an extension for itself. Two of our changes are
-- lost on the way. A dump has no statement for a publication's membership. And it leaves out what CREATE EXTENSION did
-- to the privileges of PostgreSQL's own functions (pg_init_privs): a restore by CREATE EXTENSION would do it again.

--- The functions that write messages of a caller's choice, whose signature depends on the version (P6)
CREATE FUNCTION mantle.message_functions() RETURNS SETOF regprocedure LANGUAGE sql STABLE {as_caller} AS $$
    SELECT p.oid::regprocedure FROM pg_proc p
     WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
$$;

--- What pg_upgrade has lost: message functions as PostgreSQL makes them, and a publication that is no member
-- An administrator who grants EXECUTE leaves the note in pg_init_privs. That is not undone here: the gateways and
-- check_cluster report it.
CREATE FUNCTION mantle.lost_by_upgrade() RETURNS SETOF text LANGUAGE sql STABLE {as_caller} AS $$
    SELECT f::text FROM mantle.message_functions() AS f
     WHERE NOT EXISTS (SELECT FROM pg_init_privs i
                        WHERE i.objoid = f AND i.classoid = 'pg_proc'::regclass AND i.privtype = 'e')
    UNION ALL
    SELECT p.pubname::text FROM pg_publication p
     WHERE p.pubname = 'mantle_stream'
       AND NOT EXISTS (SELECT FROM pg_depend d
                        WHERE d.objid = p.oid AND d.classid = 'pg_publication'::regclass
                          AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e')
$$;

--- Does again what CREATE EXTENSION did and pg_upgrade loses; answers what that was
-- The worker calls it when it starts. Only a superuser may change these catalogs.
CREATE FUNCTION mantle.restore_after_upgrade() RETURNS SETOF text LANGUAGE plpgsql VOLATILE {as_caller} AS $$
DECLARE
    v_lost text[] := ARRAY(SELECT l FROM mantle.lost_by_upgrade() AS l);
    v_function regprocedure;
BEGIN
    IF v_lost = '{}' THEN
        RETURN;
    END IF;
    -- The worker and an administrator may come at once.
    PERFORM pg_advisory_xact_lock(hashtext('mantle.restore_after_upgrade'));
    v_lost := ARRAY(SELECT l FROM mantle.lost_by_upgrade() AS l);
    FOR v_function IN SELECT f FROM mantle.message_functions() AS f WHERE f::text = ANY (v_lost) LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', v_function);
        -- CREATE EXTENSION makes this note itself.
        INSERT INTO pg_init_privs (objoid, classoid, objsubid, privtype, initprivs)
        SELECT p.oid, 'pg_proc'::regclass, 0, 'e', p.proacl FROM pg_proc p
         WHERE p.oid = v_function
           AND NOT EXISTS (SELECT FROM pg_init_privs i
                            WHERE i.objoid = p.oid AND i.classoid = 'pg_proc'::regclass AND i.privtype = 'e');
    END LOOP;
    -- Neither CREATE PUBLICATION nor ALTER EXTENSION makes a publication a member. If it were none, pg_dump would write
    -- it out, and a restore would fail because CREATE EXTENSION has made it already.
    INSERT INTO pg_depend (classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype)
    SELECT 'pg_publication'::regclass, p.oid, 0, 'pg_extension'::regclass, e.oid, 0, 'e'
      FROM pg_publication p, pg_extension e
     WHERE p.pubname = 'mantle_stream' AND p.pubname = ANY (v_lost) AND e.extname = 'mantle';
    RETURN QUERY SELECT unnest(v_lost);
END $$;

-- For the first time.
SELECT pg_catalog.count(*) FROM mantle.restore_after_upgrade();
