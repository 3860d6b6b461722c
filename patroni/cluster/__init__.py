"""A highly available Mantle on one machine: `make cluster`, and what its tests break.

Three etcd members; PostgreSQL under Patroni, each server with a PgBouncer beside it (a Citus coordinator and two workers where
Citus is installed, else one group), each with a synchronous standby; three IndexNode replicas and a learner; two gateways.
Each stands on a *host*: a network namespace of its own, all joined by one bridge, so that a partition is a real one. Where
namespaces are not permitted the hosts are addresses of the loopback interface, and cannot be cut off.

Invariant: what runs is configured by the files in patroni/ that a DBA copies (etcd/, patroni/, haproxy/, pgbouncer/,
postgresql/, times.toml), filled in. A cluster owns one folder, its namespaces and one veth pair, and ends only processes that
it wrote down itself. Processes, secrets, the account, waiting: `stack/`, of which this is the sibling.
"""
