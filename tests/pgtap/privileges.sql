-- What each role may do, and what it may not (P6).
\ir setup.psql
SELECT plan(31);
SELECT tap.namespace('tap-privileges') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT tap.id() AS id \gset
SELECT mantle.grant_namespace('tap-privileges', 'mantle_analyst') AS x \gset

-- Who may execute which function, by name. This is the only list of these decisions: a new function fails until it is
-- here.
CREATE TEMPORARY TABLE decided (roles, names) AS VALUES
    ('mantle_gateway',
     'abort_upload_delegated admit_move all_uploads assignment_changes cluster_id compact copy_object copy_part create_namespace
     admit_segments create_manifest_delegated create_upload_delegated delete_namespace delete_object directories_below
     dirstat drop_manifest_delegated end_stale_session extents_between fence_request_delegated finish_upload_delegated
     forget_freed_delegated hosted_groups inline_bytes lease lease_segments lineage list list_filled list_local list_namespaces
     largest_below list_parts list_tree list_uploads mkdir mount_volume named_locators names_below operation
     part_of_object prune_tree put_object put_part_delegated register_volume release_segments remove_tree
     rename_directory rename_object replace_extents_delegated replace_locators_delegated replay replay_local
     resolve_path rmdir seal_upload_delegated segment_locators set_attributes set_umask set_volume_state
     settle_shared_delegated shared_freed_delegated stat stat_local take_freed_delegated take_over_segments
     unseal_upload_delegated unused_locators upload upload_extents upload_usage usage volume volume_nodes'),
    ('mantle_gateway mantle_importer',
     'allocate_ids assignment namespace raise_key_size'),
    ('mantle_gateway mantle_importer mantle_monitor',
     'index_source shard_map'),
    ('mantle_importer',
     'import_directories import_explicit import_known import_objects'),
    ('mantle_gateway mantle_index',
     'index_group'),
    ('mantle_index',
     'abort_rename advance_move all_assignment_changes assignments index_namespaces index_sources open_transactions prepare_key
     raise_epoch report_index_replicas trash_namespaces'),
    ('mantle_index mantle_monitor',
     'standby_flush'),
    ('mantle_gateway mantle_index mantle_monitor',
     'server_problems'),
    ('mantle_monitor',
     'backlogs_now check_cluster delta_backlog_now namespace_groups worker_steps_now'),
    ('mantle_gateway mantle_monitor',
     'check_inline inline_usage volume_status worker_problems'),
    ('mantle_gateway mantle_index mantle_monitor',
     'mutation_fault_code setting_problems'),
    ('mantle_analyst',
     'are_many check check_directories check_entries check_permissions check_places check_roots depths directory_at du du_below du_rows
     entry_name_fault export_inventory find hot_dirs keys_below like_pattern ls may_read octal path_of
     powers_of_two resolve rows_below split_path sums_by_row top_dirs tree_depths tree_keys tree_rows
     unreached_directories walk_path'),
    ('',
     'abort_move abort_rename_delegated admit_segments_delegated admitted_fault_delegated are_of_one_write add_counts add_deltas_waiting add_inline apply_deltas are_directories_queued attributes_fault batch_fault
     begin_operation_delegated certificate_problems compact_delegated compact_directories compact_directory condition_fault count_and_emit
     create_index_group create_restore_point creation_fault delegate_functions delegated_functions
     delete_object_delegated delete_object_distributed delete_object_one delta_ts_base
     await_recording directory_name_fault directory_of_each_node distribute distributed_tables drop_index_group drop_index_slot drop_inline emit
     emit_directories empty_delegated empty_directories error_meaning exhaustion_problems first_entries free_bytes
     free_manifest_delegated free_manifests      freed_between_delegated freed_or_left grant_namespace
     grantable hold_extents_delegated holds holds_key id_fault import_count import_directories_delegated import_insert import_insert_distributed
     import_lookup import_lookup_delegated import_lookup_distributed import_objects_delegated
     import_objects_distributed import_plan import_refusals import_screen inline_delegated inline_id insert_entry_delegated
     is_distributed is_empty is_empty_delegated is_in_trash is_local is_proven latch_across_nodes
     latch_allocation latch_attributes latch_batch latch_delegated latch_entries latch_epoch latch_epoch_delegated
     latch_epoch_everywhere latch_moves latch_moves_delegated latch_pids latch_rename_batch latch_segments latch_volume_segments lease_fault least_segment_epoch left_locator list_fallback list_filled_fallback
     local_partitions
     local_rows_estimate local_shards locator_segment locator_volume locators_without_object lost_by_upgrade
     maintain_busy_directories maintain_compaction maintain_directories maintain_freed maintain_pruning
     login_problems maintain_requests maintain_trash make_prepare_keys manifest_id message_functions metadata_fault
     mkdir_delegated mkdir_distributed mkdir_fallback mkdir_one mounted move_entry move_namespace namespace_fault
     namespace_name_fault
     new_slot_name node_facts node_partitions node_problems object_name_fault oldest_requests_end outcome_of_request
     over_local_shards part_marker permission_of permission_text pin_settings pin_settings_here pinned_settings
     placement_fault
     placements
     placements_fault prefix_end prepare_fault proof prove prunable_directories prune purge purge_oldest_requests
     put_object_delegated put_object_distributed put_object_fallback put_object_one queue_pruning
     raise_fault read_place_delegated reading_fault record_attempt_delegated record_permission_delegated record_request record_request_delegated
     recorded_local recorded_outcome rekey_requests removable_directories remove_directory remove_entry_delegated
     removal_fault removed_fault rename_directory_fallback rename_directory_fault rename_directory_move
     rename_index_slot replaced_metadata replacement_fault reported_index_replicas request_fault restore_after_upgrade
     revoke_namespace rmdir_delegated rmdir_fallback root_fault rows_estimate run_maintenance segment_fault
     server_certificates server_problems_beyond service_roles set_attributes_delegated set_attributes_one shard_problems
     share_object_delegated slot_problems stat_fallback trash_targets try_latch_delegated try_latch_exclusive
     try_latch_name try_latch_shared upload_fault volumes_fault walk_down walk_tree worker_signs write_tombstone
     write_tombstone_delegated');
SELECT set_eq($$
    SELECT DISTINCT p.proname::text, coalesce((
               SELECT string_agg(coalesce(r.rolname, 'PUBLIC'), ' ' ORDER BY r.rolname)
                 FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
                 LEFT JOIN pg_roles r ON r.oid = a.grantee WHERE a.grantee <> p.proowner), '')
      FROM pg_proc p WHERE p.pronamespace = 'mantle'::regnamespace
$$, $$
    SELECT n.name, d.roles FROM decided d CROSS JOIN LATERAL string_to_table(translate(d.names, E'\n', ' '), ' ')
        AS n(name)
     WHERE n.name <> ''
$$, 'every function may be executed by exactly the roles that are decided, and by its owner');

-- Those in C that are left out run no SQL. Analysts harm only themselves.
SELECT is_empty($$
    SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
     WHERE p.pronamespace = 'mantle'::regnamespace
       AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS c(line) WHERE c.line LIKE 'search_path=pg_catalog%')
       AND EXISTS (SELECT FROM aclexplode(p.proacl) AS a
                    WHERE a.grantee NOT IN (p.proowner, 'mantle_analyst'::regrole))
       AND NOT (l.lanname = 'c' AND p.proname IN ('mutation_fault_code', 'worker_steps_now'))
$$, 'no function that a service may execute looks for names in the search_path of its caller');

SET ROLE mantle_analyst;
SELECT throws_ok($$ SELECT pg_logical_emit_message(true, 'mantle', 'forged') $$, '42501', NULL,
    'an analyst forges no message (text)');
SELECT throws_ok($$ SELECT pg_logical_emit_message(true, 'mantle', '\x01'::bytea) $$, '42501', NULL,
    'an analyst forges no message (bytea)');
SELECT throws_ok($$ SELECT mantle.emit_directories(0, 0, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
    '{}') $$, '42501', NULL, 'an analyst does not call emit_directories');
SELECT throws_ok($$ SELECT mantle.latch_pids('{}', '{1}') $$, '42501', NULL, 'takes no latch');
SELECT throws_ok($$ SELECT * FROM mantle.allocate_ids('x', 1) $$, '42501', NULL, 'allocates no ids');
SELECT throws_ok(format('SELECT * FROM mantle.delete_object(''{5}'', ARRAY[%s], ''{}'', ''{}'', ''{}'', ''{}'', ''{}'',
    ''{}'', p_caller => ''{0}'')', :ns), '42501', NULL, 'mutates nothing');
SELECT throws_ok('DELETE FROM mantle.meta', '42501', NULL, 'writes no table');
SELECT throws_ok('SELECT * FROM mantle.requests', '42501', NULL, 'does not read request ids');
SELECT throws_ok('SELECT count(*) FROM mantle.inline', '42501', NULL, 'reads no bytes of objects');
SELECT throws_ok(format('SELECT mantle.inline_bytes(%s, ''inline:1'')', :ns), '42501', NULL, 'nor by a function');
SELECT is((SELECT count(*) FROM mantle.meta WHERE pid = :ns AND id IS NOT NULL), 1::bigint, 'reads entries');
SELECT is((SELECT name FROM mantle.ls('tap-privileges', '/')), 'a/', 'calls the reading functions');
SELECT throws_ok(format('SELECT * FROM mantle.list(%1$s, %1$s, NULL, NULL, 1)', :ns), '42501', NULL,
    'but none that reads as the owner');
SELECT throws_ok('SELECT * FROM mantle.directories', '42501', NULL, 'an analyst reads no view that reads as the owner');
RESET ROLE;

SET ROLE mantle_index;
\if :distributed
SELECT is_empty('SELECT name FROM mantle.meta WHERE explicit IS NULL',
    'the index reads no row of the MetaTable but directories');
\else
SELECT throws_ok('SELECT * FROM mantle.meta', '42501', NULL, 'the index does not read the MetaTable');
\endif
SELECT is((SELECT name FROM mantle.directories WHERE id = :a), 'a', 'but the directories');
SELECT throws_ok($$ SELECT pg_logical_emit_message(true, 'mantle', 'forged') $$, '42501', NULL,
    'the index forges no message');
SELECT is((SELECT slot_name FROM mantle.index_group(1)), (SELECT slot_name FROM mantle.index_groups WHERE index_group = 1),
    'it knows its slot');
SELECT is((SELECT count(*) FROM mantle.index_sources()), 1::bigint, 'the index knows its only source');
SELECT results_eq('SELECT * FROM mantle.standby_flush()', 'VALUES (false, NULL::pg_lsn)', 'and that it has no standby');
RESET ROLE;

SET ROLE mantle_gateway;
SELECT throws_ok('SELECT * FROM mantle.meta', '42501', NULL, 'the gateway reads no table');
SELECT throws_ok('SELECT * FROM mantle.inline', '42501', NULL, 'bytes of objects only by its functions');
SELECT throws_ok('SELECT mantle.raise_epoch(1, 0, NULL)', '42501', NULL, 'and raises no epoch');
SELECT is((SELECT code FROM mantle.put_object('{5}', ARRAY[:ns], ARRAY[:a], '{o}', ARRAY[:id], '{1}', '{1}', '{420}',
    '{1}', '{e}', '{t}',
    ARRAY[NULL]::jsonb[], '{l}', '{NULL}', ARRAY[gen_random_uuid()], '{0}',
        p_caller => '{0}')), NULL, 'it calls verbs');
RESET ROLE;

-- Code that verbs run as the owner finds no object of the caller's search_path.
CREATE SCHEMA tap_hostile;
GRANT USAGE ON SCHEMA tap_hostile TO PUBLIC;
CREATE FUNCTION tap_hostile.compare(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'run as %',
    current_user; END $$;
CREATE OPERATOR tap_hostile.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = tap_hostile.compare);
CREATE OPERATOR tap_hostile.<= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = tap_hostile.compare);
CREATE OPERATOR tap_hostile.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = tap_hostile.compare);
BEGIN;
-- An id block that is not committed is not cached, so the verb looks it up.
SELECT first_id AS id FROM mantle.allocate_ids('pgtap', 2) \gset
SET LOCAL ROLE mantle_gateway;
SET LOCAL search_path = tap_hostile, pg_catalog;
SELECT coalesce(code, 'done') AS put FROM mantle.put_object('{5}', ARRAY[:ns], ARRAY[:a], '{h}', ARRAY[:id], '{1}',
    '{1}', '{420}',
    '{1}', '{e}', '{t}', ARRAY[NULL]::jsonb[], '{l}', '{NULL}', ARRAY[gen_random_uuid()], '{0}',
        p_caller => '{0}') \gset
SELECT coalesce(code, 'done') AS mkdir FROM mantle.mkdir('{5}', ARRAY[:ns], ARRAY[:a], '{hd/}', ARRAY[:id + 1], '{1}',
    '{1}', '{493}',
    '{false}', ARRAY[NULL]::jsonb[], ARRAY[gen_random_uuid()], '{0}', p_caller => '{0}') \gset
COMMIT;
SELECT is(:'put'::text, 'done', 'put_object under a hostile search_path');
SELECT is(:'mkdir'::text, 'done', 'mkdir, which queues an implicit directory for pruning');
DROP SCHEMA tap_hostile CASCADE;

-- pg_advisory* functions cannot reach latches: locks of every class that SQL can name, on the same numbers, block no
-- verb.
SELECT tap.connect('tap_intruder') IS NULL AS x \gset
SELECT dblink_exec('tap_intruder', 'SET ROLE mantle_analyst') IS NULL AS x \gset
SELECT count(*) AS x
    FROM dblink('tap_intruder',
    format($$ SELECT pg_advisory_lock(%s)::text UNION ALL SELECT pg_advisory_lock(%s, %s)::text
    UNION ALL SELECT pg_advisory_lock(0, %s)::text $$, :a, 0, :a, :a)) AS r(t text) \gset
SET lock_timeout = '5s';
SELECT is((SELECT code FROM tap.put(:ns, :a, 'p')), NULL, 'a create passes');
RESET lock_timeout;
BEGIN;
SELECT code AS x FROM tap.put(:ns, :a, 'q') \gset
SELECT count(*) AS x FROM dblink('tap_intruder', 'SELECT pg_advisory_unlock_all()::text') AS r(t text) \gset
SELECT is((SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
    AND objsubid > x'4d00'::int), 3::bigint, 'latches (pid, name, allocation): of classes of our own');
SELECT pg_advisory_unlock_all() IS NULL AS x \gset
SELECT is((SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
    AND objsubid > x'4d00'::int), 3::bigint, 'which pg_advisory_unlock_all does not release');
COMMIT;
SELECT mantle.revoke_namespace('tap-privileges', 'mantle_analyst') AS x \gset
SELECT dblink_disconnect('tap_intruder') IS NULL AS x \gset
SELECT * FROM finish();
