-- A resolved id may be used for a limited time, in this lineage of the database and under this epoch (P8).
\ir setup.psql
SELECT plan(33);

CREATE TEMP TABLE c AS SELECT tap.namespace('leases') AS ns;
ALTER TABLE c ADD dir bigint, ADD now text;
UPDATE c SET dir = (tap.mkdir(ns, ns, 'd/')).new_id;

-- A changed lease: seconds added to its deadline, or another system, timeline or epoch.
CREATE FUNCTION pg_temp.lease(later_s numeric DEFAULT 0, system text DEFAULT NULL, timeline int DEFAULT 0,
    epoch int DEFAULT 0)
RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT concat_ws('/', p[1]::bigint + (later_s * 1000000)::bigint, coalesce(system, p[2]), p[3]::int + timeline,
        p[4]::int + epoch)
      FROM c, string_to_array(mantle.lease(c.ns), '/') AS p
$$;
-- Calls each verb once, under a lease.
CREATE FUNCTION pg_temp.codes(lease text) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_ns bigint := (SELECT ns FROM c);
    v_dir bigint := (SELECT dir FROM c);
    v_sub bigint := (tap.mkdir(v_ns, v_dir, gen_random_uuid() || '/')).new_id;
    v_sub_name text := (SELECT m.name FROM tap.meta() m WHERE m.pid = v_dir AND m.id = v_sub);
    v_object text := gen_random_uuid();
    v_epoch bigint := (SELECT g.epoch FROM mantle.index_groups g WHERE g.index_group = 1);
    v_request uuid := gen_random_uuid();
    v_removal uuid := gen_random_uuid();
    v_codes text[];
BEGIN
    PERFORM tap.put(v_ns, v_dir, v_object);
    v_codes := ARRAY[
        (SELECT r.code FROM mantle.mkdir('{5}', ARRAY[v_ns], ARRAY[v_dir], ARRAY[gen_random_uuid() || '/'],
            ARRAY[tap.id()], '{7}',
            '{8}', '{493}', '{t}', ARRAY[NULL]::jsonb[], ARRAY[gen_random_uuid()], '{0}', ARRAY[lease],
                p_caller => '{0}') r),
        (SELECT r.code FROM mantle.put_object('{5}', ARRAY[v_ns], ARRAY[v_dir], ARRAY[gen_random_uuid()::text],
            ARRAY[tap.id()],
            '{7}', '{8}', '{420}', '{1}', '{e}', '{t}', ARRAY[NULL]::jsonb[], '{l}', ARRAY[NULL]::text[],
            ARRAY[gen_random_uuid()], '{0}', ARRAY[lease], p_caller => '{0}') r),
        (SELECT r.code FROM mantle.put_object('{5}', ARRAY[v_ns], ARRAY[v_dir], ARRAY[v_object], ARRAY[tap.id()],
            '{7}', '{8}', '{420}', '{1}', '{e}', '{t}', ARRAY[NULL]::jsonb[], '{l}', ARRAY[NULL]::text[],
            ARRAY[gen_random_uuid()], '{0}', ARRAY[lease], p_caller => '{0}') r),
        (SELECT r.code FROM mantle.set_attributes('{5}', ARRAY[v_ns], ARRAY[v_dir], ARRAY[v_sub_name], ARRAY[v_sub],
            '{7}', '{8}',
            '{448}', ARRAY[NULL]::jsonb[], ARRAY[NULL]::boolean[], ARRAY[gen_random_uuid()], '{0}', ARRAY[lease],
                p_caller => '{0}') r),
        (SELECT r.code FROM mantle.rename_object(5, v_ns, v_dir, v_object, v_ns, v_object, false, gen_random_uuid(), 0,
            lease, p_caller => '0') r)];
    -- Moves the entry back if it was moved.
    PERFORM mantle.rename_object(5, v_ns, v_ns, v_object, v_dir, v_object, false, gen_random_uuid(), 0,
        p_caller => '0');
    v_codes := v_codes || ARRAY[
        (SELECT r.code FROM mantle.delete_object('{5}', ARRAY[v_ns], ARRAY[v_dir], ARRAY[v_object],
            '{NULL}', '{NULL}', ARRAY[gen_random_uuid()], '{0}',
            ARRAY[lease], p_caller => '{0}') r),
        (SELECT r.code FROM mantle.rename_directory(5, v_ns, v_dir, v_sub_name, v_sub, v_dir, 'to-' || v_sub_name, 0,
            1, v_epoch, 1,
            v_request, 0, lease, '0', mantle.prove(1, v_epoch, 1, 5, v_ns, v_request, v_dir, v_sub_name, v_sub, v_dir,
                'to-' || v_sub_name, 0)) r)];
    v_sub_name := (SELECT m.name FROM tap.meta() m WHERE m.pid = v_dir AND m.id = v_sub);
    v_codes := v_codes || (SELECT r.code FROM mantle.rmdir('{5}', ARRAY[v_ns], ARRAY[v_dir], ARRAY[v_sub_name],
        ARRAY[v_sub],
            ARRAY[gen_random_uuid()], '{0}', ARRAY[lease], p_caller => '{0}') r);
    v_sub := (tap.mkdir(v_ns, v_dir, 'tree-' || gen_random_uuid() || '/')).new_id;
    v_sub_name := (SELECT m.name FROM tap.meta() m WHERE m.pid = v_dir AND m.id = v_sub);
    BEGIN
        v_codes := v_codes || (SELECT r.code FROM mantle.remove_tree(5, v_ns, v_dir, v_sub_name, v_sub, 1, v_epoch, 1,
            v_removal, 0, gen_random_uuid(), lease, '0', mantle.prove(1, v_epoch, 1, 5, v_ns, v_removal, v_dir,
                v_sub_name,
                v_sub, 1, '', 0)) r);
        RAISE EXCEPTION 'taken back: other tests count operations';
    EXCEPTION WHEN raise_exception THEN
        RETURN v_codes;
    END;
