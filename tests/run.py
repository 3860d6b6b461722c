"""Runs the test suite: `python3 tests/run.py --only e2e`; `--help` names the phases (tests/suite/__main__.py).

The runner and the launchers it calls (patroni/stack, patroni/cluster) are packages of two directories. This is the one
place that puts both on Python's path, for the runner and for all that it starts.
"""

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = (REPOSITORY, REPOSITORY / "patroni", REPOSITORY / "indexnode" / "proto")

os.environ["PYTHONPATH"] = os.pathsep.join(map(str, PACKAGES))
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
os.execv(sys.executable, [sys.executable, "-m", "tests.suite", *sys.argv[1:]])
