-- The change stream: the messages of each verb as pgoutput sends them, decoded here from the layout in
-- indexnode/types/src/message.rs.
\ir setup.psql
SELECT plan(17);
CREATE FUNCTION pg_temp.varint(bytes bytea, INOUT at int, OUT value numeric) LANGUAGE plpgsql AS $$
DECLARE b int; v_shift numeric := 1;
BEGIN
    value := 0;
    LOOP
        b := get_byte(bytes, at);
        at := at + 1;
        value := value + (b & 127) * v_shift;
        v_shift := v_shift * 128;
        EXIT WHEN b < 128;
    END LOOP;
END $$;
CREATE FUNCTION pg_temp.decode(bytes bytea) RETURNS TABLE (
    op text, ns bigint, pid bigint, id bigint, version bigint, owner bigint, grp bigint, mode bigint, name text,
    principal bigint, cause_ns bigint, request uuid, attempt bigint) LANGUAGE plpgsql AS $$
DECLARE
    p int := 1;
    v_ops numeric;
    f numeric[];
    v numeric;
BEGIN
    IF get_byte(bytes, 0) <> 1 THEN RAISE EXCEPTION 'format %', get_byte(bytes, 0); END IF;
    SELECT at, value INTO p, v_ops FROM pg_temp.varint(bytes, p);
    FOR i IN 1..v_ops LOOP
        op := CASE get_byte(bytes, p) WHEN 1 THEN 'put' WHEN 2 THEN 'remove' ELSE '?' END;
        p := p + 1;
        f := '{}';
        FOR j IN 1..8 LOOP
            SELECT at, value INTO p, v FROM pg_temp.varint(bytes, p);
            f := f || v;
        END LOOP;
        ns := f[1]; pid := f[2]; id := f[3]; version := f[4]; owner := f[5]; grp := f[6]; mode := f[7];
        name := convert_from(substring(bytes FROM p + 1 FOR f[8]::int), 'UTF8');
        p := p + f[8]::int;
        principal := NULL; cause_ns := NULL; request := NULL; attempt := NULL;
        p := p + 1;
        IF get_byte(bytes, p - 1) = 1 THEN
            SELECT at, value INTO p, v FROM pg_temp.varint(bytes, p); principal := v;
            SELECT at, value INTO p, v FROM pg_temp.varint(bytes, p); cause_ns := v;
            request := encode(substring(bytes FROM p + 1 FOR 16), 'hex')::uuid;
            p := p + 16;
            SELECT at, value INTO p, v FROM pg_temp.varint(bytes, p); attempt := v;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF p <> length(bytes) THEN RAISE EXCEPTION 'trailing bytes'; END IF;
END $$;
-- pgoutput's Message: 'M', flags, LSN (8), prefix with NUL, length (4), content.
CREATE FUNCTION pg_temp.stream() RETURNS TABLE (lsn pg_lsn, transactional boolean, prefix text, content bytea) LANGUAGE
    sql AS $$
    SELECT c.lsn, get_byte(c.data, 1) = 1, convert_from(substring(c.data FROM 11 FOR n.at - 11), 'UTF8'),
        substring(c.data FROM n.at + 5)
      FROM pg_logical_slot_get_binary_changes('mantle_pgtap', NULL, NULL, 'proto_version', '1', 'publication_names',
          'mantle_stream',
                                              'messages', 'true') AS c
     CROSS JOIN LATERAL (SELECT position('\x00'::bytea IN substring(c.data FROM 11)) + 10 AS at) AS n
     WHERE get_byte(c.data, 0) = ascii('M') $$;
CREATE FUNCTION pg_temp.ops() RETURNS TABLE (
    op text, ns bigint, pid bigint, id bigint, version bigint, owner bigint, grp bigint, mode bigint, name text,
    principal bigint, cause_ns bigint, request uuid, attempt bigint) LANGUAGE sql AS $$
    SELECT d.* FROM pg_temp.stream() AS s CROSS JOIN LATERAL pg_temp.decode(s.content) AS d ORDER BY s.lsn $$;

