//! Every SQL string of the command line. All are calls of the extension's functions: the role needs EXECUTE only.

/// Namespace by name: its id. No row when it does not exist.
pub const NAMESPACE: &str = "SELECT ns FROM mantle.namespace($1)";

/// A block of ids: first and last.
pub const ALLOCATE_IDS: &str = "SELECT first_id, last_id FROM mantle.allocate_ids($1, $2)";

/// Directories, parents first: principal, ns, pid[], name[] (with their slash), id[]. A row for each one not inserted.
pub const IMPORT_DIRECTORIES: &str = "SELECT ord, code, id FROM mantle.import_directories($1, $2, $3, $4, $5)";

/// Entries by place: ns, pid[], name[]. A row for each, with the id of those that exist.
pub const STAT: &str = "SELECT ord, id FROM mantle.stat($1, $2, $3)";

/// Explicit directories: principal, ns, pid[], name[], id[], owner[], group[], mode[], explicit[], metadata[], request
/// id[], hash[].
pub const MKDIR: &str = "SELECT ord, code FROM mantle.mkdir($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// Objects: principal, ns, pid[], name[], size[], first id, synthetic, modified.
pub const IMPORT_OBJECTS: &str = "SELECT inserted, existing, refused_ord, refused_code \
     FROM mantle.import_objects($1, $2, $3, $4, $5, $6, $7, $8)";

/// Nodes that have directories; none without Citus.
pub const NODES: &str = "SELECT DISTINCT host, port FROM mantle.shard_map()";

/// A node's number among those that feed the index, and the position up to which its WAL is flushed: everything that this
/// program had acknowledged there is below it.
pub const FLUSHED: &str = "SELECT mantle.index_source(), pg_current_wal_flush_lsn()";
