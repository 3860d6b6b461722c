"""The model: the content of one namespace, and the effect of each verb on it when nothing else runs.

A pure core: no clock, no I/O. It states the verbs' meaning independently of `sql/`: the order of checks, the code of
each refusal, ids and versions. The isolation matrix takes the serial outcome from it. The property test replays
acknowledged operations on it in the order of their commits.
"""

import copy
from dataclasses import dataclass, field, replace

TRASH = 1


@dataclass(frozen=True)
class Op:
    """One element of a call. `id`: of the entry to make, or of the one that the caller expects."""

    verb: str
    pid: int
    name: str = ""
    id: int = 0
    size: int = 0
    etag: str = "e"
    condition: str | None = None
    locator: str | None = None
    inline: bytes | None = None  # bytes that PostgreSQL keeps
    explicit: bool = True
    mode: int | None = 493
    new_owner: int | None = None  # for a change of attributes
    metadata: str | None = None
    stays: bool | None = None
    part_of: str | None = None
    dst_pid: int = 0
    dst_name: str = ""
    victim: int = 0
    overwrite: bool = False
    epoch: int | None = 0  # for a rename: the epoch that it was prepared under

    @property
    def is_directory(self) -> bool:
        return self.name.endswith("/")


@dataclass(frozen=True)
class Entry:
    """A row of the MetaTable that has an id."""

    id: int
    version: int
    mode: int
    size: int | None = None
    etag: str | None = None
    explicit: bool | None = None

    @property
    def is_directory(self) -> bool:
        return self.explicit is not None


@dataclass(frozen=True)
class Outcome:
    """`code` None: done. `id` and `version` are those that the request's row records."""

    code: str | None = None
    id: int | None = None
    version: int | None = None


def stem(name: str) -> str:
    """Object `a` and directory `a/` are one name (P29)."""
    return name.removesuffix("/")