SELECT pg_create_logical_replication_slot('mantle_pgtap', 'pgoutput') IS NULL AS x \gset
\set r1 'aaaaaaaa-0000-0000-0000-000000000001'
\set r2 'aaaaaaaa-0000-0000-0000-000000000002'

SELECT tap.id() AS ns \gset
SELECT code AS x FROM mantle.create_namespace(300, 'tap-messages', :ns, 7, 8, 493, :'r1', 0, p_umask => 0) \gset
SELECT results_eq('SELECT * FROM pg_temp.ops()',
    format($$ VALUES ('put', %1$s::bigint, 0::bigint, %1$s::bigint, 1::bigint, 7::bigint, 8::bigint, 493::bigint,
    'tap-messages', 300::bigint, 0::bigint, %2$L::uuid, 0::bigint) $$, :ns, :'r1'),
    'create_namespace: the whole record, names without a slash, a cause in namespace 0');
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'ä/', request => :'r2') \gset
SELECT results_eq('SELECT * FROM pg_temp.ops()',
    format($$ VALUES ('put', %1$s::bigint, %1$s::bigint, %2$s::bigint, 1::bigint, 7::bigint, 8::bigint, 493::bigint,
    'ä', 5::bigint, %1$s::bigint, %3$L::uuid, 0::bigint) $$, :ns, :a, :'r2'), 'mkdir');
SELECT code AS x FROM tap.mkdir(:ns, :ns, 'ä/', request => :'r2') \gset
SELECT is_empty('SELECT * FROM pg_temp.ops()', 'a replay emits nothing');
SELECT code AS x FROM tap.mkdir(:ns, :ns, 'ä/') \gset
SELECT is_empty('SELECT * FROM pg_temp.ops()', 'a refusal emits no message');
SELECT code AS x FROM tap.put(:ns, :a, 'o') \gset
SELECT code AS x FROM tap.delete(:ns, :a, 'o') \gset
SELECT is_empty('SELECT * FROM pg_temp.ops()', 'objects emit no message');
BEGIN;
SELECT code AS x FROM tap.mkdir(:ns, :ns, 'rolled-back/') \gset
ROLLBACK;
SELECT is_empty('SELECT * FROM pg_temp.ops()', 'a rolled back transaction emits no message');

SELECT first_id AS m FROM mantle.allocate_ids('m', 3) \gset
SELECT count(*) AS x FROM mantle.mkdir('{5,5,5}', ARRAY[:ns, :ns, :ns], ARRAY[:a, :a, :ns], '{y/,x/,bad}',
    ARRAY[:m, :m + 1, :m + 2]::bigint[], '{1,2,3}', '{4,5,6}', '{7,8,9}', '{t,f,t}',
    ARRAY[NULL, NULL, NULL]::jsonb[], ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{0,0,0}',
        p_caller => '{0,0,0}') \gset
CREATE TEMP TABLE batch AS SELECT * FROM pg_temp.stream();
SELECT results_eq('SELECT transactional, prefix FROM batch', $$ VALUES (true, 'mantle') $$,
    'a batch: one message, transactional');
SELECT set_eq('SELECT d.name, d.id, d.owner, d.grp, d.mode FROM batch, pg_temp.decode(content) AS d',
    format($$ VALUES ('x', %s::bigint, 2::bigint, 5::bigint, 8::bigint), ('y', %s, 1, 4, 7) $$, :m + 1, :m),
    'with the operations that were done');

SELECT code AS x FROM tap.mkdir(:ns, :a, 'x/', true) \gset
SELECT results_eq('SELECT op, id, version FROM pg_temp.ops()', format($$ VALUES ('put', %s::bigint, 2::bigint) $$,
    :m + 1), 'implicit to explicit');
SELECT count(code) AS x FROM mantle.set_attributes('{5,5}', ARRAY[:ns, :ns], ARRAY[:a, :a], '{x/,nope}',
    ARRAY[:m + 1, 5]::bigint[], '{70,1}', '{NULL,1}', '{448,1}', '{NULL,NULL}', '{NULL,NULL}',
    ARRAY[gen_random_uuid(), gen_random_uuid()], '{0,0}', p_caller => '{0,0}') \gset
