"""Lookahead parallelism on machines that are not here: expected speed on 1 to 8 devices, in one box or over a network.

    python -m benchmarks.simulate_lp --model FILE                    an A100 as the paper's Table 3 shows it
    python -m benchmarks.simulate_lp --model FILE --machine gpu --latency 0.1,1 --gigabits 25
    lacli cost MODEL --json > mine.json && python -m benchmarks.simulate_lp --model FILE --machine mine.json --shape 13b

The model really decodes some prompts; its trees and accepted paths are dealt out by lacli's own rules to devices
whose steps take what a staircase says. S and rows are measured so, times are computed. What the numbers mean is in
docs/parallel.md. Prints Markdown tables of tokens per plain step of one device: plain decoding's speed is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from benchmarks.parallel.answers import Answers, lookahead
from benchmarks.parallel.machine import A100, MACHINES, Network, machine_of
from benchmarks.parallel.panels import by_latency, by_number
from benchmarks.parallel.study import Study, auto_by_devices, best, by_devices, layers, over_network, paying, speeds_of
from benchmarks.parallel.tables import THE_PAPERS, as_json, tables
from benchmarks.pictures.figure import check_plot_path, save
from benchmarks.shapes import SHAPES as MODELS
from lacli.bench.tasks import by_class, read_tasks
from lacli.errors import LacliError

PROMPTS = Path(__file__).with_name("prompts.jsonl")
MOST_DEVICES = 64
SIZES = "5/5/5,15/5/15,30/5/30,60/5/60,120/5/120,15/8/15,30/8/30,60/8/60"


def study(arguments: argparse.Namespace) -> Study:
    """Decode, deal out and time; lines on standard error say how far it has got."""
    machine = machine_of(arguments.machine, arguments.single_ms)
    network = Network(arguments.latency, arguments.gigabits * 1e9, MODELS[arguments.shape])
    classes = by_class(read_tasks(str(arguments.prompts))).values()
    tasks = [task for members in classes for task in members[: arguments.first]]
    with Answers(arguments.model, tasks, arguments.sizes, arguments.limit, arguments.threads) as answers:
        sizes = {}
        for size in arguments.sizes:
            say(f"decoding with {size}")
            sizes[size] = answers.with_lookahead(size)
        say("dealing out in one machine")
        auto = partial(answers.with_auto, machine.stairs)
        times = by_devices(sizes, machine, arguments.devices)
        speeds = speeds_of(sizes, times)
        in_auto = auto_by_devices(auto, machine, arguments.devices)
        say("dealing out over a network")
        good = {size: sizes[size] for size, _ in best(speeds)}
        networks = over_network(good, auto, machine, network, arguments.devices)
    return Study(
        machine,
        network,
        arguments.devices,
        sizes,
        speeds,
        in_auto,
        paying(sizes, times, machine, arguments.devices),
        networks,
        layers(sizes, machine, network),
    )


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def draw(path: Path, found: Study) -> None:
    """The two pictures in one file: of the sizes that are best for some number of devices, and the paper's."""
    chosen = [size for size in found.speeds if size == THE_PAPERS or size in dict(best(found.speeds))]
    lines = {f"lookahead {size}": found.speeds[size] for size in chosen}
    shown = sorted(
        {found.devices[min(1, len(found.devices) - 1)], found.devices[len(found.devices) // 2], found.devices[-1]}
    )
    over = {words.split(", ")[1]: each for words, each in found.networks.items() if words.startswith("lookahead")}
    caption = (
        f"{found.machine.name}, t(1) = {1e3 * found.machine.single_s:.3g} ms. S and rows were measured on this "
        f"model, times are computed. RPC: {found.network.bits / 1e9:g} Gbit/s, a model of {found.network.model}."
    )
    panels = [
        partial(by_number, devices=found.devices, lines=lines, auto=found.auto),
        partial(by_latency, devices=found.devices, shown=shown, alone=found.alone, over=over),
    ]
    save(path, panels, title="Lookahead parallelism, simulated", caption=caption)


def positive(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not 0 < number < 1e6:
        raise ValueError
    return number


def count(text: str) -> int:
    """1 or more."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def milliseconds(text: str) -> list[float]:
    """Seconds, of positive milliseconds with commas between them."""
    return [positive(part) / 1e3 for part in text.split(",")]


def counts(text: str) -> list[int]:
    """Numbers of devices, in order and from 1 on, without repetitions."""
    found = sorted({1, *(int(part) for part in text.split(","))})
    if not 1 <= found[0] <= found[-1] <= MOST_DEVICES:
        raise ValueError
    return found


def sizes(text: str) -> list[str]:
    """W/N/G, with commas between them."""
    for size in text.split(","):
        lookahead(size)
    return text.split(",")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--machine",
        default=A100,
        help=f"{', '.join(MACHINES)}, points such as 1:1,8:2.5, or a file of `lacli cost --json`",
    )
    parser.add_argument("--single-ms", type=positive, default=10.0, help="t(1) where --machine does not say it")
    parser.add_argument("--devices", type=counts, default=counts("1,2,3,4,6,8"), help="how many, with commas")
    parser.add_argument(
        "--latency",
        type=milliseconds,
        default=milliseconds("0.1,0.3,1,3,10"),
        help="milliseconds there and back, with commas",
    )
    parser.add_argument("--gigabits", type=positive, default=10.0, help="of the network, a second")
    parser.add_argument("--shape", choices=list(MODELS), default="7b", help="of the model that RPC sends for")
    parser.add_argument("--sizes", type=sizes, default=sizes(SIZES), help="W/N/G, with commas")
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file that decodes")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines, as lacli bench takes them")
    parser.add_argument("--first", type=count, default=1, help="prompts of each class")
    parser.add_argument("--limit", type=count, default=96, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    parser.add_argument("--plot", type=Path, help="draw into this .png, .svg or .pdf file too")
    return parser.parse_args()


def main() -> None:
    try:
        arguments = parsed()
        if arguments.plot:
            check_plot_path(arguments.plot)
        found = study(arguments)
        print(json.dumps(as_json(found)) if arguments.json else tables(found))
        if arguments.plot:
            draw(arguments.plot, found)
    except LacliError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
