"""Errors that the user at the terminal can fix."""


class Failure(Exception):
    """A sentence for the terminal: the problem, then the remedy. Printed without a traceback."""
