"""The house keeps its rows: every import points down, the deferred and the type-only ones too.

The rows are those of docs/design.md. A row is a set of modules; a module may import from rows below its own. Inside a row of single
files imports are allowed as long as they make no circle; inside a family a member sees its own folder and the family's protocol.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

ROWS: dict[str, tuple[str, ...]] = {
    "words": (
        "_version",
        "errors",
        "dtypes",
        "ids",
        "scalars",
        "limits",
        "garbage",
        "wording",
        "callers",
        "folding",
        "showing",
        "tagged",
    ),
    "matter": (
        *("entry", "slots", "strides", "sources", "blobs", "views", "tensors"),
        *("disk", "reading", "arrays", "floats"),
    ),
    "tree": ("module", "schedulers"),
    "families": ("formats", "rules", "bridges"),
    "meeting": ("matching", "report", "adapters"),
    "use": (
        *("opened", "digests", "loading", "saving", "sets", "conversion", "verification", "comparison"),
        *("parts", "layouts", "supply", "likeness", "applying", "collecting", "writing", "stores", "jobs"),
        *("records", "sections"),
    ),
    "time": ("training", "checkpoint"),
    "door": ("api", "models", "previews"),
    "people": ("cli", "learner", "integrations", "__main__"),
}
RANK = {head: rank for rank, heads in enumerate(ROWS.values()) for head in heads}
FAMILIES = ("formats", "rules", "bridges")

# The package opens its doors on first use; the family of formats and the command line import a member when it is called.
DYNAMIC = ("firekeep", "firekeep.formats", "firekeep.bridges", "firekeep.cli")

# Third-party packages and the modules that may import them: at the top of the file, or inside a function only.
AT_TOP = {
    "numpy": ("firekeep.arrays", "firekeep.module", "firekeep.bridges.torch", "firekeep.bridges.jax"),
    **dict.fromkeys(("jax", "flax", "equinox", "optax"), ("firekeep.bridges.jax",)),
    "torch": ("firekeep.bridges.torch", "firekeep.learner", "firekeep.integrations"),
    "lightning": ("firekeep.integrations",),
    "transformers": ("firekeep.integrations",),
    "accelerate": ("firekeep.integrations",),
    "keras": ("firekeep.integrations",),
    "click": ("firekeep.cli",),
    "cbor2": ("firekeep.formats.burnpack",),
}
DEFERRED = {
    "numpy": ("firekeep",),
    "torch": ("firekeep.bridges.torch", "firekeep.learner", "firekeep.integrations"),
    **dict.fromkeys(("jax", "flax", "equinox", "optax"), ("firekeep.bridges.jax",)),
    "gguf": ("firekeep.formats.gguf",),
    "ml_dtypes": ("firekeep.arrays", "firekeep.tagged"),
    "cbor2": ("firekeep.formats.burnpack",),
    "rapidfuzz": ("firekeep",),
    "xxhash": ("firekeep",),
    "rich": ("firekeep.cli", "firekeep.learner"),
    "click": ("firekeep.cli",),
}


@dataclass(frozen=True)
class Import:
    """One import statement: who, what, where, and whether it runs when the module is loaded."""

    importer: str
    target: str
    line: int
    at_top: bool
    type_only: bool

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}: imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SRC / "firekeep").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for name, path in modules().items() for found in imports_of(name, ast.parse(path.read_text())))


def imports_of(importer: str, tree: ast.Module) -> Iterator[Import]:
    """Walk one module. `from a import b` counts as a.b where that is a module, else as a."""

    def walk(node: ast.AST, at_top: bool, type_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            for target in targets(child):
                yield Import(importer, target, child.lineno, at_top, type_only)  # type: ignore[attr-defined]
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from walk(child, at_top and not inside, type_only or guarded)

    return walk(tree, at_top=True, type_only=False)


def targets(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: a relative import; write the full name"
        base = node.module or ""
        return [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules() else base for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        first = node.args[0]
        return [first.value if isinstance(first, ast.Constant) else f"?{ast.unparse(first)}"]
    return []


def inner() -> list[Import]:
    return [found for found in imports() if found.target == "firekeep" or found.target.startswith("firekeep.")]


def head(module: str) -> str:
    """The row-giving part of a module's name; the package itself has none."""
    return module.split(".")[1] if "." in module else ""


def member(module: str) -> str:
    """The member of a family that a module belongs to: formats.burnpack._cbor -> burnpack; '' for the family's own files."""
    parts = module.split(".")
    is_folder = len(parts) > 2 and modules().get(".".join(parts[:3]), Path()).name == "__init__.py"
    public = len(parts) > 2 and not parts[2].startswith("_")
    return parts[2] if is_folder or public else ""


