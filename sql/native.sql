-- The last file. PostgreSQL grants every new function to PUBLIC; this revokes that, and the grants of other files
-- stay. (Default privileges cannot do it: a schema's default privileges can only add to PUBLIC's.) An upgrade runs
-- this again, after the functions that it makes, in the same transaction (patroni/stack/upgrade.py).
REVOKE ALL ON ALL ROUTINES IN SCHEMA mantle FROM PUBLIC;

-- Functions written in Rust (extension/src). Analysts' functions run as their caller, so the functions that those call
-- are granted too.
GRANT EXECUTE ON FUNCTION mantle.entry_name_fault, mantle.unreached_directories, mantle.tree_rows, mantle.tree_keys,
    mantle.tree_depths TO mantle_analyst;
GRANT EXECUTE ON FUNCTION mantle.lineage, mantle.lease TO mantle_gateway;

COMMENT ON FUNCTION mantle.batch_fault IS
    'Checks isolation, commit level, write access (25006), and that a batch''s arrays have equal lengths '
    'within the limit';
COMMENT ON FUNCTION mantle.add_counts IS 'Adds to one directory''s counts, as mantle.delta_records says';
COMMENT ON FUNCTION mantle.lineage IS 'The history of this node: system identifier/timeline';
COMMENT ON FUNCTION mantle.lease IS
    'How long, and under which lineage and epoch, ids of a namespace resolved after this call may be used: '
    'p_lease of the verbs';
COMMENT ON FUNCTION mantle.lease_fault IS
    '{lease_expired} or {lineage_changed} if a resolved id may no longer be used; a NULL lease: it was '
    'resolved in this transaction';
COMMENT ON FUNCTION mantle.is_proven IS
    'Whether this is, under a key, the proof of a change that the index has prepared';
COMMENT ON FUNCTION mantle.proof IS 'The proof, under a key, of a change that the index has prepared';
COMMENT ON FUNCTION mantle.request_fault IS
    '{request_expired} for a request id (version 7) so old that its answer may have been purged; called when '
    'there is no answer';
COMMENT ON FUNCTION mantle.id_fault IS '{invalid_id} for an id outside every recorded block';
COMMENT ON FUNCTION mantle.is_distributed IS 'Whether Citus distributes the MetaTable';
COMMENT ON FUNCTION mantle.is_local IS 'Whether these partitions are on this node';
COMMENT ON FUNCTION mantle.placements IS
    'The version of the shard map that this session uses; mantle.placements_fault compares it';
COMMENT ON FUNCTION mantle.placements_fault IS
    '{wrong_node} if shards may have moved since mantle.placements() returned this; called after all writes';
COMMENT ON FUNCTION mantle.placement_fault IS
    '{wrong_node} if a partition is not on this node; called after writing to it';
COMMENT ON FUNCTION mantle.delta_ts_base IS 'What this node adds to the numbers of its delta records';
COMMENT ON FUNCTION mantle.node_partitions IS 'Citus: one partition on each node';
COMMENT ON FUNCTION mantle.mutation_fault_code IS 'Checks isolation, commit level and write access (25006)';
COMMENT ON FUNCTION mantle.error_meaning IS 'Name and meaning of one of our SQLSTATEs';
COMMENT ON FUNCTION mantle.latch_entries IS 'Latches pids shared (some exclusively) and names exclusively';
COMMENT ON FUNCTION mantle.latch_batch IS
    'As latch_entries; more than one element waits at most 2 s, then 55P03. {wrong_node}, and no latch, if '
    'one is on another node';
COMMENT ON FUNCTION mantle.latch_pids IS 'Latches pids, shared and exclusively';
COMMENT ON FUNCTION mantle.try_latch_exclusive IS 'Tries to latch a pid exclusively, without waiting';
COMMENT ON FUNCTION mantle.try_latch_name IS 'Tries to latch a name, without waiting';
COMMENT ON FUNCTION mantle.try_latch_shared IS 'Tries to latch a pid shared, without waiting';
COMMENT ON FUNCTION mantle.latch_epoch IS 'Latches an index group''s epoch';
COMMENT ON FUNCTION mantle.latch_allocation IS 'Serialises the allocation of ids';
COMMENT ON FUNCTION mantle.object_name_fault IS 'The SQLSTATE for an invalid object name';
COMMENT ON FUNCTION mantle.directory_name_fault IS 'The SQLSTATE for an invalid directory name';
COMMENT ON FUNCTION mantle.entry_name_fault IS 'The SQLSTATE for an invalid entry name';
COMMENT ON FUNCTION mantle.namespace_name_fault IS 'The SQLSTATE for an invalid namespace name';
COMMENT ON FUNCTION mantle.prefix_end IS 'The smallest string above all strings with this prefix';
COMMENT ON FUNCTION mantle.import_plan IS 'The real places of the directories of an import';
COMMENT ON FUNCTION mantle.import_screen IS
    'The objects of an import that need a lookup before the insert, and those that are refused';
COMMENT ON FUNCTION mantle.tree_rows IS 'For directories and their parents: the row of the start that each is below';
COMMENT ON FUNCTION mantle.tree_keys IS 'For directories, their parents and names: the key of each below a start';
COMMENT ON FUNCTION mantle.tree_depths IS 'For directories and their parents: the depth of each below the super-root';
COMMENT ON FUNCTION mantle.unreached_directories IS
    'Of all directories and their parents: those on a cycle or below one';
COMMENT ON FUNCTION mantle.walk_tree IS 'The keys of one page of list_tree';
COMMENT ON FUNCTION mantle.emit_directories IS 'Writes the change-stream message';
