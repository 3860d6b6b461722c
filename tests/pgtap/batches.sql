-- Batches: fast path and fallback give an element the same answer, and the counts are exact.
\ir setup.psql
BEGIN;
SELECT plan(24);
SELECT tap.namespace('tap-batches') AS ns \gset
SELECT tap.namespace('tap-batches-two') AS two \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:two, :two, 'b/') \gset
SELECT new_id AS gone FROM tap.mkdir(:ns, :ns, 'gone/') \gset
SELECT code AS x FROM tap.rmdir(:ns, :ns, 'gone/', :gone) \gset
SELECT mantle.compact(:ns) AS x \gset


-- Objects: elements that the fast path cannot make, beside elements that it can.
CREATE FUNCTION pg_temp.puts(ns bigint[], pid bigint[], name text[], size bigint[], condition text[], request uuid[])
RETURNS TABLE (ord int, code text, version bigint, replayed boolean, old_locator text) LANGUAGE sql AS $$
    SELECT p.ord, p.code, p.version, p.replayed, p.old_locator FROM mantle.put_object(
        array_fill(5, ARRAY[cardinality(name)]), ns, pid, name,
        (SELECT array_agg(i.first_id + n) FROM mantle.allocate_ids('pgtap', cardinality(name)) AS i,
                generate_series(0, cardinality(name) - 1) AS n),
        array_fill(7, ARRAY[cardinality(name)]), array_fill(8, ARRAY[cardinality(name)]),
            array_fill(420, ARRAY[cardinality(name)]),
        size, array_fill('etag'::text, ARRAY[cardinality(name)]),
            array_fill('text/plain'::text, ARRAY[cardinality(name)]),
        array_fill(NULL::jsonb, ARRAY[cardinality(name)]), ARRAY(SELECT 'at ' || u.name || u.size
            FROM unnest(name, size) AS u(name, size)),
        condition, request, array_fill(0::bigint, ARRAY[cardinality(name)]),
        p_caller => array_fill('0'::text, ARRAY[cardinality(name)])) AS p
$$;
CREATE FUNCTION pg_temp.requests(first int, n int) RETURNS uuid[] LANGUAGE sql AS $$
    SELECT array_agg(format('99999999-0000-0000-0000-%s', lpad(i::text, 12, '0'))::uuid ORDER BY i)
        FROM generate_series(first, first + n - 1) i $$;
SELECT results_eq(
    format($$ SELECT * FROM pg_temp.puts(ARRAY[%s,%s,%s], ARRAY[%s,%s,%s], '{o,p,o}', '{1,2,4}',
        '{NULL,"*absent",NULL}', pg_temp.requests(1, 3)) ORDER BY ord $$,
           :ns, :ns, :two, :a, :a, :b),
    $$ VALUES (1, NULL::text, 1::bigint, false, NULL::text), (2, NULL, 1, false, NULL), (3, NULL, 1, false, NULL) $$,
        'three new ones, of two namespaces');
SELECT results_eq(format('SELECT entries, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :a),
    'VALUES (2::bigint, 3::bigint)', 'counted in one');
SELECT results_eq(format('SELECT entries, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :two, :b),
    'VALUES (1::bigint, 4::bigint)', 'and in the other');
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid IN (:a, :b) AND name = '/_ATTR'), 2::bigint,
    'one record a directory');
SELECT results_eq(
    format($$ SELECT * FROM pg_temp.puts(ARRAY[%1$s,%1$s,%1$s,%1$s,%1$s,%1$s,%1$s,99],
        ARRAY[%2$s,%2$s,%2$s,%3$s,%4$s,%2$s,%2$s,%2$s],
                                         '{o,q,.,r,a,s,p,t}', '{10,20,1,1,1,40,7,1}',
                                             '{NULL,NULL,NULL,NULL,NULL,"*present",etag,NULL}',
                                         pg_temp.requests(1, 1) || pg_temp.requests(4, 7)) ORDER BY ord $$, :ns, :a,
                                             :gone, :ns),
    $$ VALUES (1, NULL::text, 1::bigint, true, NULL::text), (2, NULL, 1, false, NULL), (3, 'MT001', NULL, false, NULL),
        (4, 'MT018', NULL, false, NULL),
              (5, 'MT015', NULL, false, NULL), (6, 'MT019', NULL, false, NULL), (7, NULL, 2, false, 'at p2'),
                  (8, 'MT011', NULL, false, NULL) $$,
    'a retry, a new one, a bad name, a removed directory, a directory''s name, no entry, an overwrite, no namespace');
