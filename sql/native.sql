-- The last file. PostgreSQL grants every new function to PUBLIC; this revokes that, and the grants of other files
-- stay. (Default privileges cannot do it: a schema's default privileges can only add to PUBLIC's.) An upgrade runs
-- this again, after the functions that it makes, in the same transaction (patroni/stack/upgrade.py).
REVOKE ALL ON ALL ROUTINES IN SCHEMA mantle FROM PUBLIC;

-- Functions written in Rust (extension/src). Analysts' functions run as their caller, so the functions that those call
-- are granted too.
GRANT EXECUTE ON FUNCTION mantle.entry_name_fault, mantle.unreached_directories, mantle.tree_rows, mantle.tree_keys,
    mantle.tree_depths, mantle.may_read TO mantle_analyst;
GRANT EXECUTE ON FUNCTION mantle.lineage, mantle.lease TO mantle_gateway;
GRANT EXECUTE ON FUNCTION mantle.mutation_fault_code TO mantle_gateway, mantle_index, mantle_monitor;
GRANT EXECUTE ON FUNCTION mantle.worker_steps_now TO mantle_monitor;
