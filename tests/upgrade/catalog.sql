-- What an extension `mantle` is, line by line: kind, name, property, value. No number, no owner's name, nothing that depends on
-- what was done before; so two databases of one cluster are compared by comparing lines.
WITH object AS (
    SELECT p.oid, 'pg_proc'::regclass AS catalog, 'function' AS kind, p.oid::regprocedure::text AS name, p.proacl AS acl, p.proowner AS owner, 'f' AS acl_kind
      FROM pg_proc p WHERE p.pronamespace = 'mantle'::regnamespace
    UNION ALL
    SELECT c.oid, 'pg_class', CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type'
                                             ELSE 'relation ' || c.relkind::text END,
           c.relname, c.relacl, c.relowner, CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END
      FROM pg_class c WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind <> 'i'
    UNION ALL
    SELECT n.oid, 'pg_namespace', 'schema', n.nspname, n.nspacl, n.nspowner, 'n' FROM pg_namespace n WHERE n.nspname = 'mantle'
), relation AS (
    SELECT o.name, o.kind, c.* FROM object o JOIN pg_class c ON c.oid = o.oid WHERE o.catalog = 'pg_class'::regclass
), grants AS (
    -- NULL is the default of the kind of object; a composite type's row has none of its own.
    SELECT o.kind, o.name, 'privilege' AS property, coalesce(o.acl, acldefault(o.acl_kind::"char", o.owner)) AS acl, o.owner
      FROM object o WHERE o.kind <> 'type'
    UNION ALL
    SELECT o.kind, o.name, 'initial privilege', i.initprivs, o.owner
      FROM object o JOIN pg_init_privs i ON i.objoid = o.oid AND i.classoid = o.catalog AND i.objsubid = 0
    UNION ALL
    SELECT r.kind, r.name, 'privilege on ' || a.attname, a.attacl, r.relowner
      FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND NOT a.attisdropped AND a.attacl IS NOT NULL
)
SELECT kind, name, property, value FROM (
    SELECT o.kind, o.name, 'comment' AS property, obj_description(o.oid, o.catalog::text) AS value FROM object o
    UNION ALL
    SELECT g.kind, g.name, g.property,
           CASE a.grantee WHEN 0 THEN 'PUBLIC' WHEN g.owner THEN 'the owner' ELSE a.grantee::regrole::text END || ': '
           || string_agg(a.privilege_type || CASE WHEN a.is_grantable THEN '*' ELSE '' END, ', ' ORDER BY a.privilege_type)
      FROM grants g CROSS JOIN LATERAL aclexplode(g.acl) AS a GROUP BY g.kind, g.name, g.property, g.owner, a.grantee
    UNION ALL
    SELECT o.kind, o.name, 'definition', pg_get_functiondef(o.oid) || format(' COST %s ROWS %s', p.procost, p.prorows)
      FROM object o JOIN pg_proc p ON p.oid = o.oid WHERE o.kind = 'function' AND p.prokind IN ('f', 'p')
    UNION ALL
    SELECT r.kind, r.name, 'definition', pg_get_viewdef(r.oid) FROM relation r WHERE r.relkind = 'v'
    UNION ALL
    SELECT r.kind, r.name, 'options', format('persistence %s, replica identity %s, row security %s, forced %s, %s', r.relpersistence,
           r.relreplident, r.relrowsecurity, r.relforcerowsecurity, array(SELECT unnest(r.reloptions) ORDER BY 1)) FROM relation r
    UNION ALL
    SELECT r.kind, r.name, 'column ' || lpad(a.place::text, 2, '0'),
           format('%s %s %s%s default %s, identity %L, generated %L, storage %s, options %s: %s', a.attname,
                  format_type(a.atttypid, a.atttypmod), CASE WHEN a.attcollation <> 0 THEN a.attcollation::regcollation::text || ' ' END,
                  CASE WHEN a.attnotnull THEN 'not null' ELSE 'null' END, coalesce(pg_get_expr(d.adbin, d.adrelid), 'none'), a.attidentity,
                  a.attgenerated, a.attstorage,
                  -- The server itself stamps columns with where it was when it made them: no option of ours.
                  array(SELECT o FROM unnest(a.attoptions) AS o WHERE o NOT LIKE 'pg\_attver=%' ORDER BY 1), col_description(r.oid, a.attnum))
      FROM relation r
      JOIN (SELECT a.*, row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS place
              FROM pg_attribute a WHERE a.attnum > 0 AND NOT a.attisdropped) AS a ON a.attrelid = r.oid
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT r.kind, r.name, 'constraint ' || c.conname, pg_get_constraintdef(c.oid) || CASE WHEN c.convalidated THEN '' ELSE ' not valid' END
      FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid
    UNION ALL
    SELECT r.kind, r.name, 'index', pg_get_indexdef(i.indexrelid) || format(' valid %s, clustered %s, replica identity %s: %s', i.indisvalid,
           i.indisclustered, i.indisreplident, obj_description(i.indexrelid, 'pg_class'))
      FROM relation r JOIN pg_index i ON i.indrelid = r.oid
    UNION ALL
    SELECT r.kind, r.name, 'policy ' || p.polname,
           format('%s, permissive %s, to %s, using %s, check %s: %s', p.polcmd, p.polpermissive,
                  array(SELECT u::regrole::text FROM unnest(p.polroles) AS u ORDER BY 1), pg_get_expr(p.polqual, p.polrelid),
                  pg_get_expr(p.polwithcheck, p.polrelid), obj_description(p.oid, 'pg_policy'))
      FROM relation r JOIN pg_policy p ON p.polrelid = r.oid
    UNION ALL
    SELECT r.kind, r.name, 'trigger ' || t.tgname, pg_get_triggerdef(t.oid) FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid
    UNION ALL
    SELECT r.kind, r.name, 'sequence', format('%s from %s by %s, %s to %s, cache %s, cycle %s', s.seqtypid::regtype, s.seqstart, s.seqincrement,
           s.seqmin, s.seqmax, s.seqcache, s.seqcycle)
      FROM relation r JOIN pg_sequence s ON s.seqrelid = r.oid
    UNION ALL
    SELECT 'extension', e.extname, 'version', e.extversion FROM pg_extension e WHERE e.extname = 'mantle'
    UNION ALL
    SELECT 'extension', e.extname, 'dumped by pg_dump', coalesce(c.oid::regclass::text, 'something dropped') || ' ' || u.condition
      FROM pg_extension e CROSS JOIN LATERAL unnest(e.extconfig, e.extcondition) AS u(oid, condition)
      LEFT JOIN pg_class c ON c.oid = u.oid WHERE e.extname = 'mantle'
    UNION ALL
    SELECT 'extension', e.extname, 'member', pg_describe_object(d.classid, d.objid, d.objsubid)
      FROM pg_extension e JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
     WHERE e.extname = 'mantle'
    UNION ALL
    SELECT 'publication', p.pubname, 'options',
           format('all tables %s, insert %s, update %s, delete %s, truncate %s, via root %s, tables %s: %s', p.puballtables, p.pubinsert,
                  p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, array(SELECT t.tablename FROM pg_publication_tables t WHERE t.pubname = p.pubname),
                  obj_description(p.oid, 'pg_publication'))
      FROM pg_publication p
) AS line WHERE value IS NOT NULL ORDER BY kind, name, property, value COLLATE "C"
