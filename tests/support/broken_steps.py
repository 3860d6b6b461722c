"""Steps of the extension that a test breaks on purpose. The suites must notice each of them."""

from dataclasses import dataclass

import psycopg

from .sql_wrappers import wrap


@dataclass(frozen=True)
class BrokenStep:
    """Statements put before some steps."""

    name: str
    steps: tuple[str, ...]
    before: str


# Extension functions answer NULL when they find no fault.
NO_BATCH_LATCH = BrokenStep("no_batch_latch", ("latch_batch",), "RETURN NULL;")
NO_ENTRY_LATCH = BrokenStep("no_entry_latch", ("latch_entries",), "RETURN NULL;")
NO_LATCH = BrokenStep("no_latch", ("latch_batch", "latch_entries"), "RETURN NULL;")
NO_COMPACTION_LATCH = BrokenStep("no_compaction_latch", ("latch_pids",), "RETURN NULL;")
NO_EPOCH_LATCH = BrokenStep("no_epoch_latch", ("latch_epoch",), "RETURN NULL;")
NO_SEGMENT_LATCH = BrokenStep("no_segment_latch", ("latch_segments",), "RETURN NULL;")
# A removed directory looks like a live one that has no counts yet.
NO_TOMBSTONE = BrokenStep(
    "no_tombstone", ("write_tombstone",), "DELETE FROM mantle.meta m WHERE m.pid = $2 AND m.name = '/_ATTR'; RETURN;"
)
NO_LOOK_INSIDE = BrokenStep("no_look_inside", ("is_empty",), "RETURN true;")
# Ignores whether the request's row existed.
ANY_CLAIM = BrokenStep(
    "any_claim",
    ("record_request",),
    "PERFORM mantle.record_request_wrapped_1($1, $2, $3, $4, $5, $6, $7, $8); RETURN true;",
)
NO_PRUNING_LATCH = BrokenStep("no_pruning_latch", ("try_latch_exclusive", "try_latch_name"), "RETURN true;")
# A row may be written to another node than its message.
NO_PLACEMENT_CHECK = BrokenStep("no_placement_check", ("placement_fault",), "RETURN NULL;")
# A change in parts may be latched on one node and written on another.
NO_PLACEMENTS_CHECK = BrokenStep("no_placements_check", ("placements_fault",), "RETURN NULL;")
LOST_COUNTS = BrokenStep("lost_counts", ("add_counts", "apply_deltas"), "IF random() < 0.02 THEN RETURN; END IF;")
# Without its checks, a session may commit without waiting for the flush, so an acknowledged change can be lost. For one
# session.
NO_COMMIT_CHECK = BrokenStep(
    "no_commit_check",
    (
        "batch_fault",
        "mutation_fault_code",
        "latch_batch",
        "latch_entries",
        "latch_pids",
        "latch_epoch",
        "emit_directories",
    ),
    "RETURN NULL;",
)


def break_steps(connection: psycopg.Connection, broken: BrokenStep) -> None:
    """Call it before the failpoints, which wrap the broken steps."""
    for step in broken.steps:
        wrap(connection, step, f"broken_steps.{broken.name}", before=broken.before)
