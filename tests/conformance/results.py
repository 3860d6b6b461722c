"""What a suite's run found."""

from dataclasses import dataclass, field


@dataclass
class Results:
    """Names of tests."""

    ran: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
