"""Every alert is raised by some fault of the catalogue, or says why none raises it."""

from tests.support import monitoring

from .alerts import UNPROVOKED, shorter
from .catalogue import CATALOGUE


def test_every_alert_has_a_fault() -> None:
    named = {name for fault in CATALOGUE if isinstance(fault.alerts, tuple) for name in fault.alerts}
    assert named | UNPROVOKED.keys() == {rule["alert"] for rule in monitoring.rules()}
    assert named & UNPROVOKED.keys() == set()


def test_every_fault_names_its_alerts_or_a_reason() -> None:
    assert [fault.name for fault in CATALOGUE if not fault.alerts] == []


def test_durations_are_shortened() -> None:
    rule = {"alert": "a", "expr": "increase(x[15m]) > 0 and y[30s]", "for": "1h"}
    (short,) = shorter({"groups": [{"rules": [rule]}]})["groups"][0]["rules"]
    assert (short["expr"], short["for"]) == ("increase(x[60s]) > 0 and y[4s]", "20s")
