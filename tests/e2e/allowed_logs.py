"""Warnings and errors that correct work produces: (service or *, pattern, reason). All others fail the test."""

# In any test.
ALLOWED: list[tuple[str, str, str]] = [
    (
        "indexnode",
        r"source::reader: PostgreSQL has no synchronous standby",
        "a stack on one machine has one PostgreSQL",
    ),
    (
        "indexnode",
        r"heartbeat::worker.*Elapsed",
        "a busy machine is late with a heartbeat; the next one follows, and lateness alone elects nobody",
    ),
    (
        "postgresql",
        r"index@mantle FATAL:  connection to client lost",
        "a leader that lost leadership on a busy machine leaves its change stream",
    ),
    (
        "postgresql",
        r"gateway@mantle FATAL:  connection to client lost",
        "a gateway that stops does not wait for the reads of its background tasks",
    ),
    (
        "gateway",
        r"could not remove bytes; the sweeper will.*task \d+ was cancelled",
        "a gateway that stops does not wait for files that it removes",
    ),
    (
        "postgresql",
        r"FATAL:  terminating background worker .mantle worker. due to administrator command",
        "a server that is stopped while its worker runs a statement",
    ),
]

# Only in tests marked `faults`, which kill and wipe services.
ALLOWED_IN_FAULTS: list[tuple[str, str, str]] = [
    (
        "indexnode",
        r"WARN openraft::.*(Unreachable|transport error|tcp connect error)",
        "Raft says that a killed replica does not answer",
    ),
    (
        "indexnode",
        r"WARN openraft::.*(belongs to no cluster yet|another node is at this address)",
        "a wiped replica is not a member until it has joined",
    ),
    (
        "indexnode",
        r"source::leader: the change stream is interrupted",
        "a leader that lost leadership, or PostgreSQL; the next one continues",
    ),
    (
        "indexnode",
        r"source::stream: the change stream is read without its background tasks",
        "a session with PostgreSQL ended before its stream",
    ),
    (
        "indexnode",
        r"source::stream: epoch, cluster or slot of the group changed",
        "a cluster was founded anew, or PostgreSQL restored",
    ),
    (
        "postgresql",
        r"FATAL:  the database system is (starting up|shutting down|in recovery mode)",
        "clients are faster than a restart",
    ),
    (
        "postgresql",
        r"FATAL:  (connection to client lost|terminating connection due to administrator command)",
        "a killed client; a slot taken over",
    ),
    (
        "postgresql",
        r"FATAL:  (terminating connection due to unexpected postmaster exit|the database system is not yet accepting)",
        "kill -9",
    ),
    (
        "gateway",
        r"store::fault: the (connection broke|database is unavailable)",
        "PostgreSQL or PgBouncer was killed; the client is told 503",
    ),
    (
        "postgresql",
        r"(gateway|index)@mantle ERROR:  recovery is in progress",
        "a gateway, or an index, that found a standby, or a server that is being restored",
    ),
    ("indexnode", r"replication worker terminated with error: io error", "PostgreSQL was killed"),
    ("indexnode", r"ProgressResponder.complete_tx.send: is_ok: false", "the caller of a proposal was gone by its end"),
    (
        "indexnode",
        r"raft::raft_inner: .*(raft stopped|failed to receive from RaftCore)",
        "a request that arrives while its replica stops",
    ),
    (
        "indexnode",
        r"heartbeat::worker: .* failed to send HeartbeatProgress.* to RaftCore",
        "a heartbeat that is answered while its replica stops",
    ),
    (
        "pgbouncer",
        r"pooler error|login failed|got packet 'E' from server|server conn crashed|connect failed|varcache_apply",
        "PostgreSQL was killed",
    ),
]
