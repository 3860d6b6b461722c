-- The last file. No function of the schema is for PUBLIC, to whom PostgreSQL grants every new one; the grants that other files
-- made stay. (Default privileges cannot do this: those of a schema only add to PUBLIC's.) An upgrade runs it again, after the
-- functions that it makes (patroni/stack/upgrade.py), in the same transaction.
REVOKE ALL ON ALL ROUTINES IN SCHEMA mantle FROM PUBLIC;

-- Functions written in Rust (extension/src). Analysts' functions run as their caller, so the ones that those call are granted.
GRANT EXECUTE ON FUNCTION mantle.entry_name_fault, mantle.unreached_directories, mantle.tree_rows, mantle.tree_keys,
    mantle.tree_depths TO mantle_analyst;
GRANT EXECUTE ON FUNCTION mantle.lineage, mantle.lease TO mantle_gateway;

COMMENT ON FUNCTION mantle.batch_fault IS
    'Checks isolation, commit level, that the transaction may write (25006), and that a batch''s arrays are equally long and not too long';
COMMENT ON FUNCTION mantle.add_counts IS 'Adds to one directory''s counts, as mantle.delta_records says';
COMMENT ON FUNCTION mantle.lineage IS 'The history of this node: system identifier/timeline';
COMMENT ON FUNCTION mantle.lease IS
    'How long, and under what, ids of a namespace may be used that are resolved after this call: for p_lease of the verbs';
COMMENT ON FUNCTION mantle.lease_fault IS
    '{lease_expired} or {lineage_changed} where what was resolved may be used no longer; a NULL lease: it was resolved in this transaction';
COMMENT ON FUNCTION mantle.is_proven IS 'Is this, by a key, the proof of a change that the index has prepared?';
COMMENT ON FUNCTION mantle.proof IS 'The proof, by a key, of a change that the index has prepared';
COMMENT ON FUNCTION mantle.request_fault IS
    '{request_expired} for a request id so old that its answer may have been purged, as far as it tells (version 7); asked when there is none';
COMMENT ON FUNCTION mantle.id_fault IS '{invalid_id} for an id that no recorded block has';
COMMENT ON FUNCTION mantle.is_distributed IS 'Is the MetaTable distributed by Citus?';
COMMENT ON FUNCTION mantle.is_local IS 'Are these partitions on this node?';
COMMENT ON FUNCTION mantle.placements IS
    'Which map of shards this session goes by; compared by mantle.placements_fault';
COMMENT ON FUNCTION mantle.placements_fault IS
    '{wrong_node} if shards may have moved since mantle.placements() answered this, asked after all writes';
COMMENT ON FUNCTION mantle.placement_fault IS
    '{wrong_node} for partitions that are not on this node, asked after they were written';
COMMENT ON FUNCTION mantle.delta_ts_base IS 'What this node adds to the numbers of its delta records';
COMMENT ON FUNCTION mantle.node_partitions IS 'Citus: one partition on each node';
COMMENT ON FUNCTION mantle.mutation_fault_code IS
    'Checks isolation and commit level, and that the transaction may write (25006)';
COMMENT ON FUNCTION mantle.error_meaning IS 'Name and meaning of one of our SQLSTATEs';
COMMENT ON FUNCTION mantle.latch_entries IS 'Latches pids shared (some exclusively) and names exclusively';
COMMENT ON FUNCTION mantle.latch_batch IS
    'As latch_entries; more than one element waits 2 s at most, then 55P03. {wrong_node}, and no latch, if one is on another node';
COMMENT ON FUNCTION mantle.latch_pids IS 'Latches pids, shared and exclusively';
COMMENT ON FUNCTION mantle.try_latch_exclusive IS 'Tries for the exclusive latch of a pid without waiting';
COMMENT ON FUNCTION mantle.try_latch_name IS 'Tries for the latch of a name without waiting';
COMMENT ON FUNCTION mantle.try_latch_shared IS 'Tries for the shared latch of a pid without waiting';
COMMENT ON FUNCTION mantle.latch_epoch IS 'Latches an index group''s epoch';
COMMENT ON FUNCTION mantle.latch_allocation IS 'Serialises the allocation of ids';
COMMENT ON FUNCTION mantle.object_name_fault IS 'SQLSTATE that refuses an object''s name';
COMMENT ON FUNCTION mantle.directory_name_fault IS 'SQLSTATE that refuses a directory''s name';
COMMENT ON FUNCTION mantle.entry_name_fault IS 'SQLSTATE that refuses an entry''s name';
COMMENT ON FUNCTION mantle.namespace_name_fault IS 'SQLSTATE that refuses a namespace''s name';
COMMENT ON FUNCTION mantle.prefix_end IS 'The smallest string above all that begin so';
COMMENT ON FUNCTION mantle.import_plan IS 'The real places of the directories of an import';
COMMENT ON FUNCTION mantle.import_screen IS 'What an import of objects must look at before it inserts';
COMMENT ON FUNCTION mantle.tree_rows IS 'Of directories and their parents: the row of the start that each is below';
COMMENT ON FUNCTION mantle.tree_keys IS 'Of directories, their parents and names: the key of each below a start';
COMMENT ON FUNCTION mantle.tree_depths IS 'Of directories and their parents: how deep each is below the super-root';
COMMENT ON FUNCTION mantle.unreached_directories IS
    'Of all directories and their parents: those on a cycle or below one';
COMMENT ON FUNCTION mantle.walk_tree IS 'The keys of one page of list_tree';
COMMENT ON FUNCTION mantle.emit_directories IS 'Writes the change-stream message';
