-- The types that steps of verbs pass to each other.

--- One operation of the change stream: a directory's whole record, put or removed. `removed` NULL: one part of a
--- change across nodes, in `pid`
CREATE TYPE mantle.directory_change AS (
    removed boolean, ns bigint, pid bigint, name text, id bigint, version bigint, owner int, grp int, mode int,
    principal int, request uuid
);

--- What one change adds to a directory's counts
CREATE TYPE mantle.delta AS (ns bigint, pid bigint, entries bigint, subdirectories bigint, bytes bigint);

--- What a verb did with one element: its answer, and what remains to emit and to count
CREATE TYPE mantle.outcome AS (
    code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn, old_locator text,
    change mantle.directory_change, delta mantle.delta
);

--- What a change that spans directories reads of a place, under its latch (P21): see mantle.read_place_delegated
-- `opposite`: an entry of the other kind, directory or object, has this name.
-- `removed`: the directory was removed. `epoch`: of the given index group, if that group serves the namespace.
-- `permission`: the directory's, if it was ever changed (P56).
CREATE TYPE mantle.place_state AS (
    entry mantle.meta, opposite boolean, removed boolean, epoch bigint, permission text
);
