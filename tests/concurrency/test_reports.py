"""What a leader reports of index replicas while commits wait for a synchronous standby that is not there."""

import psycopg
import pytest

from .server import SuiteServer

REPORT = '[{"node_id": "2", "address": "10.0.0.2:7410", "problem": "not ready"}]'


@pytest.mark.timeout(60)
def test_a_report_does_not_wait_for_a_standby(running_server: SuiteServer, make_target):
    """check_cluster tells of both."""
    target = make_target("reports")
    with target.connect() as leader, running_server.without_standby():
        leader.execute("SELECT mantle.report_index_replicas(1, %s)", (REPORT,))
        assert {"standby", "index_replica"} <= problems(leader)
        leader.execute("SELECT mantle.report_index_replicas(1, '[]')")
        assert "index_replica" not in problems(leader)
    with target.connect() as leader:
        assert "standby" not in problems(leader)


def problems(session: psycopg.Connection) -> set[str]:
    found = session.execute("SELECT problem FROM mantle.check_cluster() WHERE problem <> 'open_namespace'").fetchall()
    return {problem for (problem,) in found}