END $$;
CREATE FUNCTION pg_temp.all_of(code text) RETURNS text[] LANGUAGE sql AS $$ SELECT array_fill(code, ARRAY[9]) $$;

SELECT matches(mantle.lineage(), '^[0-9]+/[0-9]+$', 'a lineage is a system identifier and a timeline');
SELECT is(split_part(mantle.lineage(), '/', 1)::numeric, (SELECT system_identifier FROM pg_control_system())::numeric,
          'the system identifier is that of the control file');
SELECT is(split_part(mantle.lineage(), '/', 2)::int, (SELECT timeline_id FROM pg_control_checkpoint()),
    'and so is the timeline');
SELECT matches((SELECT mantle.lease(ns) FROM c), '^[0-9]+/' || mantle.lineage() || '/[0-9]+$',
    'a lease is a deadline, lineage and epoch');
SELECT is(mantle.lease(5), NULL, 'no namespace, no lease');
SELECT is(mantle.lease(NULL), NULL, 'NULL has no lease');

SELECT is(pg_temp.codes(pg_temp.lease()), pg_temp.all_of(NULL), 'under a lease each verb does what it does');
SELECT is(pg_temp.codes(pg_temp.lease(-8)), pg_temp.all_of(NULL), 'also when it is half over');
SELECT is(pg_temp.codes(NULL), pg_temp.all_of(NULL), 'without one: resolved in this transaction');
SELECT is(pg_temp.codes(pg_temp.lease(-21)), pg_temp.all_of('MT044'), 'after its deadline: refused');
SELECT is(pg_temp.codes(pg_temp.lease(5)), pg_temp.all_of('MT044'),
    'a deadline further off than any lease: by another clock');
SELECT is(pg_temp.codes(pg_temp.lease(0, '12345')), pg_temp.all_of('MT045'), 'of another system: refused');
SELECT is(pg_temp.codes(pg_temp.lease(0, NULL, 1)), pg_temp.all_of('MT045'), 'of another timeline: refused');
SELECT is(pg_temp.codes(pg_temp.lease(0, NULL, 0, 1)), pg_temp.all_of('MT045'), 'of another epoch: refused');
SELECT is(pg_temp.codes('soon'), pg_temp.all_of('MT006'), 'text that is no lease is refused');
SELECT is(pg_temp.codes(''), pg_temp.all_of('MT006'), 'an empty lease is refused');
SELECT is(pg_temp.codes('1/2/3/99999999999999999999'), pg_temp.all_of('MT006'), 'a number out of range is refused');
SELECT is_empty('SELECT * FROM mantle.check()', 'nothing was half done');

-- Each element has its own lease.
SELECT is((SELECT array_agg(r.code ORDER BY r.ord)
             FROM mantle.mkdir('{5,5,5}', ARRAY[ns, ns, ns], ARRAY[dir, dir, dir], '{e1/,e2/,e3/}',
                 ARRAY[tap.id(), tap.id(), tap.id()],
                               '{7,7,7}', '{8,8,8}', '{493,493,493}', '{t,t,t}', ARRAY[NULL, NULL, NULL]::jsonb[],
                               ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{0,0,0}',
                               ARRAY[mantle.lease(ns), pg_temp.lease(-21), mantle.lease(ns)], p_caller => '{0,0,0}') r),
          ARRAY[NULL, 'MT044', NULL], 'mkdir: an expired neighbour changes nothing') FROM c;