SELECT results_eq(format('SELECT entries, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :a),
    'VALUES (3::bigint, 28::bigint)', 'counted exactly');
SELECT results_eq(
    format($$ SELECT * FROM pg_temp.puts(ARRAY[%1$s,%1$s], ARRAY[%2$s,%2$s], '{u,u}', '{1,5}', '{NULL,NULL}',
        pg_temp.requests(20, 2)) ORDER BY ord $$, :ns, :a),
    $$ VALUES (1, NULL::text, 1::bigint, false, NULL::text), (2, NULL, 2, false, 'at u1') $$,
        'a name twice: one after the other');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');

-- Directories.
CREATE FUNCTION pg_temp.mkdirs(ns bigint[], pid bigint[], name text[], explicit boolean[], request uuid[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean) LANGUAGE sql AS $$
    SELECT m.ord, m.code, m.id, m.version, m.replayed FROM mantle.mkdir(
        array_fill(5, ARRAY[cardinality(name)]), ns, pid, name,
        (SELECT array_agg(i.first_id + n) FROM mantle.allocate_ids('pgtap', cardinality(name)) AS i,
                generate_series(0, cardinality(name) - 1) AS n),
        array_fill(7, ARRAY[cardinality(name)]), array_fill(8, ARRAY[cardinality(name)]),
            array_fill(493, ARRAY[cardinality(name)]),
        explicit, array_fill(NULL::jsonb, ARRAY[cardinality(name)]), request,
            array_fill(0::bigint, ARRAY[cardinality(name)]),
        p_caller => array_fill('0'::text, ARRAY[cardinality(name)])) AS m
$$;
SELECT results_eq(
    format($$ SELECT ord, code, version, replayed FROM pg_temp.mkdirs(ARRAY[%1$s,%1$s,%1$s,%1$s,%2$s],
        ARRAY[%3$s,%3$s,%3$s,%4$s,%2$s],
                                         '{d/,e/,o/,f/,g/}', '{t,f,t,t,t}', pg_temp.requests(40, 5)) ORDER BY ord $$,
                                             :ns, :two, :a, :gone),
    $$ VALUES (1, NULL::text, 1::bigint, false), (2, NULL, 1, false), (3, 'MT016', NULL, false),
        (4, 'MT018', NULL, false), (5, NULL, 1, false) $$,
    'two of one directory, one of another; an object''s name and a removed parent');
SELECT results_eq(format('SELECT entries, subdirectories FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :a),
    'VALUES (6::bigint, 2::bigint)', 'counted');
SELECT id AS e FROM tap.meta() WHERE pid = :a AND name = 'e/' \gset
SELECT ok(EXISTS (SELECT FROM tap.prune_queue() WHERE id = :e) AND NOT EXISTS (SELECT FROM tap.prune_queue() q
    JOIN tap.meta() m ON m.id = q.id AND m.pid = :a WHERE q.id <> :e), 'the implicit one is looked at by the pruner');
SELECT results_eq(
    format($$ SELECT ord, code, version, replayed FROM pg_temp.mkdirs(ARRAY[%1$s,%1$s,%1$s], ARRAY[%2$s,%2$s,%2$s],
        '{d/,e/,h/}', '{t,t,t}',
                                         pg_temp.requests(40, 1) || pg_temp.requests(50, 2)) ORDER BY ord $$, :ns, :a),
    $$ VALUES (1, NULL::text, 1::bigint, true), (2, NULL, 2, false), (3, NULL, 1, false) $$,
        'a retry, explicit over implicit, a new one');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :two), 'no damage');

-- Deletes.
SELECT results_eq(
    format($$ SELECT ord, code, replayed, old_locator FROM mantle.delete_object('{5,5,5,5}',
        ARRAY[%1$s,%1$s,%1$s,%2$s], ARRAY[%3$s,%3$s,%3$s,%4$s], '{q,nope,p,o}', '{NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL}',
                                         pg_temp.requests(60, 4), '{0,0,0,0}',
                                             p_caller => '{0,0,0,0}') ORDER BY ord $$, :ns, :two, :a, :b),
    $$ VALUES (1, NULL::text, false, 'at q20'), (2, 'MT010', false, NULL), (3, NULL, false, 'at p7'),
        (4, NULL, false, 'at o4') $$, 'three there, one not');
SELECT results_eq(format('SELECT entries, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :a),
    'VALUES (5::bigint, 6::bigint)', 'counted');
SELECT results_eq(
    format($$ SELECT ord, code, replayed FROM mantle.delete_object('{5,5}', ARRAY[%1$s,%1$s], ARRAY[%2$s,%2$s], '{q,o}',
                                         '{NULL,NULL}', '{NULL,NULL}', pg_temp.requests(60, 1) || pg_temp.requests(70, 1),
                                         '{0,0}',
                                             p_caller => '{0,0}') ORDER BY ord $$,
                                             :ns, :a),
    $$ VALUES (1, NULL::text, true), (2, NULL, false) $$, 'a retry beside a new one');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');

-- mantle.delta_records, each of its values.
SELECT count(*) AS before FROM tap.meta() WHERE pid = :a AND ts > 0 \gset
SET LOCAL mantle.delta_records = 'always';
SELECT count(tap.put(:ns, :a, 'always' || i)) AS x FROM generate_series(1, 3) i \gset
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :a AND ts > 0), (:before + 3)::bigint, 'always: a record each');
SET LOCAL mantle.delta_records = 'never';
SELECT mantle.compact(:a) AS x \gset
SELECT count(tap.put(:ns, :a, 'never' || i)) AS x FROM generate_series(1, 3) i \gset
SELECT new_id AS n FROM tap.mkdir(:ns, :a, 'n/') \gset
SELECT tap.put(:ns, :n, 'first') AS x \gset
SELECT CASE WHEN mantle.is_distributed() THEN
    skip('never: the setting is this session''s, the directory another node''s', 1)
            ELSE is((SELECT count(*) FROM tap.meta() WHERE pid IN (:a, :n) AND ts > 0), 0::bigint,
                'never: none, and the first change makes the record') END;
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');

