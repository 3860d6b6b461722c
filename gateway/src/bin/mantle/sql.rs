//! Every SQL string of the command line. Nearly all call the extension's functions, so the role needs only EXECUTE. `fsck`
//! reads tables, as an analyst.

/// No row when it does not exist.
pub const NAMESPACE: &str = "SELECT ns FROM mantle.namespace($1)";
/// The index group of a namespace; NULL when it does not exist.
pub const ASSIGNMENT: &str = "SELECT index_group FROM mantle.assignment($1)";
/// Begins a namespace's move to an index group; answers its phase.
pub const MOVE_NAMESPACE: &str = "SELECT mantle.move_namespace($1, $2)";
/// Undoes a move; answers its phase.
pub const ABORT_MOVE: &str = "SELECT mantle.abort_move($1)";
/// Namespaces and their groups; for one that moves also the other group and the phase.
pub const NAMESPACE_GROUPS: &str = "SELECT name, index_group, other_group, move_phase FROM mantle.namespace_groups()";
pub const NAMESPACE_GROUP: &str = "SELECT index_group, move_phase FROM mantle.namespace_groups() WHERE name = $1";
/// A block of ids: first and last.
pub const ALLOCATE_IDS: &str = "SELECT first_id, last_id FROM mantle.allocate_ids($1, $2)";
/// Directories, parents first: principal, ns, pid[], name[] (with their slash), id[]. A row for each one not inserted.
pub const IMPORT_DIRECTORIES: &str = "SELECT ord, code, id FROM mantle.import_directories($1, $2, $3, $4, $5)";
/// Permits keys of this size: ns, components, bytes.
pub const RAISE_KEY_SIZE: &str = "SELECT mantle.raise_key_size($1, $2, $3)";
/// Directories by place: ns, pid[], name[] (with their slash). A row for each that exists, with its id.
pub const IMPORT_KNOWN: &str = "SELECT ord, id FROM mantle.import_known($1, $2, $3)";
/// Makes directories explicit: principal, ns, pid[], name[] (with their slash), id[] of those that have to be made.
pub const IMPORT_EXPLICIT: &str = "SELECT ord, code FROM mantle.import_explicit($1, $2, $3, $4, $5)";
/// Objects: principal, ns, pid[], name[], size[], first id, synthetic, modified.
pub const IMPORT_OBJECTS: &str = "SELECT inserted, existing, refused_ord, refused_code \
     FROM mantle.import_objects($1, $2, $3, $4, $5, $6, $7, $8)";
/// Nodes that have directories; none without Citus.
pub const NODES: &str = "SELECT DISTINCT host, port FROM mantle.shard_map()";
/// A node's number as a source, and its flush position. Everything that the node has acknowledged is below it.
pub const FLUSHED: &str = "SELECT mantle.index_source(), pg_current_wal_flush_lsn()";
/// Whether the role sees every directory. Row-level security hides namespaces that were not granted to an analyst.
pub const SEES_ALL: &str = "SELECT NOT row_security_active('mantle.meta') OR mantle.may_read(0)";
pub const NAMESPACES_OF_GROUP: &str = "SELECT ns FROM mantle.namespaces WHERE index_group = $1";
/// A bounded number of directory ids of some namespaces, after an id, in order.
pub const DIRECTORIES_AFTER: &str =
    "SELECT id FROM mantle.meta WHERE explicit IS NOT NULL AND id > $1 AND ns = ANY ($2) ORDER BY id LIMIT $3";
/// Directories by id. A name in the table ends in a slash, in the index it does not.
pub const DIRECTORIES: &str = "SELECT ns, pid, left(name, -1), id, version, owner, grp, mode FROM mantle.meta \
     WHERE explicit IS NOT NULL AND id = ANY ($1)";
/// Problems of TafDB's own tables.
pub const CHECK: &str = "SELECT problem::text, ns, pid, name, detail FROM mantle.check()";
/// The volumes of the objects' bytes.
pub const VOLUME_STATUS: &str = "SELECT volume, name, state, mounted, mount_epoch, block_bytes, segment_blocks, segments, leased, \
     released, unused, is_current FROM mantle.volume_status() ORDER BY volume";
/// What small objects inside PostgreSQL take on disk.
pub const INLINE_USAGE: &str = "SELECT mantle.inline_usage()";
pub const CLUSTER_ID: &str = "SELECT mantle.cluster_id()";
/// What objects and parts name from a text on, up to another one. In byte order, as both columns have.
pub const LOCATORS_BETWEEN: &str = "SELECT locator FROM mantle.meta WHERE locator >= $1 AND locator < $2 \
     UNION SELECT locator FROM mantle.extents WHERE locator >= $1 AND locator < $2";
pub const IS_NAMED: &str = "SELECT EXISTS (SELECT FROM mantle.meta WHERE locator = $1) \
     OR EXISTS (SELECT FROM mantle.extents WHERE locator = $1)";
pub const OBJECTS_OF_LOCATOR: &str =
    "SELECT format('%s/%s/%s', ns, pid, name) FROM mantle.meta WHERE locator = $1 AND name IS NOT NULL LIMIT 20";
