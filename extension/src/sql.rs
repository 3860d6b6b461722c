//! The order of the SQL files: a name, unique, and the file. Each comes after the ones before it; the first before and
//! the last after everything that Rust declares.

macro_rules! chain {
    ($first:tt $path:tt, $($rest:tt)*) => {
        pgrx::extension_sql_file!($path, name = $first, bootstrap);
        chain!(@after $first, $($rest)*);
    };
    (@after $previous:tt, $last:tt $path:tt $(,)?) => {
        pgrx::extension_sql_file!($path, name = $last, requires = [$previous], finalize);
    };
    (@after $previous:tt, $next:tt $path:tt, $($rest:tt)+) => {
        pgrx::extension_sql_file!($path, name = $next, requires = [$previous]);
        chain!(@after $next, $($rest)+);
    };
}

chain! {
    "roles" "../../sql/roles.sql",
    "tables_meta" "../../sql/tables/meta.sql",
    "tables_types" "../../sql/tables/types.sql",
    "tables_namespaces" "../../sql/tables/namespaces.sql",
    "tables_namespace_grants" "../../sql/tables/namespace_grants.sql",
    "tables_requests" "../../sql/tables/requests.sql",
    "tables_purged_requests" "../../sql/tables/purged_requests.sql",
    "tables_rename_attempts" "../../sql/tables/rename_attempts.sql",
    "tables_id_blocks" "../../sql/tables/id_blocks.sql",
    "tables_index_groups" "../../sql/tables/index_groups.sql",
    "tables_prepare_keys" "../../sql/tables/prepare_keys.sql",
    "tables_prune_queue" "../../sql/tables/prune_queue.sql",
    "tables_operations" "../../sql/tables/operations.sql",
    "steps_fault" "../../sql/steps/fault.sql",
    "steps_refusals" "../../sql/steps/refusals.sql",
    "steps_answer_of" "../../sql/steps/answer_of.sql",
    "steps_recall" "../../sql/steps/recall.sql",
    "steps_claim" "../../sql/steps/claim.sql",
    "steps_prepare_fault" "../../sql/steps/prepare_fault.sql",
    "steps_queue_pruning" "../../sql/steps/queue_pruning.sql",
    "steps_apply_deltas" "../../sql/steps/apply_deltas.sql",
    "steps_emit" "../../sql/steps/emit.sql",
    "steps_finish" "../../sql/steps/finish.sql",
    "steps_is_empty" "../../sql/steps/is_empty.sql",
    "steps_bury" "../../sql/steps/bury.sql",
    "steps_sides" "../../sql/steps/sides.sql",
    "verbs_allocate_ids" "../../sql/verbs/allocate_ids.sql",
    "verbs_create_namespace" "../../sql/verbs/create_namespace.sql",
    "verbs_delete_namespace" "../../sql/verbs/delete_namespace.sql",
    "verbs_mkdir" "../../sql/verbs/mkdir.sql",
    "verbs_rmdir" "../../sql/verbs/rmdir.sql",
    "verbs_put_object" "../../sql/verbs/put_object.sql",
    "verbs_delete_object" "../../sql/verbs/delete_object.sql",
    "verbs_rename_object" "../../sql/verbs/rename_object.sql",
    "verbs_rename_objects" "../../sql/verbs/rename_objects.sql",
    "verbs_set_attributes" "../../sql/verbs/set_attributes.sql",
    "verbs_rename_directory" "../../sql/verbs/rename_directory.sql",
    "verbs_rename_directories" "../../sql/verbs/rename_directories.sql",
    "verbs_remove_tree" "../../sql/verbs/remove_tree.sql",
    "verbs_abort_rename" "../../sql/verbs/abort_rename.sql",
    "verbs_raise_epoch" "../../sql/verbs/raise_epoch.sql",
    "reads_index_group" "../../sql/reads/index_group.sql",
    "reads_replay" "../../sql/reads/replay.sql",
    "reads_namespaces" "../../sql/reads/namespaces.sql",
    "reads_stat" "../../sql/reads/stat.sql",
    "reads_dirstat" "../../sql/reads/dirstat.sql",
    "reads_list" "../../sql/reads/list.sql",
    "reads_list_tree" "../../sql/reads/list_tree.sql",
    "reads_resolve_path" "../../sql/reads/resolve_path.sql",
    "reads_usage" "../../sql/reads/usage.sql",
    "reads_shard_map" "../../sql/reads/shard_map.sql",
    "reads_index_sources" "../../sql/reads/index_sources.sql",
    "reads_index_namespaces" "../../sql/reads/index_namespaces.sql",
    "reads_operation" "../../sql/reads/operation.sql",
    "reads_unused_locators" "../../sql/reads/unused_locators.sql",
    "reads_directories" "../../sql/reads/directories.sql",
    "import_import_distributed" "../../sql/import/import_distributed.sql",
    "import_import_directories" "../../sql/import/import_directories.sql",
    "import_import_objects" "../../sql/import/import_objects.sql",
    "analysts_resolve" "../../sql/analysts/resolve.sql",
    "analysts_path_of" "../../sql/analysts/path_of.sql",
    "analysts_ls" "../../sql/analysts/ls.sql",
    "analysts_tree" "../../sql/analysts/tree.sql",
    "analysts_du" "../../sql/analysts/du.sql",
    "analysts_find" "../../sql/analysts/find.sql",
    "analysts_top_dirs" "../../sql/analysts/top_dirs.sql",
    "analysts_hot_dirs" "../../sql/analysts/hot_dirs.sql",
    "analysts_export_inventory" "../../sql/analysts/export_inventory.sql",
    "analysts_size_histogram" "../../sql/analysts/size_histogram.sql",
    "analysts_small_objects" "../../sql/analysts/small_objects.sql",
    "analysts_depth_distribution" "../../sql/analysts/depth_distribution.sql",
    "analysts_growth_by_day" "../../sql/analysts/growth_by_day.sql",
    "analysts_stale_data" "../../sql/analysts/stale_data.sql",
    "analysts_duplicates" "../../sql/analysts/duplicates.sql",
    "analysts_check" "../../sql/analysts/check.sql",
    "monitor_delta_backlog" "../../sql/monitor/delta_backlog.sql",
    "monitor_latches" "../../sql/monitor/latches.sql",
    "monitor_index_slots" "../../sql/monitor/index_slots.sql",
    "monitor_standby_flush" "../../sql/monitor/standby_flush.sql",
    "monitor_backlogs" "../../sql/monitor/backlogs.sql",
    "admin_compact" "../../sql/admin/compact.sql",
    "admin_prune" "../../sql/admin/prune.sql",
    "admin_empty_trash" "../../sql/admin/empty_trash.sql",
    "admin_purge" "../../sql/admin/purge.sql",
    "admin_run_maintenance" "../../sql/admin/run_maintenance.sql",
    "admin_distribute" "../../sql/admin/distribute.sql",
    "admin_check_cluster" "../../sql/admin/check_cluster.sql",
    "admin_create_restore_point" "../../sql/admin/create_restore_point.sql",
    "admin_index_groups" "../../sql/admin/index_groups.sql",
    "admin_move_namespace" "../../sql/admin/move_namespace.sql",
    "admin_grant_namespace" "../../sql/admin/grant_namespace.sql",
    "native" "../../sql/native.sql",
}

// Policies name a function written in Rust, so they come after it.
pgrx::extension_sql_file!(
    "../../sql/analysts/row_security.sql",
    name = "analysts_row_security",
    requires = ["tables_namespaces", row_security::may_read]
);
