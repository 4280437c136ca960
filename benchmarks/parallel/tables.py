"""What was simulated as a page of Markdown tables and as one JSON object, and what the paper says beside it.

Text out of records; nothing is timed here but the paper's own setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.insight.law import PAPER
from benchmarks.parallel.machine import A100, machine_of
from benchmarks.parallel.study import LAYERS, Sizes, Study, best, by_devices, compression, of_the_law, speeds_of
from lacli.text.format import markdown

THE_PAPERS = "15/5/15"


def tables(found: Study) -> str:
    """What was found, as a page."""
    machine, network = found.machine, found.network
    over = f"{network.bits / 1e9:g} Gbit/s"
    return "\n\n".join([
        f"{machine.name}: t(1) = {1e3 * machine.single_s:.3g} ms; t(b) up to {machine.measured} rows, then a line",
        "S as decoded here, the law fitted to its mean, and the paper's law of LLaMA-2-Chat-7B on MT-Bench",
        compressions(found),
        "Speed by number of devices, all in one machine",
        markdown(["W/N/G", *map(str, found.devices)],
                 [[name, *map(number, speeds)] for name, speeds in {**found.speeds, "auto": found.auto}.items()]),
        f"How far away the others may be: one device reaches {number(found.alone)} in lookahead or plain decoding, "
        f"{number(found.alone_in_auto)} in mode auto",
        markdown(["devices", "W/N/G", "speed without latency", "as fast as one device from"],
                 [[str(each.devices), each.size, number(each.speed), waiting(each.latency)] for each in found.paying]),
        f"Speed over a network of {over}, the first device here; RPC sends for a model of {network.model}",
        networks(found),
        f"One model's layers on {' and on '.join(map(str, LAYERS))} devices, all but the first behind RPC over {over}",
        layered(found),
        "Beside the paper: its law on a100, computed, where nothing else is said",
        beside_the_paper(found),
    ])  # fmt: skip


def compressions(found: Study) -> str:
    """S and rows by W/N/G."""
    kinds = [trace.kind for trace in next(iter(found.sizes.values()))]
    law, rows = found.law, []
    both = law, PAPER
    for size, traces in found.sizes.items():
        window, ngram, guesses = map(int, size.split("/"))
        mean = sum(trace.rows for trace in traces) / len(traces)
        # The law is about as many candidates as columns.
        laws = [number(each.compression(ngram - 1, window)) if each and guesses == window else "" for each in both]
        of_kinds = [number(trace.compression) for trace in traces]
        rows.append([size, f"{mean:.0f}", *of_kinds, number(compression(traces)), *laws])
    fitted = f"law, α {law.alpha:.2f}, f {law.f:.2f}" if law else "law (none fits)"
    return markdown(["W/N/G", "rows", *kinds, "mean", fitted, "paper's law"], rows)


def networks(found: Study) -> str:
    """Speeds by what travels and how long it takes there and back."""
    rows = [
        [words, milliseconds(latency), *map(number, speeds)]
        for words, by_latency in found.networks.items()
        for latency, speeds in by_latency.items()
    ]
    return markdown(["what travels", "there and back", *map(str, found.devices)], rows)


def layered(found: Study) -> str:
    """Plain decoding, lookahead, and how many times as fast the one is as the other."""
    header = [f"{words}, {count}" for count in LAYERS for words in ("plain", "lookahead", "ratio")]
    rows = [
        [milliseconds(latency), *(number(each) for plain, ahead in pairs for each in (plain, ahead, ahead / plain))]
        for latency, pairs in found.layers.items()
    ]
    return markdown(["there and back", *header], rows)


def beside_the_paper(found: Study) -> str:
    """What the paper's text says of several devices and what is simulated here."""
    law = of_the_law(sorted({*found.sizes, THE_PAPERS}))
    speeds = on_a100(law, [1, 2, 4, 8])
    one, two, four, most = best(speeds)
    ours = on_a100(found.sizes, [8])
    size = best(ours)[0][0]
    top, kind = max((on_a100({size: [each]}, [8])[size][0], each.kind) for each in found.sizes[size])
    rows = [
        ["S of 15/5/15, 7B on MT-Bench (Table 3)", "1.96", number(PAPER.compression(4, 15))],
        ["its speed-up on one GPU (Table 3; Figure 6: 1.9 over 1.07)", "1.78", number(speeds[THE_PAPERS][0])],
        ["the best of these sizes on one GPU", "", named(one)],
        ["on 2, on 4 GPUs (Figure 6)", "bars only", f"{named(two)}, {named(four)}"],
        ["on 8 GPUs, the most (5.2: ClassEval)", "4", f"{named(most)}; decoded here, {kind}: {number(top)} ({size})"],
        ["13B on 1 to 8 GPUs (Figure 7)", "bars only", "no law is given for it"],
        ["S on one GPU, on several (Appendix E)", "2.558, 2.557", "equal, the text is the same"],
        ["one model split over several GPUs (5.2)", "0.75 to 0.82", "1 at best, layers follow one another"],
    ]
    return markdown(["", "paper", "here"], rows, left=3)


def on_a100(sizes: Sizes, devices: Sequence[int]) -> dict[str, list[float]]:
    """Speeds on the paper's machine."""
    return speeds_of(sizes, by_devices(sizes, machine_of(A100, 1), devices))


def named(found: tuple[str, float]) -> str:
    return f"{number(found[1])} ({found[0]})"


def number(value: float) -> str:
    return f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:g} ms"


def waiting(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds > 0 else "at once"


def as_json(found: Study) -> dict[str, Any]:
    """The same numbers for a program. Latencies are milliseconds."""
    return {
        "machine": found.machine.name,
        "single_ms": 1e3 * found.machine.single_s,
        "gigabits": found.network.bits / 1e9,
        "devices": list(found.devices),
        "compression": {
            size: {trace.kind: round(trace.compression, 4) for trace in traces} for size, traces in found.sizes.items()
        },
        "rows": {size: {trace.kind: round(trace.rows, 1) for trace in traces} for size, traces in found.sizes.items()},
        "speeds": {name: rounded(speeds) for name, speeds in {**found.speeds, "auto": found.auto}.items()},
        "alone": round(found.alone, 4),
        "paying": [
            {**asdict(each), "speed": round(each.speed, 4), "latency": round(1e3 * each.latency, 4)}
            for each in found.paying
        ],
        "networks": [
            {"travels": words, "latency": 1e3 * latency, "speeds": rounded(speeds)}
            for words, by_latency in found.networks.items()
            for latency, speeds in by_latency.items()
        ],
        "layers": [
            {"latency": 1e3 * latency, "devices": count, "plain": round(plain, 4), "lookahead": round(ahead, 4)}
            for latency, pairs in found.layers.items()
            for count, (plain, ahead) in zip(LAYERS, pairs, strict=True)
        ],
    }


def rounded(speeds: Sequence[float]) -> list[float]:
    return [round(speed, 4) for speed in speeds]