@dataclass
class Tree:
    """Entries by place, and the directories that have a tombstone."""

    entries: dict[tuple[int, str], Entry] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)  # entries of each directory
    epoch: int = 0  # of the index group

    def copy(self) -> "Tree":
        return Tree(copy.copy(self.entries), copy.copy(self.removed), copy.copy(self.sizes), self.epoch)

    def at(self, pid: int, name: str) -> Entry | None:
        return self.entries.get((pid, name))

    def is_empty(self, id: int) -> bool:
        return not self.sizes.get(id)

    def place(self, pid: int, name: str, entry: Entry) -> None:
        if (pid, name) not in self.entries:
            self.sizes[pid] = self.sizes.get(pid, 0) + 1
        self.entries[pid, name] = entry

    def take(self, pid: int, name: str) -> Entry | None:
        entry = self.entries.pop((pid, name), None)
        if entry is not None:
            self.sizes[pid] -= 1
        return entry

    def counts(self) -> dict[int, tuple[int, int, int]]:
        """Entries, subdirectories, bytes of every directory that has any. The trash has no counts."""
        found: dict[int, tuple[int, int, int]] = {}
        for (pid, _), entry in self.entries.items():
            if pid != TRASH:
                entries, subdirectories, size = found.get(pid, (0, 0, 0))
                found[pid] = (entries + 1, subdirectories + entry.is_directory, size + (entry.size or 0))
        return found

    def looks_busy(self, op: Op) -> bool:
        """What rmdir and an overwriting rename see, before they latch, of the directory to be removed (P11)."""
        if op.verb == "rmdir":
            found = self.at(op.pid, op.name)
            return found is not None and found.id == op.id and not self.is_empty(op.id)
        return op.verb == "rename_directory" and op.victim != 0 and not self.is_empty(op.victim)

    def apply(self, op: Op, busy: bool = False) -> Outcome:
        """Does one operation. `busy`: `looks_busy` was true when it began."""
        return getattr(self, f"_{op.verb}")(op, busy)

    def _put_object(self, op: Op, _busy: bool) -> Outcome:
        if op.pid in self.removed:
            return Outcome("MT018")
        old = self.at(op.pid, op.name)
        if old is None and self.at(op.pid, op.name + "/"):
            return Outcome("MT015")
        holds = {None: True, "*absent": old is None, "*present": old is not None}.get(
            op.condition, old is not None and old.etag == op.condition
        )
        if not holds:
            return Outcome("MT019")
        mode = old.mode if old else op.mode
        new = Entry(old.id if old else op.id, (old.version if old else 0) + 1, mode, op.size, op.etag)
        self.place(op.pid, op.name, new)
        return Outcome(None, new.id, new.version)

    def _delete_object(self, op: Op, _busy: bool) -> Outcome:
        old = self.take(op.pid, op.name)
        return Outcome(None, old.id, old.version) if old else Outcome("MT010")

    def _mkdir(self, op: Op, _busy: bool) -> Outcome:
        if op.pid in self.removed:
            return Outcome("MT018")
        old = self.at(op.pid, op.name)
        if old is not None:
            if old.explicit or not op.explicit:
                return Outcome("MT012", old.id, old.version)
            self.place(op.pid, op.name, replace(old, explicit=True, version=old.version + 1))
            return Outcome(None, old.id, old.version + 1)
        if self.at(op.pid, stem(op.name)):
            return Outcome("MT016")
        self.place(op.pid, op.name, Entry(op.id, 1, op.mode, explicit=op.explicit))
        return Outcome(None, op.id, 1)

    def _rmdir(self, op: Op, busy: bool) -> Outcome:
        old = self.at(op.pid, op.name)
        if busy:
            return Outcome("MT017")
        if old is None:
            return Outcome("MT010")
        if old.id != op.id:
            return Outcome("MT018")
        if not self.is_empty(op.id):
            return Outcome("MT017")
        self.take(op.pid, op.name)
        self.removed.add(op.id)
        return Outcome(None, old.id, old.version + 1)

    def _rename_object(self, op: Op, _busy: bool) -> Outcome:
        old, there = self.at(op.pid, op.name), self.at(op.dst_pid, op.dst_name)
        if op.dst_pid in self.removed:
            return Outcome("MT018")
        if old is None:
            return Outcome("MT010")
        if self.at(op.dst_pid, op.dst_name + "/"):
            return Outcome("MT015")
        if there is not None and not op.overwrite:
            return Outcome("MT012")
        self.take(op.pid, op.name)
        self.place(op.dst_pid, op.dst_name, old)
        return Outcome(None, old.id, old.version)

    def _rename_directory(self, op: Op, busy: bool) -> Outcome:
        source, there = self.at(op.pid, op.name), self.at(op.dst_pid, op.dst_name)
        code = None
        if op.epoch != self.epoch:
            code = "MT024"
        elif op.dst_pid in self.removed:
            code = "MT018"
        elif busy:
            code = "MT017"
        elif source is None or source.id != op.id:
            code = "MT026"
        elif op.dst_pid == op.id:
            code = "MT022"
        elif there is not None and (there.id != op.victim or there.id == op.id):
            code = "MT012"
        elif self.at(op.dst_pid, stem(op.dst_name)):
            code = "MT016"
        elif there is not None and not self.is_empty(there.id):
            code = "MT017"
        if code is not None:
            return Outcome(code)
        if there is not None:
            self.take(op.dst_pid, op.dst_name)
            self.removed.add(there.id)
        self.take(op.pid, op.name)
        self.place(op.dst_pid, op.dst_name, replace(source, version=source.version + 1))
        return Outcome(None, source.id, source.version + 1)

    def _set_attributes(self, op: Op, _busy: bool) -> Outcome:
        old = self.at(op.pid, op.name)
        if old is None:
            return Outcome("MT010")
        if old.id != op.id:
            return Outcome("MT018")
        self.place(op.pid, op.name, replace(old, mode=op.mode, version=old.version + 1))
        return Outcome(None, old.id, old.version + 1)

    def _remove_tree(self, op: Op, _busy: bool) -> Outcome:
        old = self.at(op.pid, op.name)
        if op.epoch != self.epoch:
            return Outcome("MT024")
        if old is None or old.id != op.id:
            return Outcome("MT026")
        self.take(op.pid, op.name)
        self.place(TRASH, f"{old.id}/", replace(old, version=old.version + 1))
        return Outcome(None, old.id, old.version + 1)

    def _raise_epoch(self, op: Op, _busy: bool) -> Outcome:
        """Only from the epoch that the caller expects."""
        if op.epoch != self.epoch:
            return Outcome("MT024")
        self.epoch += 1
        return Outcome()

    def _compact(self, _op: Op, _busy: bool) -> Outcome:
        return Outcome()

    def _prune(self, op: Op, _busy: bool) -> Outcome:
        """The worker's step, which knows only the directory's id. It answers nothing when there is nothing to do."""
        found = [(place, entry) for place, entry in self.entries.items() if entry.id == op.id and entry.is_directory]
        if len(found) != 1 or found[0][1].explicit or not self.is_empty(op.id):
            return Outcome("MT017")
        place, old = found[0]
        self.take(*place)
        self.removed.add(op.id)
        return Outcome(None, old.id, None)
