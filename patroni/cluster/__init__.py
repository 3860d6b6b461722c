"""A highly available Mantle on one machine: `make cluster`, and the faults that its tests cause.

Three etcd members. PostgreSQL under Patroni, each server with a PgBouncer beside it and each group with a synchronous
standby: a Citus coordinator and two workers where Citus is installed, else one group. Three IndexNode replicas and a
learner; two gateways; a store of the objects' bytes. Each runs on a *host*, a network namespace of its own. One bridge
joins the hosts, so a partition is a real one. Where namespaces are not permitted, hosts are loopback addresses and
cannot be cut off.

Invariant: the services are configured by the files in patroni/config/ that a DBA copies, and by times.toml. A cluster
owns one directory, its namespaces and one veth pair. It ends only processes that it wrote down itself. Processes,
secrets, the account and waiting come from `stack/`.
"""
