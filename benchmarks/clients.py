"""The programs of docs/clients.md against a server with a model: which work, and what the others fail with.

    python -m benchmarks.clients MODEL.gguf [--python PYTHON]

Each block of Python on that page runs as it stands, with the server's address in the place of the page's own. PYTHON is
an interpreter that has the clients. A block works if it ends without an error and prints something.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.serving import serving

PAGE = Path(__file__).parents[1] / "docs" / "clients.md"

ADDRESS = "http://127.0.0.1:8080"

PATIENCE_S = 180


def snippets(page: str) -> dict[str, str]:
    """The blocks of Python on the page, by the headings above them."""
    sections = (section.partition("\n") for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    found = {name: re.search(r"```python\n(.*?)```", text, re.DOTALL) for name, _, text in sections}
    return {name: block[1] for name, block in found.items() if block}


def packages(snippet: str) -> list[str]:
    """The packages that a snippet imports."""
    found = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [str(node.module) if isinstance(node, ast.ImportFrom) else node.names[0].name for node in found]
    return [name.partition(".")[0] for name in names]


def outcome(python: str, snippet: str, address: str) -> str:
    """Run a snippet; return "works", "not installed", or what it fails with."""
    find = f"import importlib.util as u; raise SystemExit(not all(map(u.find_spec, {packages(snippet)!r})))"
    if subprocess.run([python, "-c", find], check=False).returncode:
        return "not installed"
    program = [python, "-c", snippet.replace(ADDRESS, address)]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"fails: nothing after {PATIENCE_S} s"
    if done.returncode:
        return f"fails: {(done.stderr.strip().splitlines() or ['no message'])[-1][:160]}"
    return "works" if done.stdout.strip() else "fails: it prints nothing"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    with TemporaryDirectory() as folder, serving(("lacli", "serve"), given.model, 2, Path(folder)) as (address, _):
        print("| client | outcome |\n|---|---|")
        for name, snippet in snippets(PAGE.read_text(encoding="utf-8")).items():
            print(f"| {name} | {outcome(given.python, snippet, address.removesuffix('/v1'))} |", flush=True)


if __name__ == "__main__":
    main()
