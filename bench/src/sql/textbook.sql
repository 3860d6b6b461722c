-- The textbook's directory tree, the baseline; the bench makes and drops it. mkdir inserts the entry and updates the
-- parent's row in one transaction. put_object does the same in a table like the MetaTable, with all of its indexes.
-- There are no latches, delta records, messages, or checks but the primary key. A new directory gets no row of counts, as in
-- Mantle. Request ids are recorded as in Mantle, so that only the way of keeping counts differs.
DROP SCHEMA IF EXISTS bench_textbook CASCADE;
CREATE SCHEMA bench_textbook;
CREATE TABLE bench_textbook.entries (
    pid bigint NOT NULL, name text COLLATE "C" NOT NULL, id bigint NOT NULL, owner int, grp int, mode int,
    created timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pid, name));
CREATE TABLE bench_textbook.directories (
    id bigint PRIMARY KEY, entries bigint NOT NULL DEFAULT 0, subdirectories bigint NOT NULL DEFAULT 0,
    modified timestamptz NOT NULL DEFAULT now())
    -- Autovacuum as for mantle.meta; the fill factor leaves room for updates in place.
    WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
          autovacuum_vacuum_cost_delay = 0);
CREATE TABLE bench_textbook.requests (LIKE mantle.requests INCLUDING ALL);

-- Takes mantle.mkdir's parameters; plain VALUES for one element, sets for several. Parents are updated in the order of their
-- ids, so there are no deadlocks.
CREATE FUNCTION bench_textbook.mkdir(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_explicit boolean[], p_user_metadata jsonb[], p_request uuid[], p_hash bigint[])
RETURNS TABLE (code text, id bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE d record;
BEGIN
    IF cardinality(p_id) = 1 THEN
        INSERT INTO bench_textbook.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
        VALUES (p_ns[1], p_principal[1], p_request[1], p_hash[1], 'mkdir', p_pid[1], p_id[1], 1);
        INSERT INTO bench_textbook.entries (pid, name, id, owner, grp, mode)
        VALUES (p_pid[1], p_name[1], p_id[1], p_owner[1], p_grp[1], p_mode[1]);
        UPDATE bench_textbook.directories d
           SET entries = d.entries + 1, subdirectories = d.subdirectories + 1, modified = now() WHERE d.id = p_pid[1];
        RETURN QUERY VALUES (NULL::text, p_id[1]);
        RETURN;
    END IF;
    INSERT INTO bench_textbook.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
    SELECT u.ns, u.principal, u.request, u.hash, 'mkdir', u.pid, u.id, 1
      FROM unnest(p_ns, p_principal, p_request, p_hash, p_pid, p_id) AS u(ns, principal, request, hash, pid, id);
    INSERT INTO bench_textbook.entries (pid, name, id, owner, grp, mode)
    SELECT * FROM unnest(p_pid, p_name, p_id, p_owner, p_grp, p_mode);
    FOR d IN SELECT u.pid, count(*) AS n FROM unnest(p_pid) AS u(pid) GROUP BY u.pid ORDER BY u.pid LOOP
        UPDATE bench_textbook.directories AS o
           SET entries = o.entries + d.n, subdirectories = o.subdirectories + d.n, modified = now() WHERE o.id = d.pid;
    END LOOP;
    RETURN QUERY SELECT NULL::text, u FROM unnest(p_id) AS u;
END $$;

CREATE TABLE bench_textbook.meta (LIKE mantle.meta INCLUDING ALL);

-- Takes mantle.put_object's parameters; only for new objects in directories that have their row of counts.
CREATE FUNCTION bench_textbook.put_object(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_size bigint[], p_etag text[], p_content_type text[], p_user_metadata jsonb[], p_locator text[], p_condition text[],
    p_request uuid[], p_hash bigint[])
RETURNS TABLE (code text, id bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE d record;
BEGIN
    IF cardinality(p_id) = 1 THEN
        INSERT INTO bench_textbook.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
        VALUES (p_ns[1], p_principal[1], p_request[1], p_hash[1], 'put_object', p_pid[1], p_id[1], 1);
        INSERT INTO bench_textbook.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                         user_metadata, locator, created, modified)
        VALUES (p_pid[1], p_name[1], p_ns[1], p_id[1], p_owner[1], p_grp[1], p_mode[1], 1, p_size[1], false, p_etag[1],
                p_content_type[1], p_user_metadata[1], p_locator[1], now(), now());
        UPDATE bench_textbook.meta m SET entries = m.entries + 1, bytes = m.bytes + p_size[1], modified = now()
         WHERE m.pid = p_pid[1] AND m.name = '/_ATTR' AND m.ts = 0;
        RETURN QUERY VALUES (NULL::text, p_id[1]);
        RETURN;
    END IF;
    INSERT INTO bench_textbook.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
    SELECT u.ns, u.principal, u.request, u.hash, 'put_object', u.pid, u.id, 1
      FROM unnest(p_ns, p_principal, p_request, p_hash, p_pid, p_id) AS u(ns, principal, request, hash, pid, id);
    INSERT INTO bench_textbook.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                     user_metadata, locator, created, modified)
    SELECT u.pid, u.name, u.ns, u.id, u.owner, u.grp, u.mode, 1, u.size, false, u.etag, u.content_type, u.user_metadata,
           u.locator, now(), now()
      FROM unnest(p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, p_size, p_etag, p_content_type, p_user_metadata, p_locator)
           AS u(pid, name, ns, id, owner, grp, mode, size, etag, content_type, user_metadata, locator);
    FOR d IN
        SELECT u.pid, count(*) AS n, sum(u.size) AS bytes FROM unnest(p_pid, p_size) AS u(pid, size) GROUP BY u.pid ORDER BY u.pid
    LOOP
        UPDATE bench_textbook.meta m SET entries = m.entries + d.n, bytes = m.bytes + d.bytes, modified = now()
         WHERE m.pid = d.pid AND m.name = '/_ATTR' AND m.ts = 0;
    END LOOP;
    RETURN QUERY SELECT NULL::text, u FROM unnest(p_id) AS u;
