-- The cost of a page in PostgreSQL buffers read. It is the same at the first and the last of 40,000 keys, linear in the
-- directories passed through, and independent of delta records.
\ir setup.psql
SELECT plan(9);
SELECT tap.namespace('tap-cost') AS ns \gset
SELECT first_id AS id FROM mantle.allocate_ids('cost', 100000) \gset
-- 2,000 directories of 15 objects, one of 10,000, a chain of 100 empty directories, and 3,000 empty ones in a row.
SELECT count(*) AS x FROM mantle.import_directories(0, :ns, array_fill(:ns::bigint, ARRAY[2000]),
    ARRAY(SELECT 'd' || to_char(i, 'FM00000') || '/' FROM generate_series(0, 1999) i),
        ARRAY(SELECT :id + i FROM generate_series(0, 1999) i)) \gset
CREATE TABLE tap.filled AS
SELECT c, (mantle.import_objects(0, :ns, ARRAY(SELECT :id + c * 400 + i / 15 FROM generate_series(0, 5999) i),
    ARRAY(SELECT 'f' || to_char(i % 15, 'FM00') FROM generate_series(0, 5999) i), array_fill(1::bigint, ARRAY[6000]),
        :id + 10000 + c * 6000, true, now())).inserted
  FROM generate_series(0, 4) AS c;
SELECT is((SELECT sum(inserted) FROM tap.filled), 30000::numeric, 'filled');
DROP TABLE tap.filled;
SELECT count(*) AS x FROM mantle.import_directories(0, :ns, ARRAY[:ns, :ns, :ns]::bigint[], '{big/,chain/,empty/}',
    ARRAY[:id + 3000, :id + 3001, :id + 3500]) \gset
SELECT inserted AS x FROM mantle.import_objects(0, :ns, array_fill(:id + 3000::bigint, ARRAY[10000]),
    ARRAY(SELECT 'o' || to_char(i, 'FM00000') FROM generate_series(1, 10000) i), array_fill(1::bigint, ARRAY[10000]),
        :id + 50000, true, now()) \gset
SELECT count(*) AS x FROM mantle.import_directories(0, :ns, ARRAY(SELECT :id + 3000 + i FROM generate_series(1, 100) i),
    ARRAY(SELECT 'c/' FROM generate_series(1, 100)), ARRAY(SELECT :id + 3001 + i FROM generate_series(1, 100) i)) \gset
SELECT count(*) AS x FROM mantle.import_directories(0, :ns, array_fill(:id + 3500::bigint, ARRAY[3000]),
    ARRAY(SELECT 'e' || to_char(i, 'FM00000') || '/' FROM generate_series(1, 3000) i),
        ARRAY(SELECT :id + 4000 + i FROM generate_series(1, 3000) i)) \gset
VACUUM ANALYZE mantle.meta;

CREATE FUNCTION pg_temp.buffers(call text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_plan json;
BEGIN
    EXECUTE call;
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT json) ' || call INTO v_plan;
    RETURN (v_plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::bigint +
        (v_plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::bigint;
END $$;
CREATE FUNCTION pg_temp.page(ns bigint, prefix text, after text, n int) RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_temp.buffers(format('SELECT * FROM mantle.list_tree(%s, %s, %L, %L, %s, ''0'')', ns, ns, prefix, after, n)) $$;
SELECT pg_temp.page(:ns, '', 'd', 1000) AS first, pg_temp.page(:ns, '', 'd01920/f', 1000) AS last,
       pg_temp.page(:ns, '', 'd', 100) AS small \gset
SELECT cmp_ok(:first, '<', 15000, format('the first page reads %s buffers', :first));
SELECT cmp_ok(abs(:first - :last), '<', :first / 4, format('the last page reads %s', :last));
SELECT cmp_ok(:small, '<', :first / 4, format('a page of a tenth reads %s', :small));
SELECT pg_temp.page(:ns, 'big/', 'big/o00001', 1000) AS big_first, pg_temp.page(:ns, 'big/', 'big/o08900', 1000)
    AS big_last \gset
SELECT cmp_ok(abs(:big_first - :big_last), '<', :big_first / 4 + 20, format('within one large directory: %s and %s',
    :big_first, :big_last));
SELECT pg_temp.page(:ns, 'chain/', NULL, 1000) AS chain, pg_temp.page(:ns, 'empty/', NULL, 1000) AS empty \gset
SELECT cmp_ok(:chain, '<', 100 * 30, format('100 empty directories below each other read %s', :chain));
SELECT cmp_ok(:empty, '<', 3000 * 30, format('3,000 empty directories beside each other read %s', :empty));
SELECT pg_temp.buffers(format('SELECT * FROM mantle.list(%s, %s, ''d00001/'', NULL, 100)', :ns, :ns)) AS l1,
       pg_temp.buffers(format('SELECT * FROM mantle.list(%s, %s, ''d01800/'', NULL, 100)', :ns, :ns)) AS l2 \gset
SELECT cmp_ok(abs(:l1 - :l2), '<=', 20, format('list: %s and %s', :l1, :l2));
-- The walk skips 5,000 delta records of the directory itself.
INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes)
SELECT :ns, '/_ATTR', nextval('mantle.delta_ts'), :ns, 0, 0, 0 FROM generate_series(1, 5000);
SELECT pg_temp.buffers(format('SELECT * FROM mantle.list(%s, %s, NULL, NULL, 100)', :ns, :ns)) AS l3 \gset
SELECT cmp_ok(:l3, '<', :l1 + 20, format('past delta records: %s', :l3));
SELECT * FROM finish();
