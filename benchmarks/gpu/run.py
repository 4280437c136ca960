"""One script for a machine with a CUDA compiler and no network: build, expand, measure, report.

    python benchmarks/gpu/run.py pack                      here, with a network: writes lacli-gpu.tar.xz
    python benchmarks/gpu/run.py all                       there, in the unpacked folder
    python benchmarks/gpu/run.py all --dry-run             the same on a CPU, tiny and without a build

Stages one by one: build, expand, bench, report; each goes on where it stopped. Needs Python's standard library only:
what it starts imports what the kit brought.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.gpu import build, measure, pack
from benchmarks.gpu.commands import KitError, run_command
from benchmarks.gpu.folders import ROOT, Folders, read_json, write_whole
from benchmarks.gpu.machine import describe_machine, folder_name
from benchmarks.gpu.measure import FULL, TINY, TINY_SHAPE, Model
from benchmarks.gpu.report import report
from benchmarks.gpu.toolkit import cuda_arguments, find_nvcc

CPU = "cpu"
STAGES = ("build", "expand", "bench", "report")


def read_command_line() -> argparse.Namespace:
    """The options of all stages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stage", choices=("pack", *STAGES, "all"))
    parser.add_argument("--dry-run", "--cpu", action="store_true", help="no build, a tiny model, few tokens, the CPU")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu", help="build, models (default: build/gpu)")
    parser.add_argument(
        "--archive", type=Path, help="pack: what to write; elsewhere: where the kit is, if not unpacked"
    )
    parser.add_argument("--results", type=Path, help="where (default: benchmarks/results; a dry run's: in --work)")
    parser.add_argument("--machine", help="its folder in the results (default: the card's name)")
    parser.add_argument("--shapes", default="1b,7b,13b", help="of benchmarks/expand.py (default: 1b,7b,13b)")
    parser.add_argument("--types", default="F16", help="F16,Q8_0,Q4_0 (default: F16)")
    parser.add_argument("--seconds", type=float, default=180.0, help="of each benchmark (default: 180)")
    parser.add_argument("--arch", default="native", help="the card's architecture for CMake, as 90; cpu: no card")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: cores)")
    parser.add_argument("--sdist", type=Path, help="pack: llama-cpp-python's source archive, downloaded before")
    parser.add_argument("--python", default="3.12", help="pack: the other machine's Python (default: 3.12)")
    parser.add_argument("--wheels", default="all", help="pack: of all that lacli imports, of none, or NAME,NAME")
    return parser.parse_args()


def say(sentence: str) -> None:
    """Tell the person how it goes."""
    print(sentence, file=sys.stderr, flush=True)


def choose_folders(arguments: argparse.Namespace) -> Folders:
    """Where everything is; notes what machine this is in its results."""
    work: Path = arguments.work.resolve()
    machine = describe_machine(cpu_only=arguments.dry_run or arguments.arch == CPU)
    base: Path = arguments.results or (work / "results" if arguments.dry_run else ROOT / "benchmarks" / "results")
    results = base.resolve() / (arguments.machine or folder_name(machine))
    if arguments.stage in ("bench", "all") and not (results / "machine.json").exists():
        write_whole(results / "machine.json", json.dumps(machine, indent=2) + "\n")
    return Folders(work, work / "kit" / pack.FOLDER if arguments.archive else ROOT, results)


def choose_models(arguments: argparse.Namespace) -> list[Model]:
    """Every shape in every type."""
    shapes, types = arguments.shapes.split(","), arguments.types.split(",")
    if arguments.dry_run:
        shapes, types = [TINY_SHAPE], types[:1]
    return [Model(shape, type_name) for shape in shapes for type_name in types]


def run_pack(arguments: argparse.Namespace) -> None:
    """Write the archive."""
    out = arguments.archive or Path("lacli-gpu.tar.xz")
    size = pack.pack(out, arguments.sdist, arguments.python, arguments.wheels)
    say(f"pack: {out}, {size / 1e6:.1f} MB")


def run_build(arguments: argparse.Namespace, folders: Folders) -> None:
    """Build, unless that is done."""
    if arguments.dry_run:
        say("build: a dry run uses the llama-cpp-python that is installed")
        return
    if arguments.archive:
        pack.unpack(arguments.archive.resolve(), folders.work / "kit")
    if not build.is_built(folders):
        flags = [] if arguments.arch == CPU else cuda_arguments(find_nvcc(), arguments.arch)
        build.build(folders, flags, arguments.jobs)
    say("build: built")


def run_expand(arguments: argparse.Namespace, folders: Folders) -> None:
    """Write the models."""
    measure.expand(folders, choose_models(arguments), run_command, say)


def run_bench(arguments: argparse.Namespace, folders: Folders) -> None:
    """Measure; what failed is told after everything else has run."""
    plan = TINY if arguments.dry_run else FULL
    failed = measure.measure(folders, choose_models(arguments), plan, arguments.seconds, run_command, say)
    if failed:
        raise KitError("; ".join(failed))


def run_report(arguments: argparse.Namespace, folders: Folders) -> None:
    """Write the README of the results."""
    if read_json(folders.results / "machine.json") is None:
        raise KitError(f"there are no results in {folders.results}: run the stage bench")
    write_whole(folders.results / "README.md", report(folders.results))
    say(f"report: {folders.results / 'README.md'}")


STEPS: dict[str, Callable[[argparse.Namespace, Folders], None]] = {
    "build": run_build,
    "expand": run_expand,
    "bench": run_bench,
    "report": run_report,
}


def run_all(arguments: argparse.Namespace, folders: Folders) -> None:
    """All stages; a failed measurement is reported after the others, with the report written."""
    run_build(arguments, folders)
    run_expand(arguments, folders)
    try:
        run_bench(arguments, folders)
    finally:
        run_report(arguments, folders)


def main() -> None:
    """Run the stage that the command line asks for."""
    arguments = read_command_line()
    try:
        if arguments.stage == "pack":
            run_pack(arguments)
            return
        folders = choose_folders(arguments)
        STEPS.get(arguments.stage, run_all)(arguments, folders)
    except KitError as error:
        raise SystemExit(f"{arguments.stage}: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(f"{arguments.stage}: interrupted; the same command goes on from here") from None


if __name__ == "__main__":
    main()
