\echo Use "ALTER EXTENSION mantle UPDATE" to load this file. \quit
-- What is not a function, a view, a comment or a privilege: those are all taken from the install script (patroni/stack/upgrade.py).
-- MetaTable and request ids stay where they are. Tables that get a column in the middle are made anew, so that every node
-- of Citus, upgraded or fresh, has the same order of columns.

-- Gone, or with other arguments or another result. CREATE OR REPLACE would leave the old one beside the new, or fail.
DROP FUNCTION mantle.append_deltas, mantle.batch_context, mantle.bury_some, mantle.check_counts, mantle.check_cycles,
    mantle.check_way_up_breaks, mantle.create_namespace, mantle.delete_object, mantle.delete_object_one, mantle.delete_object_refusal,
    mantle.delete_objects_at_once, mantle.du_below, mantle.du_sums, mantle.empty_some, mantle.is_free, mantle.is_set,
    mantle.latch_targets, mantle.mkdir, mantle.mkdir_new, mantle.mkdir_one, mantle.mkdir_refusal, mantle.mkdirs_at_once,
    mantle.put_new_object, mantle.put_object, mantle.put_object_one, mantle.put_object_refusal, mantle.put_objects_at_once,
    mantle.recall, mantle.remove_tree, mantle.remove_tree_attempt, mantle.rename_directory, mantle.rename_directory_attempt,
    mantle.rename_directory_move, mantle.rename_object, mantle.rename_object_one, mantle.replay, mantle.rmdir,
    mantle.rmdir_one, mantle.set_attributes, mantle.set_attributes_one, mantle.try_latch_removal;
DROP TYPE mantle.batch_context;
-- Reads the prune queue, which is made anew.
DROP VIEW mantle.backlogs;

-- The MetaTable: one index gets a column more, the other one another; of its rows, tombstones get what that one names.
DROP INDEX mantle.meta_subdirectory, mantle.meta_tombstone;
UPDATE mantle.meta SET created = modified WHERE removed;
--@ CREATE INDEX meta_subdirectory
--@ CREATE INDEX meta_tombstone

-- No row without a directory was ever written.
ALTER TABLE mantle.requests ALTER COLUMN pid SET NOT NULL, ALTER COLUMN created SET DEFAULT clock_timestamp();
-- What an index has prepared is now recorded with the namespace's root, and looked for there once the tables are distributed.
UPDATE mantle.requests SET pid = ns WHERE verb IN ('rename_directory', 'remove_tree');

-- A table that is dropped stays among those whose data pg_dump keeps, unless the extension gives it up first.
CREATE TEMPORARY TABLE kept_id_blocks AS TABLE mantle.id_blocks;
ALTER EXTENSION mantle DROP TABLE mantle.id_blocks;
DROP TABLE mantle.id_blocks;
--@ CREATE TABLE mantle.id_blocks
--@ SELECT pg_catalog.pg_extension_config_dump('mantle.id_blocks'
INSERT INTO mantle.id_blocks (first_id, last_id, timeline, owner, allocated)
SELECT b.first_id, b.last_id, b.timeline, b.owner, b.allocated FROM pg_temp.kept_id_blocks b;
DROP TABLE pg_temp.kept_id_blocks;

-- Where the change was is not known: the directory itself is as good, since 0.1.0 was never distributed.
CREATE TEMPORARY TABLE kept_prune_queue AS TABLE mantle.prune_queue;
ALTER EXTENSION mantle DROP SEQUENCE mantle.prune_queue_seq_seq;
ALTER EXTENSION mantle DROP TABLE mantle.prune_queue;
DROP TABLE mantle.prune_queue;
--@ CREATE TABLE mantle.prune_queue
--@ CREATE INDEX prune_queue_queued
--@ SELECT pg_catalog.pg_extension_config_dump('mantle.prune_queue'
INSERT INTO mantle.prune_queue (pid, seq, id, queued)
SELECT q.id, nextval('mantle.delta_ts'), q.id, q.queued FROM pg_temp.kept_prune_queue q ORDER BY q.seq;
DROP TABLE pg_temp.kept_prune_queue;

CREATE TEMPORARY TABLE kept_operations AS TABLE mantle.operations;
ALTER EXTENSION mantle DROP TABLE mantle.operations;
DROP TABLE mantle.operations;
--@ CREATE TABLE mantle.operations
--@ CREATE INDEX operations_running
--@ CREATE INDEX operations_finished
--@ SELECT pg_catalog.pg_extension_config_dump('mantle.operations'
INSERT INTO mantle.operations (id, ns, principal, kind, state, directory_id, objects, directories, bytes, created, stepped, finished)
SELECT o.id, o.ns, o.principal, o.kind, o.state, o.directory_id, o.objects, o.directories, o.bytes, o.created, o.stepped, o.finished
  FROM pg_temp.kept_operations o;
DROP TABLE pg_temp.kept_operations;

-- Withdrawn: these run as the owner, so row-level security would not hold for analysts; services have reads of their own.
REVOKE EXECUTE ON FUNCTION mantle.dirstat, mantle.list, mantle.list_namespaces, mantle.list_tree, mantle.namespace, mantle.resolve_path,
    mantle.stat FROM mantle_analyst;
REVOKE SELECT ON mantle.directories FROM mantle_analyst;
REVOKE EXECUTE ON FUNCTION mantle.du(text, text), mantle.du(text, text, int), mantle.ls, mantle.path_of, mantle.resolve FROM mantle_gateway;

ALTER TABLE mantle.namespaces ADD COLUMN other_group int,
    ADD COLUMN move_phase text CHECK (move_phase IN ('copy', 'both', 'switched')),
    ADD COLUMN moves int NOT NULL DEFAULT 0,
    ADD CONSTRAINT namespaces_move CHECK ((other_group IS NULL) = (move_phase IS NULL));
ALTER TABLE mantle.index_groups ADD COLUMN changes bigint NOT NULL DEFAULT 0;

-- Empty: what is older signs nothing. mantle.make_prepare_keys() is called when none of it runs any more.
--@ CREATE TABLE mantle.prepare_keys

--@ CREATE TABLE mantle.purged_requests
--@ SELECT pg_catalog.pg_extension_config_dump('mantle.purged_requests'

-- Empty: from now on analysts see what is granted to them.
--@ CREATE TABLE mantle.namespace_grants
--@ SELECT pg_catalog.pg_extension_config_dump('mantle.namespace_grants'

--@ CREATE TYPE mantle.side

--@ repeatable

-- Policies name a function, so they come after it.
--@ ALTER TABLE mantle.meta ENABLE ROW LEVEL SECURITY
--@ ALTER TABLE mantle.namespaces ENABLE ROW LEVEL SECURITY
--@ CREATE POLICY
--@ COMMENT ON POLICY
