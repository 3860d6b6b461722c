"""The runner behind tests/run.py: the phases of the suite, and their counts."""
