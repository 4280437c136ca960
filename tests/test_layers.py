"""The package's imports: they go down only, on at most ten floors, and one file imports llama_cpp."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from tests.program import ROOT

MOST_FLOORS = 12

Imports = dict[str, set[str]]


def modules_of(root: Path) -> dict[str, Path]:
    """The package's modules by their dotted names."""
    found = {}
    for path in (root / "lacli").rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_by(path: Path, modules: dict[str, Path]) -> set[str]:
    """The package's modules that a file imports, also inside functions and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {name if (name := f"{node.module}.{each.name}") in modules else node.module for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def place_of(module: str) -> str:
    """The flat file or the folder of lacli/ that a module belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def places(root: Path) -> Imports:
    """What each flat file and each folder imports from the others."""
    modules = modules_of(root)
    found: Imports = {}
    for module, path in modules.items():
        needed = {place_of(each) for each in imported_by(path, modules) if each in modules and each != "lacli"}
        found.setdefault(place_of(module), set()).update(needed - {place_of(module)})
    # Imports of `lacli` itself count for nothing: it loads its public names on first use.
    return found


def floors(imports: Imports) -> dict[str, int]:
    """The floor of each place: one above the highest that it imports. Raises CycleError for an import upward."""
    height: dict[str, int] = {}
    for place in TopologicalSorter(imports).static_order():
        height[place] = 1 + max((height[below] for below in imports.get(place, ())), default=0)
    return height


def test_imports_go_down_only_and_the_house_has_at_most_twelve_floors() -> None:
    assert max(floors(places(ROOT)).values()) <= MOST_FLOORS


def test_one_file_imports_llama_cpp() -> None:
    modules = modules_of(ROOT)
    theirs = {
        str(path.relative_to(ROOT))
        for path in modules.values()
        if any(name.split(".")[0] == "llama_cpp" for name in imported_by(path, modules))
    }
    assert theirs == {"lacli/llamacpp/library.py"}
