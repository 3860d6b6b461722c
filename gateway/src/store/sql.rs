//! Every SQL string of the gateway's process; the command line has `bin/mantle/sql.rs`. Each call is one statement,
//! nearly always of one function. So it is its own transaction in one round trip, without BEGIN and COMMIT. Invariant
//! (P45): a standby answers none of them. It refuses writes (25006), and reads ask for the end of its WAL (55000). All
//! functions, operators and types name their schema, because the search_path may have any value. (IN, LIKE, BETWEEN,
//! CASE x WHEN and IS DISTINCT FROM hide an operator.)

use mantle_types::verbs;

pub struct Statement {
    /// The verb's name, in metrics and logs.
    pub name: &'static str,
    /// With parameters `$1` and so on.
    pub text: &'static str,
    /// Mutations are never cancelled, and their retries carry the request id.
    pub mutates: bool,
    /// After a lost connection it is not sent again: its answer would be lost with the first one, or it has no request id and
    /// would undo what was done since.
    pub is_sent_once: bool,
}

macro_rules! statements {
    ($($(#[$doc:meta])* $id:ident $name:literal $kind:ident $text:literal $(then $tail:literal)? $(of $verb:ident)?;)*) => {
        $($(#[$doc])* pub const $id: Statement = statements!(@ $kind $name $text $($tail)? $($verb)?);)*

        /// The names of all.
        pub const NAMES: &[&str] = &[$($name),*];

        #[cfg(test)]
        const ALL: &[Statement] = &[$($id),*];
    };
    // Evaluated once, before anything is read: the condition depends on no row.
    (@ read $name:literal $text:literal $($tail:literal)?) => {
        Statement {
            name: $name,
            text: concat!($text, " WHERE (SELECT pg_catalog.pg_current_wal_flush_lsn()) IS NOT NULL", $(" ", $tail)?),
            mutates: false,
            is_sent_once: false,
        }
    };
    // A call whose rows are records (`record.rs`). Without a table the condition is evaluated once.
    (@ records $name:literal $call:literal) => {
        Statement {
            name: $name,
            text: concat!("SELECT ", $call, " WHERE pg_catalog.pg_current_wal_flush_lsn() IS NOT NULL"),
            mutates: false,
            is_sent_once: false,
        }
    };
    // A batch verb: the columns of its rows, and its call with a parameter for each argument.
    (@ batch $name:literal $columns:literal $verb:ident) => {
        Statement {
            name: $name,
            text: mantle_types::joined!("SELECT ", $columns, " FROM ", verbs::$verb::CALL),
            mutates: true,
            is_sent_once: false,
        }
    };
    (@ change $name:literal $text:literal) => {
        Statement { name: $name, text: $text, mutates: true, is_sent_once: false }
    };
    (@ once $name:literal $text:literal) => { Statement { name: $name, text: $text, mutates: true, is_sent_once: true } };
}

statements! {
    PING "ping" read "SELECT 1";
    ALLOCATE_IDS "allocate_ids" change
        "SELECT first_id, last_id, mantle.lineage() AS lineage FROM mantle.allocate_ids($1, $2)";
    PRUNE_TREE "prune_tree" change "SELECT state FROM mantle.prune_tree($1, $2)";
    SHARD_MAP "shard_map" read "SELECT hash_from, host, port FROM mantle.shard_map()";
    /// An index group's and one node's part of the resolution context.
    RESOLUTION_CONTEXT "terms" read
        "SELECT g.epoch, mantle.assignment_changes($1) AS changes, mantle.lineage() AS lineage, mantle.index_source() AS source, \
                (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint AS clock_us, \
                pg_catalog.current_setting('mantle.epoch_lease_ms')::bigint AS lease_ms \
         FROM mantle.index_group($1) g";
    /// The node's number as a source, and the end of its WAL.
    FLUSHED "flushed" read "SELECT mantle.index_source() AS source, pg_catalog.pg_current_wal_flush_lsn() AS lsn";
    /// Parts of changes on two nodes that this node has prepared, and not committed or rolled back yet.
    PREPARED "prepared" read
        "SELECT ARRAY(SELECT gid FROM pg_catalog.pg_prepared_xacts \
                       WHERE database OPERATOR(pg_catalog.=) pg_catalog.current_database() \
                         AND pg_catalog.starts_with(gid, 'citus_')) AS gids";
    /// Whether some of these parts are still prepared.
    ARE_PREPARED "are_prepared" read
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts WHERE gid OPERATOR(pg_catalog.=) ANY ($1)) AS are_left";
    /// Roles that may emit messages into the change stream, except superusers and owners.
    EMIT_GRANTS "forgers" read
        "SELECT ARRAY( \
             SELECT DISTINCT coalesce(r.rolname::pg_catalog.text, 'PUBLIC') \
               FROM pg_catalog.pg_proc p CROSS JOIN LATERAL pg_catalog.aclexplode( \
                        coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a \
               LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) a.grantee \
              WHERE p.proname OPERATOR(pg_catalog.=) 'pg_logical_emit_message' \
                AND p.pronamespace OPERATOR(pg_catalog.=) (SELECT n.oid FROM pg_catalog.pg_namespace n \
                                                            WHERE n.nspname OPERATOR(pg_catalog.=) 'pg_catalog') \
                AND a.privilege_type OPERATOR(pg_catalog.=) 'EXECUTE' AND a.grantee OPERATOR(pg_catalog.<>) p.proowner \
                AND NOT coalesce(r.rolsuper, false) \
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_extension e \
                                 WHERE e.extname OPERATOR(pg_catalog.=) 'mantle' \
                                   AND e.extowner OPERATOR(pg_catalog.=) a.grantee) \
              ORDER BY 1) AS roles";
    /// The node's number as a source (0 for a coordinator that is none), and what is wrong with its background worker.
    WORKER_PROBLEMS "worker_problems" read
        "SELECT coalesce(mantle.index_source(), 0) AS source, ARRAY(SELECT p FROM mantle.worker_problems() AS p) AS problems";
    /// The node's number as above, and what delays its server or is used up: kinds, culprits and details.
    SERVER_PROBLEMS "server_problems" read
        "SELECT coalesce(mantle.index_source(), 0) AS source, \
                coalesce(pg_catalog.array_agg(p.problem ORDER BY p.problem, p.culprit, p.detail), '{}') AS problems, \
                coalesce(pg_catalog.array_agg(p.culprit ORDER BY p.problem, p.culprit, p.detail), '{}') AS culprits, \
                coalesce(pg_catalog.array_agg(p.detail ORDER BY p.problem, p.culprit, p.detail), '{}') AS details \
         FROM mantle.server_problems() AS p";
    /// Why the node refuses mutations of this session, and of new ones.
    REFUSALS "refusals" read
        "SELECT mantle.mutation_fault_code() AS code, \
                ARRAY(SELECT s.problem FROM mantle.setting_problems(session_user) AS s WHERE s.refuses) AS problems";
    /// Whether a new session would accept mutations; if this one does not, it ends.
    END_STALE_SESSION "end_stale_session" read "SELECT mantle.end_stale_session() AS is_sound";
    /// Ends the session if it cancels statements within a second. Only little can run in a millisecond, so this does
    /// nothing else.
    END_CUTTING_SESSION "end_cutting_session" read
        "SELECT CASE WHEN pg_catalog.current_setting('statement_timeout') OPERATOR(pg_catalog.~) '^[1-9][0-9]{0,2}ms$' \
                     THEN pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid()) ELSE false END";
    /// How far each path exists, and whether an object has the name where it ends early. No component has a slash.
    RESOLVE_PATHS "resolve_paths" read
        "SELECT r.ns, r.depth, r.id, r.parent_id, r.version, r.chain_owner, r.chain_grp, r.chain_mode, \
                CASE WHEN r.depth OPERATOR(pg_catalog.<) pg_catalog.cardinality(c.components) \
                     THEN EXISTS (SELECT FROM mantle.stat(r.ns, ARRAY[r.id], \
                                                          ARRAY[c.components[r.depth OPERATOR(pg_catalog.+) 1]]) s \
                                   WHERE s.code IS NULL) \
                     ELSE false END AS is_object \
         FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY q (namespace, path, ord) \
         CROSS JOIN LATERAL pg_catalog.string_to_array(q.path, '/') c (components) \
         LEFT JOIN LATERAL mantle.resolve_path(q.namespace, c.components) r ON true" then "ORDER BY q.ord";
    /// The recorded answer of a request in the namespace of a name.
    REPLAY "replay" read
        "SELECT n.ns, r.known AS found, r.code, r.id, r.version \
         FROM mantle.namespace($2) n CROSS JOIN LATERAL mantle.replay($1, n.ns, $3, $4) r";
    /// The same by the rows of one node, and where it has searched.
    REPLAY_LOCAL "replay_local" read
        "SELECT n.ns, r.placements, r.searched, r.known AS found, r.code, r.id, r.version \
         FROM mantle.namespace($2) n CROSS JOIN LATERAL mantle.replay_local($1, n.ns, $3, $4) r";
    /// The recorded answer of a request that creates or deletes a namespace: its key has namespace 0.
    REPLAY_NAMESPACE "replay_namespace" read
        "SELECT 0::bigint AS ns, r.known AS found, r.code, r.id FROM mantle.replay($1, 0, $2, $3) r";
    /// The same by the rows of one node.
    REPLAY_NAMESPACE_LOCAL "replay_namespace_local" read
        "SELECT 0::bigint AS ns, r.placements, r.searched, r.known AS found, r.code, r.id \
         FROM mantle.replay_local($1, 0, $2, $3) r";
    CREATE_NAMESPACE "create_namespace" change
        "SELECT code, ns AS id, owner, replayed FROM mantle.create_namespace($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    SET_UMASK "set_umask" change "SELECT code FROM mantle.set_umask($1, $2, $3)";
    DELETE_NAMESPACE "delete_namespace" change
        "SELECT code, ns AS id, replayed FROM mantle.delete_namespace($1, $2, $3, $4)";
    /// Which index group serves each namespace; NULL without such a namespace.
    ASSIGNMENTS "assignments" read
        "SELECT a.index_group, a.also, a.changes FROM pg_catalog.unnest($1) WITH ORDINALITY q (name, ord) \
         LEFT JOIN LATERAL mantle.assignment(q.name) a ON true" then "ORDER BY q.ord";
    HOSTED_GROUPS "hosted_groups" read "SELECT index_group FROM mantle.hosted_groups()";
    LIST_NAMESPACES "list_namespaces" read "SELECT ns, name, owner, created FROM mantle.list_namespaces()";
    NAMESPACE "namespace" read "SELECT ns, name, owner, created FROM mantle.namespace($1)";
    MKDIR "mkdir" batch "ord, code, id, replayed" of mkdir;
    RMDIR "rmdir" batch "ord, code, id, replayed" of rmdir;
    RENAME_DIRECTORY "rename_directory" change
        "SELECT code, id, replayed \
         FROM mantle.rename_directory($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";
    /// Renames of one index group.
    RENAME_DIRECTORIES "rename_directories" change
        "SELECT ord, code, id, replayed \
         FROM mantle.rename_directory($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";
    RAISE_KEY_SIZE "raise_key_size" change "SELECT NULL FROM mantle.raise_key_size($1, $2, $3)";
    ADMIT_MOVE "admit_move" change "SELECT mantle.admit_move($1, $2, $3) AS is_admitted";
    LARGEST_BELOW "largest_below" read "SELECT levels, bytes FROM mantle.largest_below($1)";
    /// Of directories with entries: their longest names, and the directories in them.
    NAMES_BELOW "names_below" read "SELECT pid, longest, directories, lengths FROM mantle.names_below($1)";
    DIRECTORIES_BELOW "directories_below" read "SELECT id, owner, grp, mode FROM mantle.directories_below($1)";
    PUT_OBJECT "put_object" batch "ord, code, id, replayed, old_locator" of put_object;
    DELETE_OBJECT "delete_object" batch "ord, code, id, replayed, old_locator" of delete_object;
    RENAME_OBJECT "rename_object" change
        "SELECT code, id, replayed, old_locator \
         FROM mantle.rename_object($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
    COPY_OBJECT "copy_object" change
        "SELECT code, id, replayed, old_locator \
         FROM mantle.copy_object($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, \
                                 $21, $22)";
    CREATE_UPLOAD "create_upload" change
        "SELECT mantle.create_upload_delegated($1, $2, $3, $4, $5, $6, $7, $8, $9) AS code";
    PUT_PART "put_part" once
        "SELECT code, old_locators FROM mantle.put_part_delegated($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    COPY_PART "copy_part" change
        "SELECT code, old_locators \
         FROM mantle.copy_part($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
    CREATE_MANIFEST "create_manifest" once
        "SELECT mantle.create_manifest_delegated($1, $2, $3, $4, $5, $6, $7, $8) AS code";
    SEAL_UPLOAD "seal_upload" change
        "SELECT code, state, attempt, destination \
         FROM mantle.seal_upload_delegated($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    FENCE_REQUEST "fence_request" change "SELECT mantle.fence_request_delegated($1, $2, $3, $4) AS was_carried_out";
    UNSEAL_UPLOAD "unseal_upload" change "SELECT NULL FROM mantle.unseal_upload_delegated($1, $2)";
    FINISH_UPLOAD "finish_upload" change "SELECT mantle.finish_upload_delegated($1, $2) AS old_locators";
    ABORT_UPLOAD "abort_upload" change "SELECT code, old_locators FROM mantle.abort_upload_delegated($1, $2)";
    DROP_MANIFEST "drop_manifest" change "SELECT mantle.drop_manifest_delegated($1, $2) AS old_locators";
    UPLOAD "upload" read
        "SELECT id, key, principal, grp, content_type, user_metadata, checksum_algorithm, checksum_type, state, attempt, list_hash, \
                destination, etag, checksum, created FROM mantle.upload($1, $2)";
    LIST_UPLOADS "list_uploads" read
        "SELECT id, key, principal, grp, content_type, user_metadata, checksum_algorithm, checksum_type, state, attempt, list_hash, \
                destination, etag, checksum, created FROM mantle.list_uploads($1, $2, $3, $4, $5, $6)";
    ALL_UPLOADS "all_uploads" read
        "SELECT id, ns, namespace IS NOT NULL AS is_in_namespace, principal, state, attempt, destination, created, changed \
         FROM mantle.all_uploads($1, $2)";
    LIST_PARTS "list_parts" read "SELECT part, size, etag, checksum, created FROM mantle.list_parts($1, $2, $3)";
    UPLOAD_EXTENTS "upload_extents" read
        "SELECT part, extent, locator, start, length, etag FROM mantle.upload_extents($1, $2, $3, $4)";
    PART_OF_OBJECT "part_of_object" read "SELECT first_byte, size, checksum, parts FROM mantle.part_of_object($1, $2)";
    EXTENTS_BETWEEN "extents_between" read
        "SELECT locator, start, length, \"position\" FROM mantle.extents_between($1, $2, $3, $4)";
    UPLOAD_USAGE "upload_usage" read "SELECT uploads, bytes FROM mantle.upload_usage($1)";
    SET_ATTRIBUTES "set_attributes" batch "ord, code, id, replayed" of set_attributes;
    /// Entries by place, through Citus where another node has them.
    STAT "stat" records "mantle.stat($1, $2, $3)";
    /// The same of several namespaces, from this node alone.
    STAT_LOCAL "stat_local" records "mantle.stat_local($1, $2, $3, $4)";
    /// Bytes inside PostgreSQL.
    INLINE_BYTES "inline_bytes" read "SELECT b.bytes FROM mantle.inline_bytes($1, $2) AS b (bytes)";
    DIRSTAT "dirstat" read
        "SELECT code, entries, subdirectories, bytes FROM mantle.dirstat($1, $2)" then "ORDER BY ord";
    LIST "list" records "mantle.list($1, $2, $3, $4, $5)";
    /// The same without directories that hold no key.
    LIST_FILLED "list_filled" records "mantle.list_filled($1, $2, $3, $4, $5)";
    /// Pages of several directories, from this node alone.
    LIST_LOCAL "list_local" records "mantle.list_local($1, $2, $3, $4, $5, $6)";
    LIST_TREE "list_tree" records "mantle.list_tree($1, $2, $4, $3, $5, $6)";
    REGISTER_VOLUME "register_volume" change "SELECT mantle.register_volume($1, $2, $3, $4, $5) AS volume";
    /// The mount epoch of a volume.
    KNOWN_VOLUME "known_volume" read "SELECT mount_epoch FROM mantle.volume($1)";
    MOUNT_VOLUME "mount_volume" change "SELECT NULL FROM mantle.mount_volume($1, $2, $3, $4, $5, $6, $7)";
    LEASE_SEGMENTS "lease_segments" once
        "SELECT segment, epoch, was_used FROM mantle.lease_segments($1, $2, $3, $4)";
    TAKE_OVER_SEGMENTS "take_over_segments" once
        "SELECT segment, epoch, true AS was_used FROM mantle.take_over_segments($1, $2, $3)";
    VOLUME_NODES "volume_nodes" read "SELECT volume_nodes AS at FROM mantle.volume_nodes()";
    ADMIT_SEGMENTS "admit_segments" change "SELECT NULL FROM mantle.admit_segments($1, $2, $3, $4, $5)";
    SEGMENT_LOCATORS "segment_locators" read
        "SELECT locator, freed FROM mantle.segment_locators($1, $2, $3, $4, $5)";
    NAMED_LOCATORS "named_locators" read "SELECT locator FROM mantle.named_locators($1, $2, $3, $4)";
    TAKE_FREED "take_freed" once
        "SELECT horizon, locators FROM mantle.take_freed_delegated($1, $2, $3, $4, $5, $6)";
    FORGET_FREED "forget_freed" change "SELECT mantle.forget_freed_delegated($1, $2, $3, $4) AS count";
    SHARED_FREED "shared_freed" change "SELECT mantle.shared_freed_delegated($1, $2) AS locators";
    SETTLE_SHARED "settle_shared" change "SELECT mantle.settle_shared_delegated($1, $2, $3, $4) AS count";
    REPLACE_LOCATOR "replace_locator" once
        "SELECT code, old_locator FROM mantle.replace_locators_delegated($1, ARRAY[$2::text], ARRAY[$3::bigint], ARRAY[$4::text], \
                ARRAY[$5::text], ARRAY[$6::bytea], $7)";
    REPLACE_EXTENTS "replace_extents" once
        "SELECT code, old_locators FROM mantle.replace_extents_delegated($1, $2, $3, $4, $5, $6)";
    LINEAGE "lineage" read "SELECT mantle.lineage() AS lineage";
    /// The identity of the metadata database.
    CLUSTER_ID "cluster_id" read "SELECT mantle.cluster_id() AS cluster_id";
    /// The locators that no object names.
    UNUSED_LOCATORS "unused_locators" read "SELECT locator FROM mantle.unused_locators($1)";
    /// A directory, and those below it down to a depth. Byte order puts each directory after its ancestors.
    USAGE "usage" read
        "SELECT directory, objects, directories, bytes, owner, grp, mode \
         FROM mantle.usage($1, $2, $3)" then "ORDER BY directory COLLATE pg_catalog.\"C\" LIMIT $4";
    REMOVE_TREE "remove_tree" change
        "SELECT code, id, replayed \
         FROM mantle.remove_tree($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
    OPERATION "operation" read
        "SELECT id, ns, kind, state, directory_id, objects, directories, bytes, created, finished \
         FROM mantle.operation($1, $2)";
}

#[cfg(test)]
mod tests {
    use super::ALL;

    /// Citus sends a call to the node of its first argument only if the statement is nothing but the call. With a condition it would
    /// run on the coordinator, which has none of that node's rows.
    #[test]
    fn a_call_for_a_node_has_no_condition() {
        let calls: Vec<_> = ALL.iter().filter(|statement| statement.text.contains("_delegated(")).collect();
        assert!(!calls.is_empty());
        for statement in calls {
            assert!(!statement.text.contains(" WHERE "), "{}", statement.text);
        }
    }
}
