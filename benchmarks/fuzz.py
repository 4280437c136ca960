"""Run lacli with odd flags and garbled files; each run has to end in time, with a documented exit code.

- `python -m benchmarks.fuzz`: 100 runs of each kind
- `python -m benchmarks.fuzz --runs 500 flags`: 500 runs of one kind
- `python -m benchmarks.fuzz --runs 1 --seed 17 flags`: run 17 again, with the flags as printed

A clean run ends in time with one of CODES, below the memory limit, without a traceback or a signal. Each other run is
printed with its seed, and the exit code is 1 then. Linux only: the memory limit needs it.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import get_args

from typer.main import get_command

from lacli.auto.model_cost import KIND, machine_key
from lacli.auto.step_cost import Cost, StepCost
from lacli.cli.main import program
from lacli.llamacpp.settings import ModelSettings
from lacli.text.format import markdown
from lacli.text.records import NAME, Records
from tests.loading import STDLIB_7M

CODES = {0, 1, 2, 3, 130}
"""The documented exit codes: success, a fault outside lacli, a wrong flag, an inexact check, Ctrl-C."""

MEMORY, SECONDS = 4 << 30, 60.0
"""The most bytes of memory and seconds of a run. The bundled model needs less than half a GB and some seconds."""

FEW = ("-n", "2", "-c", "256")
COMMANDS = vars(get_command(program()))["commands"]
COMMIT = "c" * 40
FOREIGN = ("GGML_", "LACLI_", "LLAMA_ARG_", "HF_", "HUGGING_FACE_", "XDG_", "PYTHON")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Run:
    """The arguments of a run of lacli, and its standard input."""

    arguments: Sequence[str]
    stdin: bytes = b""


Kind = Callable[[Random, Path], Run]


def environment(folder: Path) -> dict[str, str]:
    """Return environment variables for a user whose files are all in `folder`, offline, on one CPU thread."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    homes = {f"XDG_{name.upper()}_HOME": str(folder / name) for name in ("cache", "config", "data", "state")}
    hub = {"HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    machine = {"LACLI_THREADS": "1", "LACLI_N_GPU_LAYERS": "0", "GGML_NO_BACKTRACE": "1", "TERM": "dumb"}
    return {**kept, **homes, **hub, **machine, "HOME": str(folder), "PYTHONPATH": str(ROOT)}


def problem(run: Run, folder: Path) -> str:
    """Do a run in `folder`; return a phrase for what went wrong, "" after a clean run."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as printed:
        stdin.write(run.stdin)
        stdin.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "lacli", *run.arguments],
            cwd=folder, env=environment(folder), stdin=stdin, stdout=printed, stderr=printed,
            start_new_session=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY)),
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return f"not over after {SECONDS:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        text = printed.read().decode("utf-8", "replace")
    if code < 0:
        return signal.Signals(-code).name
    if "Traceback (most recent call last)" in text:
        return f"a traceback: {text.strip().splitlines()[-1][:100]}"
    return "" if code in CODES else f"exit code {code}"


FLAGS_OF = ("run", "chat", "check", "mask", "show", "list", "doctor")
"""Commands that need no network and measure nothing for long."""

LEFT_OUT = {"--verbose", "--install-completion", "--show-completion", "--rpc"}
VALUES = (
    *("-1", "0", "1", "2", "7", "1.5", "1000000", "9999999999999999999999", "nan", "inf", "-inf", "1e999"),
    *("", " ", "x", "on", "off", "auto", "all", "none", "a,b", "1,2,3", "\x1b[2J", "\udcff", "é", "{}", "["),
    *("root ::=", "prompt.txt", "nowhere", ".", "/dev/null", "/dev/zero", "~", "auto,x", "lookahead", "q8_0", "4242-5"),
)


def odd_flags(random: Random, folder: Path) -> Run:
    """Return a run of a random command with random options, of valid and invalid values."""
    name = random.choice(FLAGS_OF)

    options = [each for each in COMMANDS[name].params if each.opts[0].startswith("-") and each.opts[0] not in LEFT_OUT]
    arguments = [name]
    for option in random.sample(options, min(len(options), random.randint(1, 6))):
        spelling = random.choice([*option.opts, *option.secondary_opts])
        value = str(random.choice([*get_args(option.bare_type), option.default, *VALUES]))
        arguments += [spelling] if option.is_flag else [spelling, value]
    small = {"run": ("-n", "2"), "chat": ("-n", "2"), "check": ("-n", "2", "--each", "1")}
    (folder / "prompt.txt").write_text("Say yes.")
    return Run([*arguments, *small.get(name, ())], b"hi\n/stats\n")


OURS = {
    "saved.json": (("chat", "--load", "saved.json", *FEW), ("chat", "--commands", *FEW)),
    "log.jsonl": (("chat", "--load", "log.jsonl", *FEW), ("chat", "--log", "log.jsonl", *FEW)),
    f"cache/lacli/{NAME}": (("run", "-p", "hi", *FEW),),
    "config/lacli/models.txt": (("run", "mine", "-p", "hi", *FEW), ("list",)),
    "hub/models--a--b/refs/main": (("run", "a/b", "--offline", "-p", "hi", *FEW), ("list", "--json")),
    f"hub/models--a--b/gguf/{COMMIT}.json": (("run", "a/b:Q8_0", "--offline", "-p", "hi", *FEW), ("list",)),
}
"""Files that lacli or huggingface_hub writes, and runs that read them."""

THEIRS = {
    "prompt.txt": (("run", "-f", "prompt.txt", *FEW),),
    "system.txt": (("run", "-sysf", "system.txt", "-p", "hi", *FEW),),
    "schema.json": (("run", "-jf", "schema.json", "-p", "hi", *FEW),),
    "grammar.gbnf": (("run", "--grammar-file", "grammar.gbnf", "-p", "hi", *FEW),),
    "template.jinja": (("run", "--chat-template", "./template.jinja", "-p", "hi", *FEW),),
    "prompts.jsonl": (("bench", "--prompts", "prompts.jsonl", "--modes", "lookup", "--each", "1", "-r", "1", *FEW),),
}
"""Files that users write, and runs that name them."""

CONTENTS = {
    "config/lacli/models.txt": f"mine {STDLIB_7M}\n",
    "hub/models--a--b/refs/main": COMMIT,
    f"hub/models--a--b/gguf/{COMMIT}.json": '["x-Q8_0.gguf", "x-Q4_K_M.gguf"]',
    "prompt.txt": "Say yes.\n",
    "system.txt": "Be brief.\n",
    "schema.json": '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}',
    "grammar.gbnf": 'root ::= "yes" | "no"\n',
    "template.jinja": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "prompts.jsonl": '{"prompt": "Say yes.", "class": "qa"}\n{"prompt": "Say no."}\n',
}

SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null')
OTHER = (
    *(b"null", b"-1", b"1e999", b"NaN", b'"x"', b"[]", b"{}", b"[[[[]]]]"),
    *(b"9" * 5000, b'"\\ud800"', b"1099511627776"),
)


def furnished(folder: Path) -> None:
    """Write every file into a folder, undamaged. Ends the program if a chat with these files is not clean."""
    for name, text in CONTENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    snapshot = folder / "hub" / "models--a--b" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "x-Q8_0.gguf").symlink_to(STDLIB_7M)
    cost = Cost((StepCost(64, {1: 1e-3, 8: 2e-3}),))
    key = machine_key(STDLIB_7M, ModelSettings(threads=1, gpu_layers=0, engine="llama"))
    Records(folder / "cache" / "lacli" / NAME).save(KIND, key, asdict(cost))
    talk = Run(("chat", "--commands", "--log", "log.jsonl", *FEW), b"hi\n/set temp 0.5\n/save saved.json\n")
    if said := problem(talk, folder):
        raise SystemExit(f"lacli {shlex.join(talk.arguments)} is not clean with undamaged files: {said}")


def garbled_file(random: Random, folder: Path) -> Run:
    """Copy all files into `folder`, damage or replace one of them, and return a run that reads that file."""
    shutil.copytree(folder.parent / "furnished", folder, symlinks=True, dirs_exist_ok=True)
    name, runs = random.choice([*OURS.items(), *THEIRS.items()])
    (path,) = folder.glob(name)
    garble(path, random)
    return Run(random.choice(runs), b"hi\n/load saved.json\nhi\n")


def garble(path: Path, random: Random) -> None:
    """Damage a file in a random way, or replace it by a folder or by /dev/zero."""
    raw = path.read_bytes()
    at = random.randrange(len(raw))
    match random.choice(("cut", "flip", "noise", "value", "value", "zeros", "deep", "twice", "folder", "zero")):
        case "cut":
            path.write_bytes(raw[:at])
        case "flip":
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << random.randrange(8)]) + raw[at + 1 :])
        case "noise":
            path.write_bytes(random.randbytes(random.choice((10, 10_000))))
        case "value":
            places = [found.span() for found in SCALAR.finditer(raw)] or [(at, at)]
            begin, end = random.choice(places)
            path.write_bytes(raw[:begin] + random.choice(OTHER) + raw[end:])
        case "zeros":
            with path.open("ab") as file:
                file.truncate(1 << 36)
        case "deep":
            path.write_bytes(raw[:at] + random.choice((b"[", b'{"a":', b"(")) * 100_000)
        case "twice":
            path.write_bytes(raw + raw[: at + 1])
        case "folder":
            path.unlink()
            path.mkdir()
        case "zero":
            path.unlink()
            path.symlink_to("/dev/zero")


KINDS: dict[str, Kind] = {"flags": odd_flags, "files": garbled_file}


def fuzz(kinds: Sequence[str], runs: int, seed: int) -> Counter[str]:
    """Do `runs` runs of each kind, with seeds from `seed` on. Print and count (by kind) the runs with a fault."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        if "files" in kinds:
            (furnishing := Path(folder) / "furnished").mkdir()
            furnished(furnishing)
        for kind, number in product(kinds, range(seed, seed + runs)):
            place = Path(folder) / f"{kind}-{number}"
            place.mkdir()
            run = KINDS[kind](Random(f"{kind} {number}"), place)
            if said := problem(run, place):
                found[kind] += 1
                print(f"--runs 1 --seed {number} {kind}: {said}: {ascii(shlex.join(run.arguments))}", flush=True)
            shutil.rmtree(place)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--runs", type=int, default=100, help="runs of each kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    given = parser.parse_args(arguments)
    kinds = given.kinds or list(KINDS)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no kind {unknown[0]}: {', '.join(KINDS)}")
    found = fuzz(kinds, given.runs, given.seed)
    rows = [[kind, str(given.runs), str(given.runs - found[kind])] for kind in kinds]
    print(markdown(["kind", "runs", "clean"], rows))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
