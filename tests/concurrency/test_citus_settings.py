"""Settings of a service's role on Citus: pinned on every node, because a session has the settings of its node."""

import psycopg
import pytest

from stack import citus

from .distributed import CitusTarget, distributed_target

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

ROLE = "pinned_service"
CONFIGURED = """SELECT count(*) FROM pg_db_role_setting d CROSS JOIN unnest(d.setconfig)
                 WHERE d.setrole = %s::regrole AND d.setdatabase <> 0"""


@pytest.fixture
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_settings") as target:
        target.on_all_nodes(lambda node: node.execute(f"CREATE ROLE {ROLE} LOGIN IN ROLE mantle_gateway"))
        yield target
        target.on_all_nodes(lambda node: node.execute(f"DROP ROLE {ROLE}"))


def on_each(target: CitusTarget, query: str, *parameters) -> list:
    found = []
    target.on_all_nodes(lambda node: found.append(node.execute(query, parameters).fetchone()[0]))
    return found


def named(coordinator: psycopg.Connection) -> list[tuple[int, str]]:
    """What check_cluster says of the role's settings, by the port of the node."""
    rows = coordinator.execute("SELECT node, detail FROM mantle.check_cluster() WHERE problem = 'settings'").fetchall()
    return [(int(node.rsplit(":", 1)[1]), detail) for node, detail in rows if f"role {ROLE} " in detail]


@pytest.mark.timeout(120)
def test_settings_are_pinned_on_every_node(target):
    with target.coordinator() as coordinator:
        assert on_each(target, CONFIGURED, ROLE) == [0, 0, 0]
        coordinator.execute("SELECT mantle.pin_settings(%s)", (ROLE,))
        # Those of plpgsql are there once it is loaded.
        found = "SELECT count(*), count(*) FILTER (WHERE setting ~ '^citus') FROM mantle.pinned_settings()"
        pinned, of_citus = coordinator.execute(found).fetchone()
        assert pinned > of_citus > 0
        assert on_each(target, CONFIGURED, ROLE) == [pinned] * 3
        assert named(coordinator) == []


@pytest.mark.timeout(120)
def test_a_setting_of_one_node_is_named(target):
    node = target.all[2]
    with target.coordinator() as coordinator, psycopg.connect(**node, autocommit=True) as there:
        there.execute("SET citus.enable_ddl_propagation = off")
        there.execute(f"ALTER DATABASE {target.database} SET default_transaction_isolation = 'serializable'")
        ((port, detail),) = named(coordinator)
        assert port == int(node["port"]) and "default_transaction_isolation = 'serializable'" in detail
        coordinator.execute("SELECT mantle.pin_settings(%s)", (ROLE,))
        assert named(coordinator) == []
        there.execute(f"ALTER DATABASE {target.database} RESET ALL")
