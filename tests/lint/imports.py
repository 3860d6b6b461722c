"""Finds circles of imports, and imports that point upwards. `make lint` runs it; exit 1 names each edge.

A circle is a set of files that import each other; a module and its own submodules do not count. Layers come from the
head of a crate's `lib.rs`: a list item that begins with a module's name in backquotes is a layer, and a module imports
only from its own layer and from those listed below it. Reads Rust as text (`use` trees and `crate::`, `super::`,
`self::` paths) without test code, and Python by its syntax tree.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CRATE_ROOTS = ("lib.rs", "main.rs")
PYTHON_ROOTS = ("patroni", "tests")
LAYER = re.compile(r"^//! - `(\w+)`")

Module = tuple[str, ...]
Edges = dict[str, set[str]]


def without_noise(text: str) -> str:
    """Rust without comments, strings and inline test modules."""
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", text)[0]


def use_paths(tree: str) -> Iterator[list[str]]:
    """The paths of one `use` tree: `a::{b, c::d}` gives `a::b` and `a::c::d`."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        yield [part.strip() for part in re.sub(r"\s+as\s+\w+", "", tree).split("::") if part.strip()]
        return
    prefix = [part.strip() for part in tree[:brace].split("::") if part.strip()]
    depth, start, inner = 0, 0, tree[brace + 1 : tree.rfind("}")]
    for at, character in enumerate(f"{inner},"):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            if inner[start:at].strip():
                yield from (prefix + path for path in use_paths(inner[start:at]))
            start = at + 1


def module_of(path: Path, source: Path) -> Module:
    parts = path.relative_to(source).with_suffix("").parts
    return parts[:-1] if parts[-1] == "mod" or (path.parent == source and path.name in CRATE_ROOTS) else parts


def is_test(path: Path) -> bool:
    return any(part in ("tests", "tests.rs") for part in path.parts)


def resolve(path: list[str], module: Module, modules: dict[Module, Path]) -> Path | None:
    """The file of the module that a path leads into."""
    first, *rest = path
    if first == "crate":
        base: Module = ()
    elif first == "self":
        base = module
    elif first == "super":
        base = module[:-1]
        while rest and rest[0] == "super":
            base, rest = base[:-1], rest[1:]
    elif (*module, first) in modules:
        base, rest = module, path
    else:
        return None
    for part in rest:
        if (*base, part) not in modules:
            break
        base = (*base, part)
    return modules.get(base)


def rust_crate(source: Path) -> tuple[dict[Module, Path], Edges]:
    binaries = {path.parent for path in source.glob("bin/*/main.rs")} if source.name == "src" else set()
    files = [
        f
        for f in sorted(source.rglob("*.rs"))
        if not is_test(f.relative_to(REPOSITORY)) and not binaries & set(f.parents)
    ]
    modules = {module_of(path, source): path for path in files}
    edges: Edges = {}
    for module, path in modules.items():
        text = without_noise(path.read_text(encoding="utf-8"))
        found = [p for tree in re.findall(r"\buse\s+([^;]+);", text) for p in use_paths(tree)]
        found += [p.split("::") for p in re.findall(r"(?<!in )(?<![\w$])((?:crate|super|self)(?:::\w+)+)", text)]
        for candidate in found:
            target = resolve(candidate, module, modules)
            other = module_of(target, source) if target else module
            if other[: len(module)] != module and module[: len(other)] != other:
                edges.setdefault(name(path), set()).add(name(target))
    return modules, edges


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def upward_imports(source: Path, modules: dict[Module, Path], edges: Edges) -> list[str]:
    """Imports from a lower layer to a higher, where the crate's head lists its layers."""
    head = source / "lib.rs"
    layers = (
        [m[1] for line in head.read_text(encoding="utf-8").splitlines() if (m := LAYER.match(line))]
        if head.exists()
        else []
    )
    if not layers:
        return []
    rank = {layer: at for at, layer in enumerate(layers)}
    tops = {module[0] for module in modules if module and module != ("main",)}
    problems = [f"{name(head)}: module `{top}` is in no layer of the list" for top in sorted(tops - set(layers))]
    problems += [f"{name(head)}: layer `{layer}` is no module" for layer in layers if layer not in tops]
    layer_of = {name(path): rank.get(module[0]) for module, path in modules.items() if module}
    for path, targets in edges.items():
        for target in sorted(targets):
            lower, higher = layer_of.get(path), layer_of.get(target)
            if lower is not None and higher is not None and higher < lower:
                problems.append(
                    f"{path} imports {target}, of a higher layer ({layers[higher]} is above {layers[lower]})"
                )
    return problems


def python_edges() -> Edges:
    files = {path for root in PYTHON_ROOTS for path in (REPOSITORY / root).rglob("*.py") if ".venv" not in path.parts}
    modules: dict[Module, Path] = {}
    for path in files:
        for root in (REPOSITORY, REPOSITORY / "patroni"):
            if root in path.parents:
                parts = path.relative_to(root).with_suffix("").parts
                modules[parts[:-1] if parts[-1] == "__init__" else parts] = path
    edges: Edges = {}
    for path in files:
        package = path.relative_to(REPOSITORY).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets = [tuple(alias.name.split(".")) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                base += tuple(node.module.split(".")) if node.module else ()
                targets = [(*base, alias.name) for alias in node.names] + [base]
            else:
                continue
            for target in targets:
                other = modules.get(target)
                if other and other != path and other.name != "__init__.py":
                    edges.setdefault(name(path), set()).add(name(other))
    return edges


def circles(edges: Edges) -> list[list[str]]:
    """Strongly connected components of more than one file (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        index[file] = low[file] = len(index)
        stack.append(file)
        for target in edges.get(file, ()):
            if target not in index:
                visit(target)
                low[file] = min(low[file], low[target])
            elif target in stack:
                low[file] = min(low[file], index[target])
        if low[file] == index[file]:
            at = stack.index(file)
            component, stack[at:] = stack[at:], []
            if len(component) > 1:
                found.append(sorted(component))

    for file in edges:
        if file not in index:
            visit(file)
    return found


def main() -> int:
    sys.setrecursionlimit(10_000)
    problems: list[str] = []
    sources = [path for path in REPOSITORY.glob("*/src") if path.is_dir()]
    sources += [path for path in REPOSITORY.glob("*/*/src") if (path.parent / "Cargo.toml").is_file()]
    sources += [path.parent for path in REPOSITORY.glob("*/src/bin/*/main.rs")]
    all_edges: Edges = python_edges()
    for source in sorted(sources):
        modules, edges = rust_crate(source)
        problems += upward_imports(source, modules, edges)
        all_edges |= edges
    for component in circles(all_edges):
        problems.append(f"circle of {len(component)} files:")
        members = set(component)
        problems += [f"  {file} -> {target}" for file in component for target in sorted(all_edges[file] & members)]
    print("\n".join(problems) or f"imports: {sum(map(len, all_edges.values()))} edges, no circle, none upwards")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
