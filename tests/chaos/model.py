"""The specification that histories are checked against: a small namespace, one operation after the other.

A state is immutable and hashable, so that a search can return to it. Paths are tuples of names below a directory that
only the checked operations touch, so effects of other operations need no rule.
"""

from dataclasses import dataclass

Path = tuple[str, ...]
# A directory's id, or an object's content.
Value = int | str
# A path has at most 128 components; the first is the directory that only the checked operations touch.
DEPTH_MAX = 127


@dataclass(frozen=True)
class Operation:
    """One call: `verb` and its arguments."""

    verb: str
    path: Path
    to: Path = ()
    value: str = ""


@dataclass(frozen=True)
class Outcome:
    """The answer: `ok` with a value (an id, an object's content, names), or the reason for a refusal."""

    fact: str = "ok"
    value: Value | frozenset[str] | None = None


@dataclass(frozen=True)
class Tree:
    """Entries by path. A directory's value is its id, an object's a string."""

    entries: frozenset[tuple[Path, Value]] = frozenset()

    def get(self, path: Path) -> Value | None:
        return next((value for at, value in self.entries if at == path), None)

    def is_directory(self, path: Path) -> bool:
        return not path or isinstance(self.get(path), int)

    def below(self, path: Path) -> list[tuple[Path, Value]]:
        return [(at, value) for at, value in self.entries if len(at) > len(path) and at[: len(path)] == path]

    def names(self, path: Path) -> frozenset[str]:
        return frozenset(at[-1] for at, _ in self.entries if at[:-1] == path and at)

    def after(self, operation: Operation, outcome: Outcome) -> "Tree | None":
        """The state after the operation if that may be its answer, else None."""
        against = set(self._against(operation))
        if outcome.fact != "ok":
            # If there are several reasons, the answer may name any.
            return self if outcome.fact in against else None
        if against:
            return None
        return getattr(self, f"_{operation.verb}")(operation, outcome)

    def _against(self, operation: Operation):
        """Reasons that forbid it."""
        here = self.get(operation.path)
        if operation.verb == "mkdir":
            if not self.is_directory(operation.path[:-1]):
                yield "missing"
            if here is not None:
                yield "exists"
        elif operation.verb == "rmdir":
            if not isinstance(here, int):
                yield "missing"
            elif self.below(operation.path):
                yield "not_empty"
        elif operation.verb == "rename":
            if not isinstance(here, int) or not self.is_directory(operation.to[:-1]):
                yield "missing"
            if operation.to[: len(operation.path)] == operation.path:
                yield "loop"
            if self.get(operation.to) is not None:
                yield "exists"
            below = max((len(at) - len(operation.path) for at, _ in self.below(operation.path)), default=0)
            if len(operation.to) + below > DEPTH_MAX:
                yield "too_deep"
        elif operation.verb == "delete_if_match":
            if here is None:
                yield "missing"
            elif here != operation.value:
                yield "differs"
        elif (operation.verb in ("stat", "get", "chmod", "copy", "rename_object") and here is None) or (
            operation.verb == "list" and not self.is_directory(operation.path)
        ):
            yield "missing"

    def _with(self, path: Path, value: Value) -> "Tree":
        return Tree(frozenset(e for e in self.entries if e[0] != path) | {(path, value)})

    def _mkdir(self, operation: Operation, outcome: Outcome) -> "Tree":
        return self._with(operation.path, outcome.value)

    def _rmdir(self, operation: Operation, _: Outcome) -> "Tree":
        return Tree(frozenset(e for e in self.entries if e[0] != operation.path))

    def _rename(self, operation: Operation, _: Outcome) -> "Tree":
        moved = [(operation.path, self.get(operation.path)), *self.below(operation.path)]
        arrived = {(operation.to + at[len(operation.path) :], value) for at, value in moved}
        return Tree((self.entries - frozenset(moved)) | arrived)

    def _chmod(self, _operation: Operation, _: Outcome) -> "Tree":
        """Permissions are not checked here: chmod is there to change the record that a rename moves."""
        return self

    def _put(self, operation: Operation, _: Outcome) -> "Tree":
        return self._with(operation.path, operation.value)

    def _upload(self, operation: Operation, _: Outcome) -> "Tree":
        return self._put(operation, _)

    def _copy(self, operation: Operation, _: Outcome) -> "Tree":
        return self._with(operation.to, self.get(operation.path))

    def _rename_object(self, operation: Operation, _: Outcome) -> "Tree":
        return self._rmdir(operation, _)._with(operation.to, self.get(operation.path))

    def _delete(self, operation: Operation, _: Outcome) -> "Tree":
        return self._rmdir(operation, _)

    def _delete_if_match(self, operation: Operation, _: Outcome) -> "Tree":
        return self._rmdir(operation, _)

    def _stat(self, operation: Operation, outcome: Outcome) -> "Tree | None":
        return self if self.get(operation.path) == outcome.value else None

    def _get(self, operation: Operation, outcome: Outcome) -> "Tree | None":
        return self._stat(operation, outcome)

    def _list_objects(self, operation: Operation, outcome: Outcome) -> "Tree | None":
        return self._list(operation, outcome)

    def _list(self, operation: Operation, outcome: Outcome) -> "Tree | None":
        return self if self.names(operation.path) == outcome.value else None