SELECT results_eq('SELECT op, id, version, owner, grp, mode FROM pg_temp.ops()',
    format($$ VALUES ('put', %s::bigint, 3::bigint, 70::bigint, 5::bigint, 448::bigint) $$, :m + 1), 'set_attributes');
SELECT code AS x FROM tap.rename(:ns, :a, 'x/', :m + 1, :ns, 'z/', attempt => 4711, request => :'r1') \gset
SELECT results_eq('SELECT op, pid, name, id, version, request, attempt FROM pg_temp.ops()',
    format($$ VALUES ('put', %s::bigint, 'z', %s::bigint, 4::bigint, %L::uuid, 4711::bigint) $$, :ns, :m + 1, :'r1'),
    'rename_directory names its attempt');
SELECT code AS x FROM tap.rename(:ns, :ns, 'z/', :m + 1, :a, 'y/', victim => :m, attempt => 4712) \gset
SELECT results_eq('SELECT op, pid, name, id, version, request IS NULL FROM pg_temp.ops()',
    format($$ VALUES ('remove', %1$s::bigint, 'y', %2$s::bigint, 2::bigint, true),
    ('put', %1$s, 'y', %2$s + 1, 5, false) $$, :a, :m), 'an overwriting one removes the victim first, without a cause');
\if :distributed
-- An answer is stored where the change was. A verb finds those of its own directory, mantle.replay finds all.
SELECT skip('on Citus a request id is one directory''s');
\else
SELECT code AS x FROM tap.rmdir(:ns, :a, 'y/', :m + 1, request => :'r2', hash => 0) \gset
SELECT is_empty('SELECT * FROM pg_temp.ops()', 'a request id that was used emits nothing');
\endif
SELECT code AS x FROM tap.rmdir(:ns, :a, 'y/', :m + 1) \gset
SELECT results_eq('SELECT op, pid, name, id, version, request IS NULL FROM pg_temp.ops()',
    format($$ VALUES ('remove', %s::bigint, 'y', %s::bigint, 6::bigint, false) $$, :a, :m + 1),
    'rmdir: the version after the last');

SELECT first_id AS i FROM mantle.allocate_ids('m', 2) \gset
SELECT count(*) AS x FROM mantle.import_directories(5, :ns, ARRAY[:ns, :i]::bigint[], '{i/,j/}',
    ARRAY[:i, :i + 1]::bigint[]) \gset
SELECT results_eq('SELECT op, pid, name, id, version, owner, request IS NULL FROM pg_temp.ops()',
    format($$ VALUES ('put', %1$s::bigint, 'i', %2$s::bigint, 1::bigint, 7::bigint, true),
    ('put', %2$s, 'j', %2$s + 1, 1, 7, true) $$, :ns, :i), 'an import, in order, without a cause');
SELECT mantle.prune(:i + 1) AS x \gset
SELECT results_eq('SELECT op, pid, id, version, request IS NULL FROM pg_temp.ops()',
    format($$ VALUES ('remove', %1$s::bigint, %1$s::bigint + 1, 2::bigint, true) $$, :i), 'pruning');
SELECT code AS x FROM tap.rmdir(:ns, :ns, 'ä/', :a) \gset
SELECT count(*) AS x FROM pg_temp.ops() \gset
SELECT code AS x FROM mantle.delete_namespace(7, 'tap-messages', :'r2', 0) \gset
SELECT results_eq('SELECT op, pid, id, cause_ns, request FROM pg_temp.ops() ORDER BY id DESC',
    format($$ VALUES ('remove', %1$s::bigint, %2$s::bigint, NULL::bigint, NULL::uuid), ('remove', 0, %1$s, 0, %3$L) $$,
    :ns, :i, :'r2'), 'delete_namespace: its directories, then the root with the cause');
SELECT pg_drop_replication_slot('mantle_pgtap') IS NULL AS x \gset
SELECT * FROM finish();
