"""Warnings and errors that correct work produces: (service or *, pattern, why). Everything else fails the test."""

# In any test.
ALLOWED: list[tuple[str, str, str]] = [
    ("indexnode", r"heartbeat::worker.*Elapsed", "a busy machine is late with a heartbeat; the next one follows, and lateness alone elects nobody"),
]

# Only in tests marked `faults`, which kill and wipe services.
ALLOWED_IN_FAULTS: list[tuple[str, str, str]] = [
    ("indexnode", r"WARN openraft::.*(Unreachable|transport error|tcp connect error)", "Raft says that a killed replica does not answer"),
    ("indexnode", r"WARN openraft::.*(belongs to no cluster yet|another node is at this address)", "a wiped replica is not a member until it has joined"),
]