-- The fast path writes without a statement. It still runs triggers that somebody has added, not under the caller's
-- search_path, and computes generated columns.
SET LOCAL mantle.delta_records = 'auto';
SELECT mantle.is_distributed() AS distributed \gset
\if :distributed
SELECT skip('Citus has no triggers on distributed tables', 4);
\else
CREATE TEMP TABLE written (what text, name text, search_path text DEFAULT current_setting('search_path'));
CREATE FUNCTION pg_temp.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pg_temp.written (what, name) VALUES (TG_WHEN || ' ' || TG_OP, NEW.name);
    RETURN NEW;
END $$;
CREATE TRIGGER note_before BEFORE INSERT OR UPDATE ON mantle.meta FOR EACH ROW EXECUTE FUNCTION pg_temp.note();
CREATE TRIGGER note_after AFTER INSERT OR UPDATE ON mantle.meta FOR EACH ROW WHEN (NEW.ns > 0) EXECUTE FUNCTION
    pg_temp.note();
ALTER TABLE mantle.meta ADD COLUMN tap_size bigint GENERATED ALWAYS AS (size * 2) STORED;
ALTER TABLE mantle.requests ADD COLUMN tap_version bigint GENERATED ALWAYS AS (version * 2) STORED;
SELECT tap.put(:ns, :a, 'noted', 21, request => '77777777-0000-0000-0000-000000000000') AS x \gset
SELECT set_eq('SELECT what, name FROM pg_temp.written',
    $$ VALUES ('BEFORE INSERT', 'noted'), ('AFTER INSERT', 'noted'), ('BEFORE UPDATE', '/_ATTR'),
        ('AFTER UPDATE', '/_ATTR') $$,
    'a new object and its directory''s counts: triggers are run');
SELECT results_eq('SELECT DISTINCT search_path FROM pg_temp.written', $$ VALUES ('pg_catalog, pg_temp') $$,
    'under a search_path of ours');
SELECT is((SELECT m.tap_size FROM mantle.meta m WHERE m.pid = :a AND m.name = 'noted'), 42::bigint,
    'a generated column of an entry');
SELECT is((SELECT r.tap_version FROM mantle.requests r WHERE r.request_id = '77777777-0000-0000-0000-000000000000'),
    2::bigint, 'of its request');
\endif
SELECT * FROM finish();
ROLLBACK;
