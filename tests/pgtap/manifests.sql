-- What frees the bytes of objects with a manifest, and bytes that several rows named (P60). Each statement is its own transaction,
-- because nobody takes what is not committed.
\ir setup.psql
SELECT plan(43);
SELECT split_part(mantle.lineage(), '/', 2)::bigint << 20 AS e \gset
SELECT tap.namespace('tap-manifests') AS ns \gset
SELECT mantle.register_volume(mantle.cluster_id(), 'manifests', 4096, 200, 2) AS v \gset
SELECT mantle.mount_volume(mantle.cluster_id(), :v, 1, 4096, 200, 2, 'a') AS x \gset
SELECT count(*) AS x FROM mantle.lease_segments(:v, 1, 1, true) \gset
SELECT count(mantle.admit_segments(n, :v, 1, '{0}', ARRAY[:e]::bigint[])) AS x FROM mantle.volume_nodes() AS n \gset
SELECT set_config('tap.place', format('v1:%s.0.%s/1.', :v, :e), false) AS x \gset
CREATE FUNCTION pg_temp.at(name text) RETURNS text LANGUAGE sql AS $$
    SELECT current_setting('tap.place') || ascii(name) || '/' || ascii(name) || '+1' $$;
CREATE FUNCTION pg_temp.places(names text) RETURNS text[] LANGUAGE sql AS $$
    SELECT array_agg(pg_temp.at(n) ORDER BY k) FROM string_to_table(names, NULL) WITH ORDINALITY AS u(n, k) $$;