SELECT is((SELECT array_agg(r.code ORDER BY r.ord)
             FROM generate_series(1, 6) AS n,
                  LATERAL (SELECT 1) AS once,
                  mantle.put_object('{5,5,5,5,5,5}', array_fill(c.ns, ARRAY[6]), array_fill(c.dir, ARRAY[6]),
                      '{o1,o2,o3,o4,o5,o6}',
                                    ARRAY[tap.id(), tap.id(), tap.id(), tap.id(), tap.id(), tap.id()],
                                        array_fill(7, ARRAY[6]),
                                    array_fill(8, ARRAY[6]), array_fill(420, ARRAY[6]), array_fill(1::bigint, ARRAY[6]),
                                    '{e,e,e,e,e,e}', '{t,t,t,t,t,t}', array_fill(NULL::jsonb, ARRAY[6]),
                                        '{l,l,l,l,l,l}',
                                    array_fill(NULL::text, ARRAY[6]),
                                    ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 6)),
                                        array_fill(0::bigint, ARRAY[6]),
                                    ARRAY[mantle.lease(c.ns), mantle.lease(c.ns), pg_temp.lease(0, NULL, 1),
                                        mantle.lease(c.ns),
                                          mantle.lease(c.ns), mantle.lease(c.ns)],
                                              p_caller => '{0,0,0,0,0,0}') r WHERE n = 1),
          ARRAY[NULL, NULL, 'MT045', NULL, NULL, NULL], 'put_object, made at once: a lease of another timeline') FROM c;
SELECT throws_ok(format($$SELECT * FROM mantle.mkdir('{5}', ARRAY[%1$s], ARRAY[%2$s], '{l/}', ARRAY[tap.id()], '{7}',
    '{8}', '{493}',
                          '{t}', ARRAY[NULL]::jsonb[], ARRAY[gen_random_uuid()], '{0}', '{a,b}',
                              p_caller => '{0}')$$, ns, dir), 'MT006',
                              NULL,
                 'as many leases as elements') FROM c;

-- A recorded answer does not expire with the lease.
SELECT tap.mkdir(ns, dir, 'once/', request => '00000000-0000-0000-0000-0000000001ea') FROM c;
SELECT is(ARRAY[r.code, r.replayed::text], ARRAY[NULL, 'true'],
    'a retry after the deadline is answered as the first time')
  FROM c, mantle.mkdir('{5}', ARRAY[ns], ARRAY[dir], '{once/}', ARRAY[tap.id()], '{7}', '{8}', '{493}', '{t}',
      ARRAY[NULL]::jsonb[],
                       '{00000000-0000-0000-0000-0000000001ea}', '{0}', ARRAY[pg_temp.lease(-21)], p_caller => '{0}') r;

-- The reason for leases: the tombstone is purged, and a call comes that resolved the directory before its removal.
UPDATE c SET now = mantle.lease(ns);
CREATE TEMP TABLE gone AS SELECT (tap.mkdir(ns, ns, 'gone/')).new_id AS id FROM c;
SELECT is((tap.rmdir(ns, ns, 'gone/', id)).code, NULL, 'a directory is removed') FROM c, gone;
SELECT is((tap.put(ns, id, 'o')).code, 'MT018', 'its tombstone refuses') FROM c, gone;
SELECT id AS gone FROM gone \gset
DELETE FROM mantle.meta WHERE pid = :gone;
SELECT is((SELECT r.code FROM mantle.put_object('{5}', ARRAY[ns], ARRAY[gone.id], '{o}', ARRAY[tap.id()], '{7}', '{8}',
    '{420}', '{1}', '{e}',
              '{t}', ARRAY[NULL]::jsonb[], '{l}', ARRAY[NULL]::text[], ARRAY[gen_random_uuid()], '{0}',
                  ARRAY[pg_temp.lease(-21)], p_caller => '{0}') r),
          'MT044', 'after the tombstone the deadline does') FROM c, gone;
SELECT is_empty('SELECT * FROM mantle.check()', 'no entry without its directory');

-- Tombstones outlive leases under every configuration.
SELECT cmp_ok((SELECT min_val::int FROM pg_settings WHERE name = 'mantle.tombstone_retention_s'), '>=', 60,
              'tombstones are kept for three leases at least');

-- Raising the epoch ends the leases of the epoch before.
SELECT is((SELECT epoch FROM mantle.index_groups WHERE index_group = 1) + 1,
          (SELECT mantle.raise_epoch(1, (SELECT epoch FROM mantle.index_groups WHERE index_group = 1), 'leases')),
              'the epoch is raised');
SELECT is((SELECT r.code FROM mantle.delete_object('{5}', ARRAY[ns], ARRAY[dir], '{o1}', '{NULL}', '{NULL}',
    ARRAY[gen_random_uuid()], '{0}', ARRAY[c.now], p_caller => '{0}') r),
          'MT045', 'a lease from before is refused') FROM c;
SELECT is((SELECT r.code FROM mantle.delete_object('{5}', ARRAY[ns], ARRAY[dir], '{o1}', '{NULL}', '{NULL}',
    ARRAY[gen_random_uuid()], '{0}',
              ARRAY[mantle.lease(ns)], p_caller => '{0}') r), NULL, 'a new one is not') FROM c;
SELECT is_empty('SELECT * FROM mantle.check()', 'no damage');

SET ROLE mantle_gateway;
SELECT lives_ok('SELECT mantle.lease(1), mantle.lineage()', 'a gateway may ask');
SET ROLE mantle_analyst;
SELECT throws_ok('SELECT mantle.lineage()', '42501', NULL, 'others need not');
RESET ROLE;
SELECT * FROM finish();
