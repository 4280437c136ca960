"""The package's imports go down only, over at most twelve floors, and one file imports llama_cpp."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from tests.program import ROOT

MOST_FLOORS = 12

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "lacli").rglob("*.py")
}
"""The package's modules by their dotted names."""


def imported_by(path: Path, *, at_once: bool = False) -> set[str]:
    """Return the modules that a file imports, also inside functions and for type checkers.

    `at_once`: only the imports at the top level, which run when the file is imported.
    """
    found, tree = set(), ast.parse(path.read_text())
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {name if (name := f"{node.module}.{each.name}") in MODULES else node.module for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def test_imports_go_down_only_and_the_house_has_at_most_twelve_floors() -> None:
    imports: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        # Imports of `lacli` itself do not count: it loads its public names on first use.
        needed = {each.split(".")[1] for each in imported_by(path) if each in MODULES and each != "lacli"}
        place = module.split(".")[1] if "." in module else "__init__"
        imports.setdefault(place, set()).update(needed - {place})
    height: dict[str, int] = {}
    for place in TopologicalSorter(imports).static_order():  # raises CycleError for an import upward
        height[place] = 1 + max((height[below] for below in imports.get(place, ())), default=0)
    assert max(height.values()) <= MOST_FLOORS


def test_one_file_imports_llama_cpp() -> None:
    theirs = [path for path in MODULES.values() if any(each.split(".")[0] == "llama_cpp" for each in imported_by(path))]
    assert theirs == [ROOT / "lacli" / "llamacpp" / "library.py"]


def test_only_a_server_needs_the_extra_serve() -> None:
    imports = {module: imported_by(path, at_once=True) for module, path in MODULES.items()}
    reached = {module for module in MODULES if not module.startswith(("lacli.serve", "lacli.cli.serve"))}
    while more := {each for module in reached for each in imports[module] if each in MODULES} - reached:
        reached |= more
    assert "lacli.serve.protocol" in reached, "lacli run --prompts reads requests"
    assert not {each.split(".")[0] for module in reached for each in imports[module]} & {"starlette", "uvicorn"}
