"""`python -m benchmarks.compat.program FLAGS`: start `lacli serve` with the llama-server flags of llama.cpp's tests."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

SAME = ("--host", "--port", "--temp", "--seed", "--batch-size", "--threads", "--n-predict", "--parallel", "--alias",
        "--tags", "--api-key", "--chat-template", "--slot-save-path")  # fmt: skip
"""Flags with a value that `lacli serve` and llama-server share."""

SWITCHES = ("--verbose", "--no-slots", "--no-ui")
"""Flags without a value that both share."""

MEANINGLESS = {
    "--ubatch-size": 1, "--jinja": 0, "--no-jinja": 0, "--offline": 0, "--slots": 0,
    "--cont-batching": 0, "--context-shift": 0, "--model-draft": 1, "--spec-type": 1, "--spec-draft-n-max": 1,
    "--spec-draft-n-min": 1,
}  # fmt: skip
"""Flags that lacli ignores, with the number of their values. `lacli serve` drafts without a draft model."""


def own_flags(theirs: Sequence[str]) -> list[str]:
    """Turn llama-server's flags into flags of `lacli serve`. An unknown flag ends the program with a message."""
    parser = ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--chat-template-file")
    parser.add_argument("--ctx-size", type=int, default=0)
    parser.add_argument("--engine", default="llama")
    parser.add_argument("-fa", "--flash-attn")
    for name in SAME:
        parser.add_argument(name, default=None)
    for name in (*SWITCHES, "--metrics", "--kv-unified"):
        parser.add_argument(name, action="store_true")
    for name, values in MEANINGLESS.items():
        parser.add_argument(name, dest="meaningless", **({"nargs": 1} if values else {"action": "store_true"}))
    given = vars(parser.parse_args(theirs))

    def value(name: str) -> str | None:
        return given[name.removeprefix("--").replace("-", "_")]  # type: ignore[no-any-return]

    # llama-server divides the context among its slots unless the slots share it.
    context = given["ctx_size"] if given["kv_unified"] else given["ctx_size"] // int(given["parallel"] or 1)
    # llama-server's auto means on for every model of the tests. With it both servers compute the same bits.
    flash = given["flash_attn"] or ("on" if given["engine"] == "llama" else "off")
    found = [given["model"], "--ctx-size", str(context), "--flash-attn", flash, "--no-measure"]
    found += ["--engine", given["engine"]]
    for name in SAME:
        if (text := value(name)) is not None:
            found += [name, text]
    if given["chat_template_file"]:
        found += ["--chat-template", given["chat_template_file"]]
    if not given["metrics"]:
        found.append("--no-metrics")
    return [*found, *(name for name in SWITCHES if value(name))]


if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "lacli", "serve", *own_flags(sys.argv[1:])])
