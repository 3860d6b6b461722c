-- What a database looks like that 0.1.0 has served, in every table: as its functions would have written it, by hand, since they
-- do not run on today's library.
--
--   album/                    1025
--     summer/                 1026, counted in place and by one delta record
--       beach.jpg             1030
--       sea.jpg               1031, whose count is the delta record
--     empty/                  1027, implied by a key whose object went; in the prune queue
--   (removed)                 1028, a tombstone; 1034, one that is due to be purged
--   trash: 1029/              removed with all that was below it, not emptied yet
--     old.jpg                 1032
INSERT INTO mantle.id_blocks (first_id, last_id, timeline, owner) VALUES (1024, 2047, 1, 'gateway-1'), (2048, 3071, 1, 'gateway-2');
INSERT INTO mantle.namespaces (ns, name, owner) VALUES (1024, 'photos', 7);

INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, created) VALUES
    (0, 'photos/', 1024, 1024, 7, 8, 493, 1, true, '2026-01-01'),
    (1024, 'album/', 1024, 1025, 7, 8, 493, 3, true, '2026-01-01'),
    (1025, 'summer/', 1024, 1026, 7, 8, 493, 1, true, '2026-01-01'),
    (1025, 'empty/', 1024, 1027, 7, 8, 493, 1, false, '2026-01-01'),
    (1, '1029/', 1024, 1029, 7, 8, 493, 2, true, '2026-01-01');
INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type, user_metadata, locator, created, modified)
VALUES (1026, 'beach.jpg', 1024, 1030, 7, 8, 420, 1, 100, false, 'b1', 'image/jpeg', '{"camera": "x100"}', 'blob-1', '2026-01-01', '2026-01-01'),
       (1026, 'sea.jpg', 1024, 1031, 7, 8, 420, 2, 250, false, 's2', 'image/jpeg', NULL, 'blob-2', '2026-01-01', '2026-01-02'),
       (1029, 'old.jpg', 1024, 1032, 7, 8, 420, 1, 50, true, 'o1', 'image/jpeg', NULL, NULL, '2026-01-01', '2026-01-01');
INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified, removed) VALUES
    (0, '/_ATTR', 0, 0, 1, 1, 0, '2026-01-01', false),
    (1024, '/_ATTR', 0, 1024, 1, 1, 0, '2026-01-01', false),
    (1025, '/_ATTR', 0, 1024, 2, 2, 0, '2026-01-01', false),
    (1026, '/_ATTR', 0, 1024, 1, 0, 100, '2026-01-01', false),
    (1028, '/_ATTR', 0, 1024, 0, 0, 0, now(), true),
    (1034, '/_ATTR', 0, 1024, 0, 0, 0, '2026-01-01', true),
    (1029, '/_ATTR', 0, 1024, 1, 0, 50, '2026-01-01', false);
INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)
VALUES (1026, '/_ATTR', nextval('mantle.delta_ts'), 1024, 1, 0, 250, '2026-01-02');

-- Answers: a mkdir, a PUT, a directory rename by its second attempt, a removal.
INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version) VALUES
    (0, 5, '00000000-0000-4000-8000-000000000000', 10, 'create_namespace', 0, 1024, 1),
    (1024, 5, '00000000-0000-4000-8000-000000000001', 11, 'mkdir', 1025, 1026, 1),
    (1024, 5, '00000000-0000-4000-8000-000000000002', 12, 'put_object', 1026, 1031, 2),
    (1024, 5, '00000000-0000-4000-8000-000000000003', 13, 'rename_directory', 1024, 1025, 3),
    (1024, 5, '00000000-0000-4000-8000-000000000004', 14, 'remove_tree', 1025, 1029, 2);
INSERT INTO mantle.rename_attempts (ns, principal, request_id, attempt, state) VALUES
    (1024, 5, '00000000-0000-4000-8000-000000000003', 41, 'aborted'),
    (1024, 5, '00000000-0000-4000-8000-000000000003', 42, 'committed'),
    (1024, 5, '00000000-0000-4000-8000-000000000004', 43, 'committed');
UPDATE mantle.index_groups SET epoch = 4, cluster_id = 'c1', system_identifier = 1, timeline = 1 WHERE index_group = 1;
INSERT INTO mantle.prune_queue (id, queued) VALUES (1027, now() - interval '1 hour'), (1026, now() - interval '1 hour');
INSERT INTO mantle.operations (id, ns, principal, kind, directory_id) VALUES
    ('00000000-0000-4000-8000-000000000005', 1024, 5, 'remove_tree', 1029);
INSERT INTO mantle.operations (id, ns, principal, kind, state, directory_id, objects, directories, bytes, finished) VALUES
    ('00000000-0000-4000-8000-000000000006', 1024, 5, 'remove_tree', 'done', 1033, 3, 1, 300, now());
