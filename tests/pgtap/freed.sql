-- Who frees bytes in volumes, and who takes what was freed (P60). Each statement is its own transaction, because nobody takes
-- what is not committed.
\ir setup.psql
SELECT plan(67);
SELECT split_part(mantle.lineage(), '/', 2)::bigint << 20 AS e \gset
SELECT tap.namespace('tap-freed') AS ns \gset
SELECT mantle.register_volume(mantle.cluster_id(), 'freed', 4096, 100, 2) AS v \gset
SELECT mantle.mount_volume(mantle.cluster_id(), :v, 1, 4096, 100, 2, 'a') AS x \gset
SELECT count(*) AS x FROM mantle.lease_segments(:v, 1, 2, true) \gset
CREATE FUNCTION pg_temp.admit(v int, mount bigint, segments int[], epochs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
    FOR n IN SELECT * FROM mantle.volume_nodes() LOOP
        PERFORM mantle.admit_segments(n, v, mount, segments, epochs);
    END LOOP;
END $$;
SELECT pg_temp.admit(:v, 1, '{0,1}', ARRAY[:e, :e]::bigint[]) AS x \gset
SELECT set_config('tap.place', format('v1:%s.0.%s/1.', :v, :e), false) AS x \gset
CREATE FUNCTION pg_temp.at(name text) RETURNS text LANGUAGE sql AS $$
    SELECT current_setting('tap.place') || ascii(name) || '/0+' || ascii(name) $$;
CREATE FUNCTION pg_temp.put(ns bigint, pid bigint, name text, at text) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(p.code, p.old_locator) FROM tap.put(ns, pid, name, locator => pg_temp.at(at)) AS p $$;
CREATE FUNCTION pg_temp.copy(ns bigint, source text, copy text) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(c.code, c.old_locator)
      FROM (SELECT m.id, m.version FROM tap.meta() AS m WHERE m.pid = $1 AND m.name = $2 COLLATE "C" AND m.ts = 0) AS s
      CROSS JOIN LATERAL mantle.copy_object(5, $1, $1, $2, s.id, s.version, $1, $1, $3, tap.id(), 7, 8, 420, NULL, NULL,
          NULL, gen_random_uuid(), 1, p_caller => '0') AS c $$;
-- The freed rows of the volume that were not there the last time.
CREATE TEMPORARY TABLE known (locator text);
CREATE FUNCTION pg_temp.freed() RETURNS SETOF text LANGUAGE sql AS $$
    WITH new AS (
        INSERT INTO known SELECT f.locator FROM mantle.freed f
         WHERE f.locator LIKE current_setting('tap.place') || '%' AND f.shared_by = '0' AND f.locator NOT IN (SELECT locator FROM known)
        RETURNING locator)
    SELECT locator FROM new $$;
PREPARE freed AS SELECT * FROM pg_temp.freed() ORDER BY 1;

-- What removes the last row that names bytes frees them.
SELECT is(pg_temp.put(:ns, :ns, 'a', 'a'), NULL, 'an object');
SELECT is_empty('freed', 'nothing is freed');
SELECT results_eq(format('SELECT code, old_locator FROM tap.delete(%s, %s, ''a'')', :ns, :ns),
    'VALUES (NULL::text, NULL::text)', 'its bytes are not the caller''s to remove');
SELECT results_eq('freed', 'SELECT pg_temp.at(''a'')', 'its delete frees them');
SELECT is(pg_temp.put(:ns, :ns, 'b', 'b'), NULL, 'an object');
SELECT is(pg_temp.put(:ns, :ns, 'b', 'c'), NULL, 'that is overwritten');
SELECT results_eq('freed', 'SELECT pg_temp.at(''b'')', 'loses its bytes');
SELECT is(pg_temp.put(:ns, :ns, 'b', 'c'), NULL, 'put again with the same bytes');
SELECT is_empty('freed', 'it keeps them');
SELECT is((SELECT old_locator FROM tap.put(:ns, :ns, 'b', locator => 'objects/00/d')), NULL, 'by bytes elsewhere');
SELECT results_eq('freed', 'SELECT pg_temp.at(''c'')', 'too');
SELECT is((SELECT old_locator FROM tap.delete(:ns, :ns, 'b')), 'objects/00/d', 'those are answered as before');
SELECT is_empty('freed', 'and no freed row');
SELECT count(pg_temp.put(:ns, :ns, n, n)) AS x FROM unnest('{d,e}'::text[]) AS n \gset
SELECT code AS x FROM mantle.rename_object(5, :ns, :ns, 'd', :ns, 'e', true, gen_random_uuid(), 0, p_caller => '0') \gset
SELECT results_eq('freed', 'SELECT pg_temp.at(''e'')', 'an object over which another is renamed');
SELECT results_eq(format($$ SELECT code, old_locator FROM mantle.rename_object(5, %1$s, %1$s, 'e', %1$s, 'd', true,
    gen_random_uuid(), 0, p_caller => '0') $$, :ns), 'VALUES (NULL::text, NULL::text)', 'a rename');
SELECT is_empty('freed', 'frees nothing');

-- Shared bytes are freed by nobody here (tests/pgtap/manifests.sql).
SELECT is(pg_temp.put(:ns, :ns, 'f', 'f'), NULL, 'a source');
SELECT is(pg_temp.copy(:ns, 'f', 'd'), NULL, 'is copied over another object');
SELECT results_eq('freed', 'SELECT pg_temp.at(''d'')', 'which loses its bytes');
SELECT is(pg_temp.copy(:ns, 'd', 'd'), NULL, 'a copy onto itself');
SELECT count(tap.delete(:ns, :ns, n)) AS x FROM unnest('{f,d}'::text[]) AS n \gset
SELECT is_empty('freed', 'copies leave nothing');
SELECT pg_temp.put(:ns, :ns, 'g', 'g') AS x \gset
SELECT is(pg_temp.copy(:ns, 'g', 'g'), NULL, 'onto itself, not shared');
SELECT is_empty('freed', 'it keeps its bytes');

-- Recursive removal.
SELECT new_id AS t FROM tap.mkdir(:ns, :ns, 't/') \gset
SELECT count(pg_temp.put(:ns, :t, n, n)) AS x FROM unnest('{h,i}'::text[]) AS n \gset
SELECT code AS x FROM tap.remove_tree(:ns, :ns, 't/', :t) \gset
SELECT is_empty('freed', 'what is in the trash is not freed yet');
SELECT ok(tap.wait_for('SELECT mantle.run_maintenance(''empty_trash'') = 0'), 'it is emptied');
SELECT results_eq('freed', 'SELECT pg_temp.at(n) FROM unnest(''{h,i}''::text[]) AS n', 'then it is');

-- Uploads.
SELECT tap.id() AS u, tap.id() AS w \gset
SELECT mantle.create_upload_delegated(:u, :ns, 'k', 7, 8, NULL, NULL, NULL, 'FULL_OBJECT') AS x \gset
SELECT mantle.create_upload_delegated(:w, :ns, 'k', 7, 8, NULL, NULL, NULL, 'FULL_OBJECT') AS x \gset
CREATE FUNCTION pg_temp.part(upload bigint, ns bigint, part int, at text[], copied boolean DEFAULT false)
RETURNS text[] LANGUAGE sql AS $$
    SELECT CASE WHEN p.code IS NULL THEN p.old_locators ELSE ARRAY[p.code] END
      FROM mantle.put_part_delegated(upload, ns, part, 'e' || part, 'c', at, array_fill(0::bigint, ARRAY[cardinality(at)]),
          array_fill(1::bigint, ARRAY[cardinality(at)]), copied, NULL) AS p $$;
SELECT pg_temp.part(:u, :ns, 1, ARRAY[pg_temp.at('j'), pg_temp.at('k'), 'objects/00/j']) AS x \gset
SELECT is(pg_temp.part(:u, :ns, 1, ARRAY[pg_temp.at('k'), pg_temp.at('l')]), '{objects/00/j}', 'a part again');
SELECT results_eq('freed', 'SELECT pg_temp.at(''j'')', 'with some of its bytes');
SELECT pg_temp.part(:u, :ns, 2, ARRAY[pg_temp.at('m'), 'objects/00/m']) AS x \gset
SELECT pg_temp.part(:u, :ns, 3, ARRAY[pg_temp.at('n')], true) AS x \gset
SELECT code AS x FROM mantle.seal_upload_delegated(:u, :ns, '{1}', '{e1}', 1, :ns, 'e', 2, 'c') \gset
SELECT is(f, '{objects/00/m}', 'the upload is done') FROM mantle.finish_upload_delegated(:u, 0) AS f;
SELECT results_eq('freed', 'SELECT pg_temp.at(''m'')', 'a part that was not chosen, and not copied');
SELECT mantle.drop_manifest_delegated(:u, 0) AS x \gset
SELECT is(f, '{}', 'its manifest goes') FROM mantle.drop_manifest_delegated(:u, 0) AS f;
SELECT is_empty('freed', 'and is compared with the others first');
SELECT pg_temp.part(:w, :ns, 1, ARRAY[pg_temp.at('o'), 'objects/00/o']) AS x \gset
SELECT pg_temp.part(:w, :ns, 2, ARRAY[pg_temp.at('p')], true) AS x \gset
SELECT results_eq(format('SELECT * FROM mantle.abort_upload_delegated(%s)', :w),
    'VALUES (NULL::text, ''{objects/00/o}''::text[])', 'an upload that is given up');
SELECT results_eq('freed', 'SELECT pg_temp.at(''o'')', 'leaves the bytes of its own');

-- A call that is repeated after the segment was leased anew names the same write under another epoch.
SELECT tap.id() AS w \gset
SELECT mantle.create_upload_delegated(:w, :ns, 'k', 7, 8, NULL, NULL, NULL, 'FULL_OBJECT') AS x \gset
SELECT pg_temp.part(:w, :ns, 1, ARRAY[pg_temp.at('v')]) AS x \gset
SELECT pg_temp.put(:ns, :ns, 'w', 'w') AS x \gset
SELECT take.epoch AS later FROM mantle.take_over_segments(:v, 1, '{0}') AS take \gset
SELECT pg_temp.admit(:v, 1, '{0}', ARRAY[:later]::bigint[]) AS x \gset
SELECT set_config('tap.place', format('v1:%s.0.%s/1.', :v, :later), false) AS x \gset
SELECT is(pg_temp.part(:w, :ns, 1, ARRAY[pg_temp.at('v')]), '{}', 'a part');
SELECT is(pg_temp.put(:ns, :ns, 'w', 'w'), NULL, 'an object');
SELECT is((SELECT count(*) FROM mantle.freed WHERE volume = :v AND locator LIKE '%/1.118/%' OR locator LIKE '%/1.119/%'),
    0::bigint, 'neither frees what it names');

-- Objects get other locators.
CREATE FUNCTION pg_temp.replace(ns bigint, name text, old text, new text, id bigint DEFAULT NULL) RETURNS text
LANGUAGE sql AS $$
    SELECT concat_ws(' ', r.code, r.old_locator) FROM mantle.replace_locators_delegated(ns, ARRAY[name],
        ARRAY[coalesce(id, (SELECT m.id FROM tap.meta() AS m WHERE m.pid = ns AND m.name = $2 COLLATE "C" AND m.ts = 0))],
        ARRAY[old], ARRAY[new]) AS r $$;
SELECT count(tap.put(:ns, :ns, n, locator => 'objects/00/' || n)) AS x FROM unnest('{x1,x2}'::text[]) AS n \gset
SELECT pg_temp.copy(:ns, 'x2', 'x3') AS x \gset
SELECT version AS version FROM tap.meta() WHERE pid = :ns AND name = 'x1' \gset
SELECT is(pg_temp.replace(:ns, 'x1', 'objects/00/x1', pg_temp.at('x')), 'objects/00/x1', 'into a volume');
SELECT is(pg_temp.replace(:ns, 'x1', 'objects/00/x1', pg_temp.at('x')), 'MT026', 'it is there');
SELECT is(pg_temp.replace(:ns, 'x1', pg_temp.at('x'), pg_temp.at('y'), 1), 'MT026', 'another object');
SELECT is(pg_temp.replace(:ns, 'none', 'a', 'b', 1), 'MT026', 'none');
SELECT is(pg_temp.replace(:ns, 'x1', pg_temp.at('x'), ''), 'MT006', 'to nowhere');
SELECT is(pg_temp.replace(:ns, 'x1', pg_temp.at('x'), format('v1:%s.0.%s/1.1/0+1', :v, :e)), 'MT048', 'a stale epoch');
SELECT is(pg_temp.replace(:ns, 'x1', pg_temp.at('x'), pg_temp.at('y')), '', 'within a volume');
SELECT is(pg_temp.replace(:ns, 'x3', 'objects/00/x2', pg_temp.at('z')), '', 'a copy, whose old bytes others use');
SELECT results_eq(format('SELECT name COLLATE "default", locator COLLATE "default", shared, version = %s FROM tap.meta()
    WHERE pid = %s AND name LIKE ''x%%'' ORDER BY name', :version, :ns),
    'VALUES (''x1'', pg_temp.at(''y''), NULL, true), (''x2'', ''objects/00/x2'', true, true), (''x3'', pg_temp.at(''z''),
        NULL, true)', 'nothing else has changed');

-- Taking. What was read in between is behind the horizon.
CREATE FUNCTION pg_temp.take(v int, mount bigint DEFAULT 1, delay bigint DEFAULT 0, many int DEFAULT 100)
RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
    v_horizon text;
    v_locators text[];
BEGIN
    FOR n IN SELECT * FROM mantle.volume_nodes() LOOP
        SELECT t.horizon, t.locators INTO v_horizon, v_locators FROM mantle.take_freed_delegated(
            n, v, mount, nullif(current_setting('tap.horizon' || n, true), ''), delay, many) AS t;
        PERFORM set_config('tap.horizon' || n, v_horizon, false);
        RETURN QUERY SELECT l FROM unnest(v_locators) AS l;
    END LOOP;
END $$;
SELECT is_empty(format('SELECT pg_temp.take(%s)', :v), 'the first call takes nothing');
SELECT is_empty(format('SELECT pg_temp.take(%s, 2)', :v), 'nor does another mount');
SELECT is_empty(format('SELECT pg_temp.take(%s, 1, 3600000)', :v), 'nor is anything old enough');
UPDATE mantle.freed SET freed = freed - interval '2 hours' WHERE locator = replace(pg_temp.at('a'), :'later', :'e');
SELECT results_eq(format('SELECT pg_temp.take(%s, 1, 3600000)', :v),
    format('SELECT replace(pg_temp.at(''a''), %L, %L)', :'later', :'e'), 'but one');
SELECT set_eq(format('SELECT pg_temp.take(%s)', :v),
    format('SELECT replace(pg_temp.at(n), %L, %L) FROM unnest(''{b,c,e,d,h,i,j,m,o}''::text[]) AS n
             UNION ALL SELECT pg_temp.at(''x'')', :'later', :'e'), 'all, once');
SELECT is_empty(format('SELECT pg_temp.take(%s)', :v), 'and not again');
SELECT tap.connect('tap_open') AS x \gset
SELECT count(pg_temp.put(:ns, :ns, n, n)) AS x FROM unnest('{A,q}'::text[]) AS n \gset
SELECT dblink_exec('tap_open', 'BEGIN') AS x \gset
SELECT r.x FROM dblink('tap_open', format('SELECT code FROM tap.delete(%s, %s, ''A'')', :ns, :ns)) AS r(x text) \gset
SELECT code AS x FROM tap.delete(:ns, :ns, 'q') \gset
SELECT count(*) AS x FROM pg_temp.take(:v) \gset
SELECT results_eq(format('SELECT pg_temp.take(%s)', :v), 'SELECT pg_temp.at(''q'')',
    'an older transaction that stays open keeps no blocks of others');
SELECT dblink_exec('tap_open', 'COMMIT') AS x \gset
SELECT is_empty(format('SELECT pg_temp.take(%s)', :v), 'what it freed was not over at the last call, whatever its number');
SELECT results_eq(format('SELECT pg_temp.take(%s)', :v), 'SELECT pg_temp.at(''A'')', 'now it was');
PREPARE take AS SELECT locators, horizon <> $2 FROM mantle.take_freed_delegated(1, $1, 1, $2, $3, 1);
SELECT results_eq(format('EXECUTE take(%s, ''1/1 3:3: 0/0'', 0)', :v), 'VALUES (''{}''::text[], true)',
    'a horizon of another history');
SELECT throws_ok(format('EXECUTE take(%s, %L, 0)', :v, h), 'MT006', NULL, 'no horizon: ' || h)
  FROM unnest('{"","1/1","1/1 x 0/0","1/1 1 0/0","1/1 1:1: 0/0 1"}'::text[]) AS h;
SELECT throws_ok(format('EXECUTE take(%s, NULL, %s)', :v, d), 'MT006', NULL, 'no delay: ' || d)
  FROM unnest('{-1,604800001}'::bigint[]) AS d;

-- What belongs to others by now, and what nobody takes.
SELECT count(pg_temp.put(:ns, :ns, n, n)) AS x FROM unnest('{r,s,u}'::text[]) AS n \gset
SELECT count(tap.delete(:ns, :ns, n)) AS x FROM unnest('{r,s,u}'::text[]) AS n \gset
PREPARE forget AS SELECT sum(f) FROM mantle.volume_nodes() AS n
    CROSS JOIN LATERAL mantle.forget_freed_delegated(n, $1, $2, $3) AS f;
SELECT results_eq(format('EXECUTE forget(%s, 2, %L)', :v, ARRAY[pg_temp.at('r')]), 'VALUES (0::bigint)', 'another mount');
SELECT results_eq(format('EXECUTE forget(%s, 1, %L)', :v, ARRAY[pg_temp.at('r'), pg_temp.at('t')]), 'VALUES (1::bigint)',
    'forgotten');
UPDATE mantle.freed SET freed = freed - interval '15 days' WHERE locator = pg_temp.at('s');
SELECT ok(mantle.run_maintenance('purge_freed') >= 1, 'purged');
SELECT count(*) AS x FROM pg_temp.take(:v) \gset
SELECT results_eq(format('SELECT pg_temp.take(%s)', :v), 'SELECT pg_temp.at(''u'')', 'what is left');
-- Other tests count what is there.
DELETE FROM mantle.operations WHERE ns = :ns;
SELECT * FROM finish();
