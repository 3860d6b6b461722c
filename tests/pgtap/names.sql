\ir setup.psql
BEGIN;
SELECT plan(31);
SELECT is(mantle.object_name_fault(name), code, format('object %s: %s', left(name, 12), coalesce(code, 'good')))
  FROM (VALUES ('a', NULL), ('ä', NULL), ('.a', NULL), ('...', NULL), (repeat('n', 255), NULL), ('', 'MT001'),
      (NULL, 'MT001'),
               ('.', 'MT001'), ('..', 'MT001'), ('a/', 'MT001'), ('/_ATTR', 'MT001'), ('a/b', 'MT001'),
               (repeat('n', 256), 'MT002'), (repeat('ä', 128), 'MT002')) AS v(name, code);
SELECT is(mantle.directory_name_fault(name), code, format('directory %s: %s', left(name, 12), coalesce(code, 'good')))
  FROM (VALUES ('a/', NULL), (repeat('n', 255) || '/', NULL), ('a', 'MT001'), ('/', 'MT001'), ('./', 'MT001'),
               ('a//', 'MT001'), ('/_ATTR', 'MT001'), ('/_ATTR/', 'MT001'), (repeat('n', 256) || '/', 'MT002'))
                   AS v(name, code);
SELECT is(mantle.namespace_name_fault(name), code, format('namespace %s: %s', left(name, 12), coalesce(code, 'good')))
  FROM (VALUES ('debian', NULL), ('ab', 'MT005'), ('A_b', 'MT005'), ('127.0.0.1', 'MT005'), (NULL, 'MT005'))
      AS v(name, code);
SELECT is(mantle.prefix_end('ab'), 'ac', 'end of a prefix');
SELECT is(mantle.prefix_end(chr(1114111)), NULL, 'no end above the last character');
SELECT ok(mantle.prefix_end('a' || chr(55295)) COLLATE "C" > ('a' || chr(55295) || chr(1114111)) COLLATE "C",
          'the end lies above all that begin so, past the surrogates');
SELECT * FROM finish();
ROLLBACK;
