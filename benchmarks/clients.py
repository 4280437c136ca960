"""Run the programs of docs/clients.md against `lacli serve`, and print which work and how the others fail.

    python -m benchmarks.clients MODEL.gguf [NAME ...] [--python PYTHON] [--folder FOLDER]

Each block of Python, sh or JavaScript on that page runs unchanged except for the server's address. A block works if it
ends without an error and prints something. No client needs the network, and none reports its use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.serving import serving

PAGE = Path(__file__).parents[1] / "docs" / "clients.md"
ADDRESS = "http://127.0.0.1:8080"
PATIENCE_S = 240
SLOTS = 8
"""Slots of 2,048 tokens: together the cells hold the longest prompts, which aider and smolagents send."""

RUNS = {"python": ("python", "-c"), "sh": ("sh", "-ec"), "js": ("node", "--input-type=module", "-e")}
"""The command that runs a block of each language; the block is the last argument."""

QUIET = {
    "AIDER_ANALYTICS": "false",
    "AIDER_CHECK_UPDATE": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Without these the clients look for updates, prices and data sets, or report their use."""

MISSING = ("ModuleNotFoundError", "ERR_MODULE_NOT_FOUND", "timeout: failed to run command")

ERROR = re.compile(r"[\w.]+( \[\w+\])?: ")
"""The beginning of a line that names an error, as `ValueError: `."""


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> dict[str, Block]:
    """Return the first runnable block of each section of a Markdown page, by the section's heading."""
    sections = (section.partition("\n") for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    fence = re.compile(rf"^```({'|'.join(RUNS)})\n(.*?)^```", re.DOTALL | re.MULTILINE)
    found = {name: fence.search(text) for name, _, text in sections}
    return {name: Block(block[1], block[2]) for name, block in found.items() if block}


def outcome(block: Block, address: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a block in a folder; return "works", "not installed", or "fails: " and the error."""
    # timeout also ends the programs that a shell started.
    program = ["timeout", str(PATIENCE_S), *RUNS[block.language], block.text.replace(ADDRESS, address)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    if done.returncode == 0:
        return "works" if done.stdout.strip() else "fails: it prints nothing"
    if done.returncode == 124:
        return f"fails: no end after {PATIENCE_S} s"
    if done.returncode == 127 or any(sign in done.stderr for sign in MISSING):
        return "not installed"
    print(done.stderr, file=sys.stderr)
    lines = done.stderr.strip().splitlines() or ["no message"]
    named = (line for line in reversed(lines) if ERROR.match(line))
    return f"fails: {next(named, lines[-1])[:160]}"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("names", nargs="*", help="run only headings that begin with one of these")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="a Python with the clients")
    parser.add_argument("--folder", type=Path, help="run in this folder; it has node_modules and a tokenizer")
    given = parser.parse_args()
    with (
        TemporaryDirectory() as home,
        serving(("lacli", "serve"), given.model.resolve(), SLOTS, Path(home)) as (address, _),
    ):
        path = f"{given.python.absolute().parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **QUIET, "HOME": home, "PATH": path}
        print("| client | outcome |\n|---|---|")
        for name, block in blocks(PAGE.read_text(encoding="utf-8")).items():
            if name.startswith(tuple(given.names) or ""):
                result = outcome(block, address.removesuffix("/v1"), given.folder or Path(home), environment)
                print(f"| {name} | {result} |", flush=True)


if __name__ == "__main__":
    main()
