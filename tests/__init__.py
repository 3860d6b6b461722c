"""The test suites, as packages: tests/run.py runs them all, pytest runs the Python ones.

`support` holds what several suites share. `stack` and `cluster`, the launchers, are found through tests/pyproject.toml.
"""

import os

# The tests fork services but never use gRPC in a child. gRPC's own fork handlers sometimes crash the child before exec.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
