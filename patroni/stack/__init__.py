"""A whole Mantle on one machine: PostgreSQL, PgBouncer, three IndexNode replicas and a gateway, all on loopback.

Invariant: a stack owns one folder and one range of ten-odd ports, and nothing outside them. It ends only processes whose
pid and start time it wrote down itself. A start that fails ends what it started and leaves the data as it was.
Why a program of our own: the same code serves `make run`, `make test` and the fault tests, which must kill single
replicas, and it needs nothing that a fresh Debian does not have (Python 3.11's standard library).
"""
