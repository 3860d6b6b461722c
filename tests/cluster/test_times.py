"""patroni/times.toml agrees with the settings and constants that it repeats, and a broken relation in it is noticed."""

import copy

import pytest

from cluster import times


def test_the_table_keeps_its_rules_and_tells_the_truth() -> None:
    assert times.differing_from_sources(times.read()) == []


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("patroni", "ttl_s", 10), ("patroni", "loop_wait_s", 15), ("patroni", "loop_wait_s", 1),
     ("etcd", "election_timeout_ms", 3000), ("indexnode", "election_timeout_ms", 200),
     ("compiled", "epoch_lease_s", 20), ("client", "retry_s", 30), ("haproxy", "fall", 40),
     ("pgbouncer", "query_wait_timeout_s", 1), ("indexnode", "lock_ms_max", 1000),
     ("postgresql", "client_silence_s", 20), ("citus", "node_silence_s", 15), ("citus", "node_connect_timeout_s", 20),
     ("gateway", "answer_wait_ms", 30_000), ("gateway", "answer_wait_ms", 6_000)],
)  # fmt: skip
def test_a_broken_relation_is_seen(section: str, name: str, value: int) -> None:
    broken = copy.deepcopy(times.read())
    broken[section][name] = value
    assert [why for holds, why in times.relations(broken) if not holds]
