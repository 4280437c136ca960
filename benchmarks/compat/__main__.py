"""`python -m benchmarks.compat --archive DIR`: a table of llama.cpp's tests of its server, for it and for lacli."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

FILES = ("chat_completion", "completion", "security", "metrics", "basic", "ctx_shift", "tokenize", "ignore_eos",
         "speculative")  # fmt: skip
TESTS = Path("tools/server/tests")
ROOT = Path(__file__).parents[2]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def compare(
    archive: Annotated[Path, typer.Option(help="The folder of llama.cpp in its unpacked source archive.")],
    program: Annotated[Path | None, typer.Option(help="llama-server, built from the same archive.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A file of tests, such as completion. Repeatable.")] = None,
    wanted: Annotated[str, typer.Option("-k", help="Tests, as pytest's -k takes them.")] = "",
    why: Annotated[bool, typer.Option(help="Say why tests failed.")] = False,
) -> None:
    """Run the tests where they are, against llama-server (where `program` is given) and against `lacli serve`."""
    with TemporaryDirectory() as folder:
        ours = Path(folder) / "lacli-server"
        ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m benchmarks.compat.program "$@"\n', encoding="utf-8")
        ours.chmod(0o700)
        programs = {"lacli": ours} if program is None else {"llama-server": program.absolute(), "lacli": ours}
        found = {
            name: results(archive, path, only or FILES, wanted, Path(folder) / name) for name, path in programs.items()
        }
    print(f"| test | {' | '.join(found)} |\n|---|{'---|' * len(found)}")
    for test in next(iter(found.values())):
        outcomes = [each.get(test, {"outcome": "no result", "why": ""}) for each in found.values()]
        cells = [each["outcome"] + (f": {each['why']}" if why and each["why"] else "") for each in outcomes]
        print(f"| {test} | {' | '.join(cell.replace('|', '/') for cell in cells)} |")


def results(archive: Path, program: Path, names: object, wanted: str, folder: Path) -> dict[str, dict[str, str]]:
    """What became of each test with a server, by the test's name."""
    folder.mkdir()
    written = folder / "results.jsonl"
    written.touch()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LLAMA_SERVER_BIN_PATH": str(program),
        "LLAMA_CACHE": str(folder),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(folder),
        "PORT": str(port),
        "COMPAT_RESULTS": str(written),
    }
    files = [f"unit/test_{name}.py" for name in names]  # type: ignore[attr-defined]
    options = ["-p", "benchmarks.compat.plugin", "-p", "no:cacheprovider", "-m", "not slow", "-q", "-k", wanted]
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={folder / 'tmp'}", *files]
    with (folder / "log").open("w", encoding="utf-8") as log:
        subprocess.run(command, cwd=archive / TESTS, env=environment, stdout=log, stderr=log, check=False)
    lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    if not lines:
        raise typer.Exit(print((folder / "log").read_text(encoding="utf-8")) or 1)
    return {line["test"]: line for line in lines}


if __name__ == "__main__":
    app()