def test_every_module_has_a_row():
    without = {head(name) for name in modules()} - set(RANK) - {""}
    assert not without, f"these modules stand in no row of the house: {sorted(without)}"


def test_every_row_is_there():
    there = {head(name) for name in modules()}
    missing = set(RANK) - there
    assert not missing, f"the house names modules that do not exist: {sorted(missing)}"


def test_the_design_page_draws_the_house_as_it_is():
    page = (SRC.parent / "docs" / "design.md").read_text()
    row, drawn = "", dict[str, set[str]]()
    for line in page.split("```")[1].splitlines():
        row = line[3:17].strip() or row
        drawn.setdefault(row, set()).update(
            re.findall(r"\b[a-z_]+\b(?=/?(?:  |$))", re.sub(r"  [(<].*", "", line[17:]))
        )
    assert {name: members for name, members in drawn.items() if name} == {
        name: {head for head in heads if not head.startswith("_")} for name, heads in ROWS.items()
    }


def test_imports_point_down():
    wrong = [
        str(found)
        for found in inner()
        if head(found.importer) and head(found.target) and RANK[head(found.importer)] < RANK[head(found.target)]
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_inside_imports_the_package_door():
    wrong = [str(found) for found in inner() if found.target == "firekeep"]
    assert not wrong, "\n".join(wrong)


def test_the_command_line_uses_the_library_through_its_door():
    allowed = ("api", "models", "previews", "checkpoint", "records", "slots", "errors", "wording", "_version", "cli")
    wrong = [
        str(found)
        for found in inner()
        if head(found.importer) == "cli" and head(found.target) not in allowed and not found.type_only
    ]
    assert not wrong, "\n".join(wrong)


def test_members_of_a_family_do_not_know_each_other():
    wrong = []
    for found in inner():
        family = head(found.importer)
        mine, theirs = member(found.importer), member(found.target)
        if family not in FAMILIES or not mine:
            continue
        same_family = head(found.target) == family
        other_family = head(found.target) in FAMILIES and not same_family
        family_door = found.target == f"firekeep.{family}"
        if other_family or family_door or (same_family and theirs not in ("", mine)):
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_shared_files_of_a_family_know_no_member():
    wrong = [
        str(found)
        for found in inner()
        if head(found.importer) in FAMILIES
        and found.importer.count(".") > 1
        and not member(found.importer)
        and head(found.target) == head(found.importer)
        and member(found.target)
        and found.importer not in ("firekeep.formats._detect", "firekeep.formats._diagnose")
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_make_no_circle():
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in inner():
        if not found.type_only and found.target != found.importer:
            graph[found.importer].add(found.target)
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_names_made_at_run_time_are_imported_in_three_places_only():
    wrong = [str(found) for found in imports() if found.target.startswith("?") and found.importer not in DYNAMIC]
    assert not wrong, "\n".join(wrong)


def under(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def test_third_party_packages_stay_where_they_are_allowed():
    wrong = []
    for found in imports():
        package = found.target.split(".")[0]
        if package in sys.stdlib_module_names or package in ("firekeep", "__future__") or found.target.startswith("?"):
            continue
        allowed = AT_TOP if found.at_top and not found.type_only else DEFERRED
        places = allowed.get(package, ())
        if not under(found.importer, places):
            wrong.append(f"{found} {'when loaded' if found.at_top and not found.type_only else 'in a function'}")
    assert not wrong, "\n".join(wrong)


def test_nothing_that_runs_pickles_is_imported_or_named():
    wrong = []
    for name, path in modules().items():
        if under(name, ("firekeep.formats.pytorch",)):
            continue  # the reader of pickles: its own tests watch what it does with them
        wrong += [str(found) for found in imports() if found.importer == name and found.target in ("pickle", "_pickle")]
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        wrong += [
            f"{name}, line {call.lineno}: {ast.unparse(call.func)}"
            for call in calls
            if ast.unparse(call.func) in ("eval", "exec", "compile", "marshal.loads", "shelve.open")
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "importer", "expected"),
    [
        ("from firekeep.blobs import Blob", "firekeep.errors", "firekeep.blobs"),
        ("def f():\n    import firekeep.api", "firekeep.errors", "firekeep.api"),
        ("if TYPE_CHECKING:\n    from firekeep.cli import main", "firekeep.errors", "firekeep.cli"),
        ("from firekeep import api", "firekeep.errors", "firekeep.api"),
        ("x = import_module('firekeep.api')", "firekeep.errors", "firekeep.api"),
    ],
)
def test_the_walker_sees_every_kind_of_import(source: str, importer: str, expected: str):
    assert [found.target for found in imports_of(importer, ast.parse(source))] == [expected]