-- An object whose manifest has an extent at each of these places; the manifest's number.
CREATE FUNCTION pg_temp.put(ns bigint, pid bigint, name text, names text, also text[] DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_id bigint := tap.id();
    v_all text[] := pg_temp.places(names) || also;
    v_code text;
BEGIN
    SELECT c INTO v_code FROM mantle.create_manifest_delegated(
        v_id, ns, 7, 8, v_all, array_fill(0::bigint, ARRAY[cardinality(v_all)]),
        array_fill(1::bigint, ARRAY[cardinality(v_all)]), NULL) AS c;
    SELECT coalesce(v_code, p.code) INTO v_code FROM tap.put(ns, pid, name, locator => 'manifest:' || v_id) AS p;
    IF v_code IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = v_code; END IF;
    RETURN v_id;
END $$;
CREATE FUNCTION pg_temp.copy(ns bigint, source text, copy text) RETURNS text LANGUAGE sql AS $$
    SELECT c.code
      FROM (SELECT m.id, m.version FROM tap.meta() AS m WHERE m.pid = $1 AND m.name = $2 COLLATE "C" AND m.ts = 0) AS s
      CROSS JOIN LATERAL mantle.copy_object(5, $1, $1, $2, s.id, s.version, $1, $1, $3, tap.id(), 7, 8, 420, NULL, NULL,
          NULL, gen_random_uuid(), 1, p_caller => '0') AS c $$;
-- The places in the volume that were freed since the last time: those that no row names any more, or those that may be shared.
CREATE TEMPORARY TABLE known (locator text, shared_by xid8);
CREATE FUNCTION pg_temp.freed(shared boolean DEFAULT false) RETURNS text LANGUAGE sql AS $$
    WITH new AS (
        INSERT INTO known SELECT f.locator, f.shared_by FROM mantle.freed f
         WHERE f.locator LIKE current_setting('tap.place') || '%' AND (f.shared_by <> '0') = shared
           AND NOT EXISTS (SELECT FROM known k WHERE k.locator = f.locator AND k.shared_by = f.shared_by)
        RETURNING locator)
    SELECT string_agg(chr(split_part(split_part(split_part(locator, '/', 2), '/', 1), '.', 2)::int), '' ORDER BY locator)
      FROM new $$;
CREATE FUNCTION pg_temp.extents(upload bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM mantle.upload_extents(upload, 0, 0, 100) $$;

-- Who removes the only row that names a manifest frees its bytes.
SELECT pg_temp.put(:ns, :ns, 'a', 'AB') AS m \gset
SELECT is(pg_temp.freed(), NULL, 'an object');
SELECT is(code, NULL, 'is deleted') FROM tap.delete(:ns, :ns, 'a');
SELECT is(pg_temp.freed(), 'AB', 'with its extents');
SELECT is(pg_temp.extents(:m), 0::bigint, 'which nothing names any more');
SELECT pg_temp.put(:ns, :ns, 'b', 'CD') AS m, pg_temp.put(:ns, :ns, 'b', 'EF') AS x \gset
SELECT is(pg_temp.freed(), 'CD', 'an overwritten object');
SELECT is(p.code, NULL, 'put again with the same manifest')
  FROM tap.put(:ns, :ns, 'b', locator => 'manifest:' || :x) AS p;
SELECT is(pg_temp.freed(), NULL, 'it keeps its bytes');
SELECT pg_temp.put(:ns, :ns, 'c', 'GH') AS x \gset
SELECT code AS x FROM mantle.rename_object(5, :ns, :ns, 'c', :ns, 'b', true, gen_random_uuid(), 0, p_caller => '0') \gset
SELECT is(pg_temp.freed(), 'EF', 'an object over which another is renamed');
SELECT tap.put(:ns, :ns, 'd', locator => 'objects/00/d') AS x \gset
SELECT is(pg_temp.copy(:ns, 'd', 'b'), NULL, 'another is copied');
SELECT is(pg_temp.freed(), 'GH', 'over that');
SELECT new_id AS t FROM tap.mkdir(:ns, :ns, 't/') \gset
SELECT pg_temp.put(:ns, :t, 'e', 'IJ') AS x, pg_temp.put(:ns, :t, 'f', 'KL') AS y \gset
SELECT code AS x FROM tap.remove_tree(:ns, :ns, 't/', :t) \gset
SELECT ok(tap.wait_for('SELECT mantle.run_maintenance(''empty_trash'') = 0'), 'a tree is removed');
SELECT is(pg_temp.freed(), 'IJKL', 'with everything in it');

-- What is left to the sweeper.
SELECT pg_temp.put(:ns, :ns, 'f', 'MN', '{objects/00/f}') AS m \gset
SELECT code AS x FROM tap.delete(:ns, :ns, 'f') \gset
SELECT is(pg_temp.freed(), NULL, 'some bytes are in a file');
SELECT is(pg_temp.extents(:m), 3::bigint, 'then all of them wait');
SELECT pg_temp.put(:ns, :ns, 'g', 'OP') AS m \gset
SELECT tap.connect('tap_latch') AS x \gset
SELECT dblink_exec('tap_latch', 'BEGIN') AS x \gset
SELECT r.x FROM dblink('tap_latch', format('SELECT mantle.latch_entries(''{}'', ''{}'', ARRAY[%s::bigint])', :m)) AS r(x text) \gset
SELECT is(code, NULL, 'somebody has the manifest''s latch') FROM tap.delete(:ns, :ns, 'g');
SELECT dblink_exec('tap_latch', 'COMMIT') AS x \gset
SELECT is(pg_temp.freed(), NULL, 'nobody waits for that');
SELECT tap.id() AS u \gset
SELECT mantle.create_upload_delegated(:u, :ns, 'h', 7, 8, NULL, NULL, NULL, 'FULL_OBJECT') AS x \gset
CREATE FUNCTION pg_temp.part(upload bigint, ns bigint, part int, names text, copied boolean) RETURNS text
LANGUAGE sql AS $$
    SELECT p.code FROM mantle.put_part_delegated(upload, ns, part, 'e' || part, 'c', pg_temp.places(names),
        array_fill(0::bigint, ARRAY[length(names)]), array_fill(1::bigint, ARRAY[length(names)]), copied, NULL) AS p $$;
SELECT is(pg_temp.part(:u, :ns, 1, 'QR', false), NULL, 'a part');
SELECT is(pg_temp.part(:u, :ns, 2, 'S', true), NULL, 'and a copied one');
SELECT code AS x FROM mantle.seal_upload_delegated(:u, :ns, '{1,2}', '{e1,e2}', 1, :ns, 'e', 3, 'c') \gset
SELECT tap.put(:ns, :ns, 'h', locator => 'manifest:' || :u) AS x \gset
SELECT code AS x FROM tap.delete(:ns, :ns, 'h') \gset
SELECT is(pg_temp.freed(), NULL, 'an upload that is not done may put its object again');
SELECT mantle.finish_upload_delegated(:u, 0) AS x \gset
SELECT tap.put(:ns, :ns, 'h', locator => 'manifest:' || :u) AS x \gset
SELECT is(pg_temp.freed(true), NULL, 'nothing shared was removed so far');
SELECT code AS x FROM tap.delete(:ns, :ns, 'h') \gset
SELECT is(pg_temp.freed(), 'QR', 'one that is done');
SELECT is(pg_temp.freed(true), 'S', 'and what it has copied may be another''s');

-- Copies.
SELECT pg_temp.put(:ns, :ns, 'i', 'TU') AS m \gset
SELECT is(pg_temp.copy(:ns, 'i', 'j'), NULL, 'a copy');
SELECT count(tap.delete(:ns, :ns, n)) AS x FROM unnest('{i,j}'::text[]) AS n \gset
SELECT is(pg_temp.freed(), NULL, 'neither frees what both have');
SELECT mantle.drop_manifest_delegated(:m, 0) AS x \gset
UPDATE mantle.uploads SET unused = now() WHERE id = :m;
SELECT is(d, '{}', 'the sweeper does') FROM mantle.drop_manifest_delegated(:m, 0) AS d;
SELECT is(pg_temp.freed(true), 'TU', 'as far as nothing else names it');
SELECT tap.put(:ns, :ns, 'k', locator => pg_temp.at('V')) AS x \gset
SELECT is(pg_temp.copy(:ns, 'k', n), NULL, 'a copy') FROM unnest('{l,m}'::text[]) AS n;
SELECT count(tap.delete(:ns, :ns, n)) AS x FROM unnest('{k,l}'::text[]) AS n \gset
SELECT is(pg_temp.freed(true), 'V', 'two that are removed');

-- The gateway that has the segment frees what no row names.
PREPARE named AS SELECT freed FROM mantle.segment_locators($1, 0, $2, NULL, 1000) WHERE locator = pg_temp.at($3);
SELECT results_eq(format('EXECUTE named(%s, %s, ''V'')', :v, :e), 'VALUES (false)', 'one that a row names');
UPDATE mantle.freed SET freed = freed - interval '2 hours' WHERE locator IN (pg_temp.at('S'), pg_temp.at('V'));
SELECT ok(mantle.run_maintenance('purge_freed') >= 1, 'its row is purged soon');
SELECT is(mantle.shared_freed_delegated(1, pg_temp.places('SV')), pg_temp.places('S'), 'that of one that nothing names is not');
SELECT code AS x FROM tap.delete(:ns, :ns, 'm') \gset
SELECT is(pg_temp.freed(true), 'V', 'each transaction has a row of its own');
SELECT results_eq(format('EXECUTE named(%s, %s, ''V'')', :v, :e), 'VALUES (true)', 'now no row names it');
CREATE FUNCTION pg_temp.shared(names text) RETURNS text[] LANGUAGE sql AS $$
    SELECT mantle.shared_freed_delegated(1, pg_temp.places(names)) $$;
SELECT is(pg_temp.shared('AV'), pg_temp.places('V'), 'only what was shared is asked about');
SELECT is(mantle.settle_shared_delegated(1, :v, 2, pg_temp.places('V')), 0, 'another mount settles nothing');
UPDATE mantle.freed SET freed = freed - interval '2 hours' WHERE locator = pg_temp.at('V');
SELECT is(mantle.settle_shared_delegated(1, :v, 1, pg_temp.places('AV')), 1, 'this one does');
SELECT is(pg_temp.shared('AV'), '{}', 'once');
SELECT is(pg_temp.freed(), 'V', 'it is freed');
SELECT is(count(*), 1::bigint, 'and kept for the delay from now on') FROM mantle.freed
 WHERE locator = pg_temp.at('V') AND freed > now() - interval '1 hour';
SELECT is(mantle.settle_shared_delegated(1, :v, 1, pg_temp.places('V')), 0, 'and not again');
UPDATE mantle.freed SET freed = freed - interval '15 days' WHERE locator = pg_temp.at('S');
SELECT ok(mantle.run_maintenance('purge_freed') >= 1, 'what nobody settles is purged');
SELECT is(pg_temp.shared('S'), '{}', 'as well');
DELETE FROM mantle.operations WHERE ns = :ns;
SELECT * FROM finish();
