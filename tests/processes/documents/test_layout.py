"""The map of imports in docs/design.md holds."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import purgatory

ROOT = Path(__file__).parents[3]
FRONT_DOORS = {"__init__", "__main__", "former_names", "import_names", "pytest_plugin"}


@cache
def written_order() -> list[str]:
    """The folders in the order in which the map has them."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    [plan] = re.findall(r"^    timer/.*?\n\n", text, re.M | re.S)
    return ["timer", *re.findall(r"^      (\w[\w/]*)/ ", plan, re.M)]


@cache
def modules() -> dict[str, Path]:
    """All modules of the product by their dotted names."""
    found = {}
    for package in ("timer", "purgatory"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def for_types_alone(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes under ``if TYPE_CHECKING:``."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The statements by which a file imports, wherever in it."""
    nodes = ast.walk(tree_of(path))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(path: Path, also_for_types: bool = True) -> Iterator[str]:
    """The modules that a file imports."""
    left_out = set() if also_for_types else set(for_types_alone(tree_of(path)))
    for node in import_statements(path):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert not node.level and node.module, f"{path}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                whole = full in modules() or node.module in {"datetime", "uuid"}
                yield full if whole else node.module


def folder_of(module: str) -> str | None:
    """The folder of the map in which a module lies; `core` for the names that it makes public."""
    package, *inner = module.split(".")
    if package == "timer":
        return "timer"
    if package != "purgatory":
        return None
    below = "/".join(inner[:2])
    if below in written_order():
        return below
    return inner[0] if inner and (ROOT / "purgatory" / inner[0]).is_dir() else "core"


def test_top_level_has_only_its_known_entries() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0 or not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    assert {path.partition("/")[0] for path in listed.stdout.splitlines()} == {
        *(".ci", ".github", "docs", "purgatory", "tests", "timer"),
        *(".gitignore", "LICENSE", "MANIFEST.in", "Makefile", "README.md"),
        *("constraints.txt", "pyproject.toml"),
    }


def test_map_has_all_folders() -> None:
    folders = {folder_of(module) for module in modules()}
    assert sorted(written_order()) == sorted(folder for folder in folders if folder)
    files = {path.stem for path in (ROOT / "purgatory").glob("*.py")}
    assert files == FRONT_DOORS


def test_each_folder_imports_only_folders_above_it() -> None:
    order = written_order()
    wrong = []
    for module, path in modules().items():
        if path.parent == ROOT / "purgatory":
            continue
        here = order.index(str(folder_of(module)))
        for imported in imports_of(path):
            there = folder_of(imported)
            if there is not None and order.index(there) > here:
                wrong.append(f"{module} imports {imported}")
    assert not wrong


MODEL = ("log", "settings", "replication", "security", "groups", "share_groups", "transactions")
"""The folders of the model, each of which imports only those before it."""


def test_each_folder_of_the_model_imports_only_those_before_it() -> None:
    wrong = []
    for module, path in modules().items():
        _, package, *inner = module.split(".") if module.count(".") > 2 else ("", "")
        if package != "kafka" or inner[0] not in MODEL:
            continue
        for imported in imports_of(path):
            there = imported.removeprefix("purgatory.kafka.").partition(".")[0]
            if there in MODEL and MODEL.index(there) > MODEL.index(inner[0]):
                wrong.append(f"{module} imports {imported}")
    assert not wrong


def test_the_model_has_no_loop_no_clock_and_no_files() -> None:
    outside = {"asyncio", "datetime", "kio", "os", "pathlib", "socket", "time", "uuid"}
    harmless = {"datetime.timedelta", "uuid.UUID"}
    wrong = [
        f"{module} imports {imported}"
        for module, path in modules().items()
        if folder_of(module) == "kafka"
        for imported in imports_of(path)
        if imported.partition(".")[0] in outside and imported not in harmless
    ]
    assert not wrong


def reaches_into_others(path: Path) -> Iterator[str]:
    """The uses of private names, but of a file's own, of those that a class inherits, and of an
    operation's, which keep out of the way of their users' names."""
    tree = tree_of(path)
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    # Names that named tuples and enums make public, and methods of a reentrant lock.
    own = {"_replace", "_value_", "_is_owned", "_at_fork_reinit"}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                own.add(node.name)
            case ast.Attribute(value=ast.Name("self" | "cls"), ctx=ast.Store()):
                own.add(node.attr)
            case ast.AnnAssign(target=ast.Name(name)):
                own.add(name)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(name)) if name in {"self", "cls", *classes}:
                pass
            case ast.Attribute(attr=name) if name not in own and re.match(r"_(?!op_)[a-z]", name):
                yield f"{path.name}:{node.lineno} {ast.unparse(node)}"


def test_no_file_of_the_core_uses_private_names_of_another() -> None:
    core = [path for module, path in modules().items() if folder_of(module) == "core"]
    assert [reach for path in core for reach in reaches_into_others(path)] == []


def test_use_of_another_files_private_name_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text("def f(self, other):\n    self._mine\n    other._mine + other.__class__\n")
    assert list(reaches_into_others(path)) == ["file.py:3 other._mine"]


def test_package_data_exists() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packed = settings["tool"]["setuptools"]["package-data"]
    patterns = [(package, pattern) for package in packed for pattern in packed[package]]
    assert len(patterns) > 2
    assert not [one for one in patterns if not any((ROOT / one[0]).glob(one[1]))]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules each of which is reached from each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for imported in graph[module]:
            if imported not in order:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], order[imported])
        if lowest[module] == order[module]:
            at = stack.index(module)
            circle = stack[at:]
            del stack[at:]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in graph:
        if module not in order:
            visit(module)
    return found


def import_graph(also_for_types: bool) -> dict[str, set[str]]:
    """The imports among all modules but `purgatory`, which exports names of folders below it."""
    known = modules().keys() - {"purgatory"}
    return {
        module: {name for name in imports_of(path, also_for_types) if name in known - {module}}
        for module, path in modules().items()
        if module in known
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(import_graph(also_for_types=False)) == []


def test_no_files_import_each_other_in_a_circle_for_types() -> None:
    assert circles(import_graph(also_for_types=True)) == []


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "e"}}
    assert circles(graph) == [["b", "c"]]


@pytest.mark.parametrize("folder", ["core", "cluster", "pipeline"])
def test_folders_are_distinguished_from_modules(folder: str) -> None:
    assert folder_of(f"purgatory.{folder}.anything") == folder
    assert folder_of(f"purgatory.{folder}") == folder
    assert folder_of("purgatory") == "core"
    assert folder_of("json") is None


def test_package_exports_the_names_that_type_checkers_see() -> None:
    (seen,) = (
        node
        for node in ast.parse((ROOT / "purgatory" / "__init__.py").read_text("utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    homes = {
        alias.name: str(node.module).removeprefix("purgatory.")
        for node in seen.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert homes == purgatory._HOMES
    assert {*homes, "__version__"} == set(purgatory.__all__)
    for name, module in homes.items():
        assert getattr(purgatory, name) is getattr(import_module(f"purgatory.{module}"), name)
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = purgatory.nothing_such  # type: ignore[attr-defined]
