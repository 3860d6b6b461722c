"""A whole Mantle on one machine: PostgreSQL, PgBouncer, three IndexNode replicas and a gateway, all on loopback.

Invariant: a stack owns one directory and about ten ports, and touches nothing else. It ends only processes whose pid
and start time it wrote down. A start that fails ends what it started and leaves the data as it was.
Why: the same code serves `make run`, `make test` and the fault tests, which must kill single replicas. It needs only
what a fresh Debian has (Python 3.11's standard library).
"""
