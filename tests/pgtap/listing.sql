-- Order, ranges and pages, compared with an oracle: a recursive query builds every key, sorted as bytes.
\ir setup.psql
SELECT plan(30);
SELECT tap.namespace('tap-listing') AS ns \gset

-- A seeded tree with names before, between and after '/' and '0', in directories and beside them.
CREATE FUNCTION pg_temp.grow(ns bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_dirs bigint[] := ARRAY[ns];
    v_names text[] := ARRAY['a', 'a-', 'a.b', 'a0', 'aa', '-', '+x', '!', 'z', '~', '0', '00', ' ', 'ä',
        'a' || chr(1114111), '.x', '/'];
    v_name text;
    r record;
BEGIN
    PERFORM setseed(0.42);
    FOR i IN 1..500 LOOP
        v_name := v_names[1 + floor(random() * cardinality(v_names))::int];
        IF random() < 0.4 THEN
            SELECT * INTO r FROM tap.mkdir(ns, v_dirs[1 + floor(random() * cardinality(v_dirs))::int], v_name || '/',
                random() < 0.4);
            IF r.code IS NULL AND r.version = 1 THEN v_dirs := v_dirs || r.new_id; END IF;
        ELSE
            PERFORM tap.put(ns, v_dirs[1 + floor(random() * cardinality(v_dirs))::int], v_name);
        END IF;
    END LOOP;
END $$;
SELECT pg_temp.grow(:ns) AS x \gset

CREATE FUNCTION pg_temp.tree(root bigint) RETURNS TABLE (key text, id bigint) LANGUAGE sql AS $$
    WITH RECURSIVE t AS (
        SELECT m.name::text AS key, m.id, m.explicit FROM tap.meta() m WHERE m.pid = root AND m.id IS NOT NULL
        UNION ALL
        SELECT t.key || m.name, m.id, m.explicit FROM t JOIN tap.meta() m ON m.pid = t.id AND m.id IS NOT NULL
         WHERE t.explicit IS NOT NULL)
    SELECT t.key, t.id FROM t WHERE t.explicit IS DISTINCT FROM false
$$;
CREATE TEMP TABLE oracle AS SELECT key COLLATE "C" AS key, id FROM pg_temp.tree(:ns);
SELECT cmp_ok((SELECT count(*) FROM oracle), '>', 150::bigint, 'a tree worth the name');

CREATE FUNCTION pg_temp.pages(ns bigint, root bigint, prefix text, page int, caller text DEFAULT '0')
    RETURNS TABLE (key text, id bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_after text;
    v_found boolean := true;
BEGIN
    WHILE v_found LOOP
        v_found := false;
        FOR key, id IN SELECT l.key, l.id FROM mantle.list_tree(ns, root, prefix, v_after, page, caller) AS l LOOP
            v_found := true;
            v_after := key;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END $$;
SELECT results_eq(format('SELECT * FROM pg_temp.pages(%s, %s, '''', 1000)', :ns, :ns),
                  'SELECT key COLLATE "default", id FROM oracle ORDER BY oracle.key COLLATE "C"',
                      'one page: every key, in byte order');
SELECT results_eq(format('SELECT * FROM pg_temp.pages(%s, %s, '''', %s)', :ns, :ns, n),
                  'SELECT key COLLATE "default", id FROM oracle ORDER BY oracle.key COLLATE "C"',
                      format('pages of %s', n))
  FROM unnest(ARRAY[1, 2, 7, 100]) AS n;
SELECT results_eq(format('SELECT * FROM pg_temp.pages(%s, %s, %L, 3)', :ns, :ns, p),
                  format('SELECT key COLLATE "default", id FROM oracle WHERE starts_with(key,
                      %L) ORDER BY oracle.key COLLATE "C"', p), format('prefix %L', p))
  FROM unnest(ARRAY['a', 'a/', 'a/a', 'a0', 'z/', 'nothing', 'nothing/at/all', '/', chr(1114111)]) AS p;
SELECT is_empty(format($$
    SELECT s.k FROM (SELECT key || e AS k FROM oracle CROSS JOIN unnest(ARRAY['', '!', '/', '/x', '0']) AS e
                     UNION ALL SELECT left(key, -1) FROM oracle) AS s
     WHERE (SELECT l.key FROM mantle.list_tree(%1$s, %1$s, '', s.k, 1, '0') AS l) COLLATE "C"
           IS DISTINCT FROM (SELECT min(t.key COLLATE "C") FROM oracle AS t WHERE t.key COLLATE "C" > s.k COLLATE "C")
               $$, :ns),
    'start after any key, existing or not');

-- To a caller: nothing from below a directory that it may not both read and search. Some directories are closed at random.
-- (By CASE: an array's element as the new value makes Citus 13.2 crash.)
UPDATE mantle.meta SET mode = CASE id % 3 WHEN 0 THEN 448 WHEN 1 THEN 484 ELSE 457 END
 WHERE ns = :ns AND explicit IS NOT NULL AND pid <> 0 AND id % 4 = 0;
CREATE FUNCTION pg_temp.open_tree(root bigint) RETURNS TABLE (key text, id bigint) LANGUAGE sql AS $$
    WITH RECURSIVE t AS (
        SELECT m.name::text AS key, m.id, m.explicit, m.mode FROM tap.meta() m WHERE m.pid = root AND m.id IS NOT NULL
        UNION ALL
        SELECT t.key || m.name, m.id, m.explicit, m.mode FROM t JOIN tap.meta() m ON m.pid = t.id AND m.id IS NOT NULL
         WHERE t.explicit IS NOT NULL AND t.mode & 5 = 5)
    SELECT t.key, t.id FROM t WHERE t.explicit IS DISTINCT FROM false
$$;
CREATE TEMP TABLE open_oracle AS SELECT key COLLATE "C" AS key, id FROM pg_temp.open_tree(:ns);
SELECT ok((SELECT count(*) > 50 FROM open_oracle)
          AND (SELECT count(*) > 20 FROM oracle WHERE NOT EXISTS (SELECT FROM open_oracle o WHERE o.id = oracle.id)),
              'enough is open, and enough is closed');
SELECT results_eq(format('SELECT * FROM pg_temp.pages(%s, %s, '''', %s, ''5,6'')', :ns, :ns, n),
                  'SELECT key COLLATE "default", id FROM open_oracle ORDER BY open_oracle.key COLLATE "C"',
                      format('as a caller sees it, by pages of %s', n))
  FROM unnest(ARRAY[1, 7, 1000]) AS n;
SELECT is_empty(format($$
    SELECT s.k FROM (SELECT key || e AS k FROM oracle CROSS JOIN unnest(ARRAY['', '!', '/', '/x', '0']) AS e) AS s
     WHERE (SELECT l.key FROM mantle.list_tree(%1$s, %1$s, '', s.k, 1, '5') AS l) COLLATE "C"
           IS DISTINCT FROM (SELECT min(t.key COLLATE "C") FROM open_oracle AS t WHERE t.key COLLATE "C" > s.k COLLATE "C")
        OR (SELECT l.key FROM mantle.list_tree(%1$s, %1$s, s.k, NULL, 1, '5') AS l) COLLATE "C"
           IS DISTINCT FROM (SELECT min(t.key COLLATE "C") FROM open_oracle AS t WHERE starts_with(t.key, s.k)) $$, :ns),
    'also from a start or a prefix behind a closed directory');
SELECT results_eq(format('SELECT * FROM pg_temp.pages(%s, %s, '''', 100, ''7'')', :ns, :ns),
                  'SELECT key COLLATE "default", id FROM oracle ORDER BY oracle.key COLLATE "C"', 'their owner sees all');
SELECT results_eq(format('SELECT * FROM pg_temp.pages(%s, %s, '''', 100, NULL)', :ns, :ns),
                  'SELECT key COLLATE "default", id FROM open_oracle ORDER BY open_oracle.key COLLATE "C"',
                      'without a caller the permissions of others hold');

-- One directory.
SELECT results_eq(format('SELECT name FROM mantle.list(%s, %s, NULL, NULL, 1000)', :ns, :ns),
                  format('SELECT name COLLATE "default" FROM tap.meta() WHERE pid = %s AND id IS NOT NULL
                      ORDER BY meta.name COLLATE "C"', :ns), 'list: every entry in byte order, no /_ATTR');
SELECT ok(EXISTS (SELECT FROM mantle.list(:ns, :ns, NULL, NULL, 1000) AS l WHERE l.name < '/' COLLATE "C")
          AND EXISTS (SELECT FROM mantle.list(:ns, :ns, NULL, NULL, 1000) AS l WHERE l.name > '0' COLLATE "C")
          AND EXISTS (SELECT FROM tap.meta() WHERE pid = :ns AND name = '/_ATTR'),
              'there are names on both sides of /_ATTR');
SELECT is_empty(format($$
    SELECT s.n FROM (SELECT name || e AS n FROM mantle.list(%1$s, %1$s, NULL, NULL, 1000) CROSS
        JOIN unnest(ARRAY['', '!', '0']) AS e) AS s
     WHERE (SELECT l.name FROM mantle.list(%1$s, %1$s, s.n, NULL, 1) AS l) COLLATE "C"
           IS DISTINCT FROM (SELECT min(l.name COLLATE "C") FROM mantle.list(%1$s, %1$s, NULL, NULL, 1000) AS l
               WHERE l.name COLLATE "C" > s.n COLLATE "C") $$, :ns),
    'list: start after any name, existing or not');
SELECT results_eq(format('SELECT name FROM mantle.list(%s, %s, NULL, ''a'', 1000)', :ns, :ns),
                  format('SELECT name COLLATE "default" FROM tap.meta() WHERE pid = %s AND id IS NOT NULL
                      AND starts_with(name, ''a'') ORDER BY meta.name COLLATE "C"', :ns), 'list: prefix');
SELECT is_empty(format('SELECT * FROM mantle.list(%s, %s, ''b'', ''a'', 1000)', :ns, :ns), 'list: after the prefix');

-- resolve_path
SELECT results_eq(format('SELECT ns, depth, id, parent_id, cardinality(chain_owner)
    FROM mantle.resolve_path(''tap-listing'', ''{}'')'),
                  format('VALUES (%s::bigint, 0, %s::bigint, 0::bigint, 1)', :ns, :ns), 'the root');
SELECT is_empty($$ SELECT * FROM mantle.resolve_path('tap-none', '{a}') $$, 'no such namespace');
SELECT * FROM finish();
