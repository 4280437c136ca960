"""`python -m benchmarks.compat --archive DIR`: run llama.cpp's server tests with llama-server and with lacli."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Annotated

import typer

FILES = ("chat_completion", "completion", "security", "metrics", "basic", "ctx_shift", "tokenize", "ignore_eos",
         "speculative", "slot_save", "compat_anthropic", "compat_oai_responses", "infill")  # fmt: skip
TESTS = Path("tools/server/tests")
ROOT = Path(__file__).parents[2]

TOOLS = "tools for a model whose template knows none"

NOT_OFFERED = {
    "test_chat_completion.py::test_chat_completions_token_count": "/v1/chat/completions/input_tokens",
    "test_completion.py::test_n_probs_post_backend_sampling": "backend_sampling",
    "test_security.py::test_cors_options": "CORS by default: --cors-origins names the pages that may ask",
    "test_security.py::test_cors_origins_localhost_reflects": "the router",
    "test_security.py::test_cors_origins_localhost_rejects": "the router",
    "test_security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled": "the router, MCP",
    "test_security.py::test_cors_proxy_only_forwards_explicit_proxy_headers": "MCP",
    "test_speculative.py::test_with_and_without_draft": "draft models and --spec flags",
    "test_speculative.py::test_synth_is_deterministic": "draft models and --spec flags",
    "test_speculative.py::test_synth_ignores_target_tokens": "draft models and --spec flags",
    "test_compat_anthropic.py::test_anthropic_tool_use_basic": TOOLS,
    "test_compat_anthropic.py::test_anthropic_tool_result": TOOLS,
    "test_compat_anthropic.py::test_anthropic_tool_result_with_text": TOOLS,
    "test_compat_anthropic.py::test_anthropic_tool_result_error": TOOLS,
    "test_compat_anthropic.py::test_anthropic_tool_streaming": TOOLS,
    "test_compat_anthropic.py::test_anthropic_streaming_content_block_indices": TOOLS,
    "test_compat_anthropic.py::test_anthropic_tool_result_with_image": "500 for images, which are refused with 400",
    "test_compat_anthropic.py::test_anthropic_vision_format_accepted": "500 for images, which are refused with 400",
    "test_compat_anthropic.py::test_anthropic_empty_messages": "a conversation without messages",
    "test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry": (
        "response.completed for an answer that its limit cut: it is response.incomplete, as OpenAI's"
    ),
}
"""The feature that each test needs and that lacli does not offer, by the test's function."""

PASSES, FAILS_TOO, LEFT_OUT, OURS = (
    "Passes", "llama-server fails or skips it too with this model", "Not offered", "Ours to mend",
)  # fmt: skip
"""The lists of the documentation; each test is in one."""

BEGIN, END = "<!-- compat: begin -->\n", "<!-- compat: end -->\n"
"""The marks around the lists in docs/serve.md."""

Results = dict[str, dict[str, str]]
"""`outcome` (pytest's word) and `why` (the first line of the error, or "") of each test, by the test's name."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def compare(
    archive: Annotated[Path, typer.Option(help="The folder of llama.cpp in its unpacked source archive.")],
    program: Annotated[Path | None, typer.Option(help="llama-server, built from the same archive.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A file of tests, such as completion. Repeatable.")] = None,
    wanted: Annotated[str, typer.Option("-k", help="Tests, as pytest's -k takes them.")] = "",
    engine: Annotated[str, typer.Option(help="The library that lacli decodes with: llama or ik.")] = "llama",
    why: Annotated[bool, typer.Option(help="Say why tests failed.")] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Write the lists of docs/serve.md. Needs --program.")] = False,
) -> None:
    """Run the tests of the archive against `lacli serve`, and against llama-server if `program` is given."""
    if docs and (program is None or only or wanted):
        raise typer.BadParameter("the lists need all tests with both servers: --program, without --only and -k")
    with TemporaryDirectory() as folder:
        ours = Path(folder) / "lacli-server"
        program_line = f'exec "{sys.executable}" -m benchmarks.compat.program --engine {engine} "$@"'
        ours.write_text(f"#!/bin/sh\n{program_line}\n", encoding="utf-8")
        ours.chmod(0o700)
        programs = {"lacli": ours} if program is None else {"llama-server": program.absolute(), "lacli": ours}
        found = {
            name: results(archive, path, only or FILES, wanted, Path(folder) / name) for name, path in programs.items()
        }
    if docs:
        write_lists(ROOT / "docs" / "serve.md", in_lists(found["llama-server"], found["lacli"]))
        return
    print(f"| test | {' | '.join(found)} |\n|---|{'---|' * len(found)}")
    for test in next(iter(found.values())):
        outcomes = [each.get(test, {"outcome": "no result", "why": ""}) for each in found.values()]
        cells = [each["outcome"] + (f": {each['why']}" if why and each["why"] else "") for each in outcomes]
        print(f"| {test} | {' | '.join(cell.replace('|', '/') for cell in cells)} |")


def results(archive: Path, program: Path, names: object, wanted: str, folder: Path) -> Results:
    """Run test files with the server `program`; return results by test. `wanted`: pytest's -k. Exits if none ran."""
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


def in_lists(theirs: Results, ours: Results) -> dict[str, str]:
    """Return the Markdown text of each list, by the list's name. `theirs`: the results of llama-server."""
    cases: dict[str, Counter[str]] = {name: Counter() for name in (PASSES, FAILS_TOO, LEFT_OUT, OURS)}
    for test, result in theirs.items():
        function = test.partition("[")[0]
        if test in ours and ours[test]["outcome"] == "passed":
            cases[PASSES][function] += 1
        elif result["outcome"] != "passed":
            cases[FAILS_TOO][function] += 1
        elif function in NOT_OFFERED:
            cases[LEFT_OUT][f"{function} ({NOT_OFFERED[function]})"] += 1
        else:
            cases[OURS][test] += 1
    count = f"{sum(cases[FAILS_TOO].values())} tests."
    return {name: count if name == FAILS_TOO else _written(functions) for name, functions in cases.items()}


def _written(cases: Counter[str]) -> str:
    """Return the number of cases, and a line for each file of tests. `cases`: the cases of each test function."""
    files: dict[str, list[str]] = {}
    for function, count in cases.items():
        file, _, name = function.partition("::test_")
        files.setdefault(file, []).append(name + (f" x{count}" if count > 1 else ""))
    lines = [fill(f"- {file}: {', '.join(names)}", 120, subsequent_indent="  ") for file, names in files.items()]
    return f"{sum(cases.values())} tests:\n\n" + "\n".join(lines) if lines else "None."


def write_lists(path: Path, lists: dict[str, str]) -> None:
    """Write the lists between BEGIN and END in a page, instead of the old lists. `lists`: texts by title."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    text = "\n".join(f"**{name}**\n\n{tests}\n" for name, tests in lists.items())
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    app()
