"""What goes wrong in a way that the person at the terminal can mend."""


class Failure(Exception):
    """A sentence for the terminal: what is wrong, then what to do. Printed without a traceback."""