END $$;

-- Renames an object or a directory.
CREATE FUNCTION bench_textbook.rename(
    p_principal int, p_ns bigint, p_src_pid bigint, p_src_name text, p_dst_pid bigint, p_dst_name text, p_request uuid,
    p_hash bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_id bigint;
    v_directory int := (right(p_src_name, 1) = '/')::int;
    v_first bigint := least(p_src_pid, p_dst_pid);
BEGIN
    UPDATE bench_textbook.entries e SET pid = p_dst_pid, name = p_dst_name
     WHERE e.pid = p_src_pid AND e.name = p_src_name RETURNING e.id INTO STRICT v_id;
    INSERT INTO bench_textbook.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
    VALUES (p_ns, p_principal, p_request, p_hash, 'rename', p_dst_pid, v_id, 1);
    UPDATE bench_textbook.directories d
       SET entries = d.entries + CASE p_src_pid WHEN v_first THEN -1 ELSE 1 END,
           subdirectories = d.subdirectories + CASE p_src_pid WHEN v_first THEN -v_directory ELSE v_directory END,
           modified = now()
     WHERE d.id = v_first;
    UPDATE bench_textbook.directories d
       SET entries = d.entries + CASE p_dst_pid WHEN v_first THEN -1 ELSE 1 END,
           subdirectories = d.subdirectories + CASE p_dst_pid WHEN v_first THEN -v_directory ELSE v_directory END,
           modified = now()
     WHERE d.id = greatest(p_src_pid, p_dst_pid);
    RETURN v_id;
END $$;

GRANT USAGE ON SCHEMA bench_textbook TO PUBLIC;
GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA bench_textbook TO mantle_gateway;
