"""Checks the alert rules with Prometheus' own promtool: they and Prometheus' settings are valid, every rule fires and
stays silent on the time series of alert_series.yml, and every rule leads to a heading of a page.

`make lint` runs it. promtool comes from Debian's package, which is unpacked and not installed.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

import yaml
from pages import anchors

from stack import packages

REPOSITORY = Path(__file__).resolve().parents[2]
MONITORING = REPOSITORY / "patroni" / "monitoring"
RULES = MONITORING / "alerts.yml"
SERIES = Path(__file__).with_name("alert_series.yml")
INTERVAL = "15s"
SEVERITIES = ("info", "warning", "critical")


class Text(yaml.SafeLoader):
    """Reads every scalar as text: `0x20` is a series of zeros, not 32."""

    yaml_implicit_resolvers: ClassVar = {"<": [("tag:yaml.org,2002:merge", re.compile("^<<$"))]}


def promtool(*arguments: str) -> list[str]:
    """The problems that it reports."""
    program = packages.unpacked("prometheus") / "usr" / "bin" / "promtool"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"promtool {' '.join(arguments[:2])}: {done.stdout}{done.stderr}"]


def described_badly(rule: dict) -> list[str]:
    """A rule has a severity, a sentence, and a page's heading that says what to do."""
    found = []
    annotations = rule.get("annotations", {})
    if rule.get("labels", {}).get("severity") not in SEVERITIES:
        found.append(f"{rule['alert']}: severity is none of {SEVERITIES}")
    if not annotations.get("summary"):
        found.append(f"{rule['alert']}: no summary")
    page, _, heading = annotations.get("runbook", "").partition("#")
    if not heading or not (REPOSITORY / page).is_file() or heading not in anchors(REPOSITORY / page):
        found.append(f"{rule['alert']}: its runbook leads to no heading: {annotations.get('runbook')}")
    return found


def untested(rules: list[dict], cases: dict[str, list[dict]]) -> list[str]:
    names = {rule["alert"] for rule in rules}
    found = [f"{name}: {SERIES.name} tests it, {RULES.name} does not have it" for name in cases.keys() - names]
    for name in sorted(names):
        outcomes = {bool(case["fires"]) for case in cases.get(name, [])}
        if outcomes != {True, False}:
            found.append(f"{name}: {SERIES.name} needs a case in which it fires, and one in which it does not")
    return found


def test_file(rules: list[dict], cases: dict[str, list[dict]]) -> dict:
    """The cases as promtool reads them."""
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in rules}
    return {
        "rule_files": ["rules.yml"],
        "evaluation_interval": INTERVAL,
        "tests": [
            {
                "name": f"{name}: {case['what']}",
                "interval": INTERVAL,
                "input_series": [{"series": key, "values": str(value)} for key, value in case["series"].items()],
                "alert_rule_test": [
                    {
                        "eval_time": case["at"],
                        "alertname": name,
                        "exp_alerts": [
                            {"exp_labels": {**labels, "severity": severity[name]}} for labels in case["fires"]
                        ],
                    }
                ],
            }
            for name, of_rule in cases.items()
            for case in of_rule
        ],
    }


def played(rules: list[dict], cases: dict[str, list[dict]]) -> list[str]:
    """promtool compares annotations too, if the rules have any: here the labels decide."""
    bare = [{key: value for key, value in rule.items() if key != "annotations"} for rule in rules]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": bare}]}), encoding="utf-8")
        (place / "tests.yml").write_text(yaml.safe_dump(test_file(rules, cases)), encoding="utf-8")
        return promtool("test", "rules", str(place / "tests.yml"))


def main() -> int:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    cases = yaml.load(SERIES.read_text(encoding="utf-8"), Text)
    problems = promtool("check", "rules", str(RULES)) + promtool("check", "config", str(MONITORING / "prometheus.yml"))
    problems += [problem for rule in rules for problem in described_badly(rule)]
    problems += untested(rules, cases)
    problems += played(
        rules, {name: of_rule for name, of_rule in cases.items() if name in {rule["alert"] for rule in rules}}
    )
    for problem in problems:
        print(problem)
    number = sum(len(of_rule) for of_rule in cases.values())
    print(f"{len(rules)} alert rules, {number} cases, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
