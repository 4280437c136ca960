"""Draws docs/pictures/*.svg from recorded data: `python docs/pictures.py`.

`--record MODEL` records `recorded.json` (two answers, with the seconds of each token) and `chat.json` (the screen of a
chat) anew. `speed.json` is the measured table of benchmarks.md. The step costs are `benchmarks/step_costs.jsonl`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from math import log2
from pathlib import Path
from time import perf_counter
from typing import Any

import pexpect
import pyte

from benchmarks.mask import rows_of
from lacli.engine.load import open_engine
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.reasoning import mark_reasoning

FOLDER = Path(__file__).with_name("pictures")
COSTS = Path(__file__).parents[1] / "benchmarks/step_costs.jsonl"

QUESTION = '''Rename the function area to size in this code:
```python
def area(width, height):
    """Return the area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("sizes must not be negative")
    return width * height
```'''

KINDS = {
    "dear rows: two CPU cores, llama.cpp, 1.5B Q4_K_M": ("two AVX-512 cores", "Qwen2.5-Coder-1.5B Q4_K_M"),
    "middle: RTX 3090, 8B Q4_0": ("RTX 3090", "8B Q4_0"),
    "cheap rows: DGX Spark, 7B Q8_0": ("DGX Spark", "7B Q8_0"),
}
"""Three machines of the table of step costs, by what the picture calls them."""

STYLE = """
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
.dim { fill: #656d76 } .drafted { fill: #1a7f37; font-weight: bold } .model { fill: #1f2328 }
.frame { fill: #f6f8fa; stroke: #d0d7de } .axis { stroke: #d0d7de } .bar { fill: #8c959f } .ours { fill: #1a7f37 }
.a { stroke: #cf222e } .b { stroke: #9a6700 } .c { stroke: #1a7f37 } .line { fill: none; stroke-width: 2 }
.I { fill: #cf222e } .V { fill: #1a7f37 } .L { fill: #0969da } .whisker { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text, .model { fill: #e6edf3 } .dim { fill: #8d96a0 } .drafted, .ours { fill: #3fb950 }
  .frame { fill: #161b22; stroke: #30363d } .axis { stroke: #30363d } .bar { fill: #6e7681 }
  .a { stroke: #ff7b72 } .b { stroke: #d29922 } .c { stroke: #3fb950 } .whisker { stroke: #e6edf3 }
  .I { fill: #ff7b72 } .V { fill: #3fb950 } .L { fill: #58a6ff }
}"""


def write(name: str, width: int, height: int, parts: Iterable[str]) -> None:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    (FOLDER / f"{name}.svg").write_text("\n".join([f"{head}<style>{STYLE}</style>", *parts, "</svg>\n"]))


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def record(model: Path) -> None:
    """Answer QUESTION plainly and in mode auto, and keep each piece with its origin and its second."""
    found: dict[str, Any] = {"model": model.stem}
    for mode in ("plain", "auto"):
        with open_engine(model, ModelSettings(), DecodeSettings(mode=mode)) as engine:  # type: ignore[arg-type]
            for _ in range(2):  # the first answer warms the processor up
                _, pieces = engine.generate(engine.prompts.question(QUESTION), 128)
                rows, begin = list[tuple[str, str, float]](), 0.0
                for piece in mark_reasoning(pieces):
                    begin = begin or perf_counter()
                    rows.append((piece.text, piece.origin.value, round(perf_counter() - begin, 4)))
            found[mode] = rows
    (FOLDER / "recorded.json").write_text(json.dumps(found, indent=0) + "\n")


def record_chat(model: Path) -> None:
    """Type three lines into a chat on a terminal, and keep its screen: by line the runs of one colour."""
    typed = ["Write a Python function area(width, height) with a short docstring.", "Rename it to size.", "/stats", ""]
    stream = pyte.ByteStream(screen := pyte.Screen(90, 50))
    chat = f"{sys.executable} -m lacli chat {model} --show-accepted --no-history"
    with pexpect.spawn(f"env TERM=xterm PROMPT_TOOLKIT_NO_CPR=1 {chat}", dimensions=(50, 90), timeout=250) as child:
        for line in typed:
            child.expect_exact("\x1b[?2004h")  # the prompt is ready
            stream.feed(child.before)
            child.send(f"{line}\r")
    rows = (groupby(map(screen.buffer[y].__getitem__, range(90)), lambda each: each.fg) for y in range(screen.cursor.y))
    runs = [[(color, "".join(each.data for each in run)) for color, run in row] for row in rows]
    (FOLDER / "chat.json").write_text(json.dumps(runs, indent=0) + "\n")


def draw_chat(lines: list[list[tuple[str, str]]]) -> None:
    """A chat on a terminal; drafted tokens are green."""
    parts = [f'<rect class="frame" x="10" y="10" width="730" height="{18 * len(lines) + 24}" rx="6"/>']
    for y, runs in enumerate(lines):
        own = "dim" if runs[0][1].startswith("lacli: ") else "model"
        spans = (f'<tspan class="{"drafted" if fg == "green" else own}">{escape(run)}</tspan>' for fg, run in runs)
        parts.append(f'<text x="22" y="{34 + 18 * y}">{"".join(spans)}</text>')
    write("chat", 750, 18 * len(lines) + 44, parts)


def draw_run(found: dict[str, Any]) -> None:
    """The moving picture: plain decoding and mode auto, each token at its recorded second."""
    parts = list[str]()
    for place, mode in enumerate(("plain", "auto")):
        left, seconds, x, y = 10 + 450 * place, found[mode][-1][2], 0, 0
        parts.append(f'<rect class="frame" x="{left}" y="10" width="440" height="250" rx="6"/>')
        parts.append(text(left + 12, 32, {"plain": "plain decoding", "auto": "lacli, mode auto"}[mode], "dim"))
        for words, origin, second in found[mode]:
            kind, shown = "model" if origin == "model" else "drafted", words.split("\n")
            for index, line in enumerate(shown):
                x, y = (x, y) if index == 0 else (0, y + 1)
                if line:
                    moving = f'<set attributeName="visibility" to="visible" begin="{second + 0.3:.2f}s"/>'
                    token = text(left + 12 + 7.8 * x, 60 + 19 * y, line, kind)
                    parts.append(f'<g visibility="hidden">{token}{moving}</g>')
                x += len(line)
        end = f"{len(found[mode])} tokens in {seconds:.1f} s"
        parts.append(f'<g visibility="hidden">{text(left + 428, 32, end, "dim", "end")}'
                     f'<set attributeName="visibility" to="visible" begin="{seconds + 0.3:.2f}s"/></g>')  # fmt: skip
    parts.append(text(10, 284, f"{found['model']}, an edit, two CPU cores, ik_llama.cpp; green: drafted tokens", "dim"))
    write("run", 910, 296, parts)


def draw_speed(found: list[dict[str, Any]]) -> None:
    """Speeds over llama.cpp's plain decoding with their 95% intervals, measured."""
    parts, y, scale = list[str](), 20, 230.0
    for model in found:
        parts.append(text(10, y + 4, f"{model['model']}: times llama.cpp's plain decoding, nine classes", "dim"))
        for name, value, low, high in model["rows"]:
            y += 24
            parts.append(text(10, y + 4, name))
            kind = "ours" if name.startswith("lacli") else "bar"
            parts.append(f'<rect class="{kind}" x="290" y="{y - 8}" width="{value * scale:.0f}" height="15"/>')
            line = f'x1="{290 + low * scale:.0f}" x2="{290 + high * scale:.0f}" y1="{y}" y2="{y}"'
            parts.append(f'<line class="whisker" {line}/>' if low < high else "")
            parts.append(text(300 + max(high, value) * scale, y + 4, f"{value:.2f}", "dim"))
        y += 36
    parts.append(f'<line class="axis" x1="{290 + scale:g}" x2="{290 + scale:g}" y1="28" y2="{y - 22}"/>')
    write("speed", 910, y - 6, parts)


def draw_rows() -> None:
    """What a step of b rows costs on three kinds of machine, on logarithmic axes; below a line, drafts gain."""
    laws = [json.loads(line) for line in COSTS.read_text().splitlines()]
    left, bottom, wide, high = 60, 330, 110.0, 85.0
    parts = [text(left, 20, "what a step costs, in plain steps", "dim"), text(left + 330, bottom + 40, "rows", "dim")]
    for power in range(6):
        parts.append(text(left + wide * power, bottom + 20, str(2**power), "dim", "middle"))
        if power < 4:
            y = bottom - high * power
            parts.append(text(left - 12, y + 4, str(2**power), "dim", "end"))
            parts.append(f'<line class="axis" x1="{left}" x2="{left + 5 * wide:g}" y1="{y:g}" y2="{y:g}"/>')
    for index, (title, (machine, model)) in enumerate(KINDS.items()):
        law = next(each for each in laws if (each["machine"], each["model"]) == (machine, model))["relative"]
        points = [(int(rows), cost) for rows, cost in law.items() if int(rows) <= 32 and cost <= 10]
        line = " ".join(f"{left + wide * log2(rows):.1f},{bottom - high * log2(cost):.1f}" for rows, cost in points)
        parts.append(f'<polyline class="line {"abc"[index]}" points="{line}"/>')
        parts.append(f'<line class="line {"abc"[index]}" x1="{left + 20}" x2="{left + 50}" y1="{46 + 22 * index}" '
                     f'y2="{46 + 22 * index}"/>')  # fmt: skip
        parts.append(text(left + 60, 50 + 22 * index, title))
    write("rows", 640, 382, parts)


def draw_mask(settings: DecodeSettings) -> None:
    """The batch of a lookahead step and its mask, as the paper's Figure 2."""
    rows = rows_of(settings)
    title = f"W={settings.window} N={settings.ngram} G={settings.guesses}: row (down) sees column"
    parts = [text(10, 22, title, "dim")]
    for y, row in enumerate(rows):
        parts.append(text(10, 52 + 15 * y, f"{y:>2} {row.kind} {row.part}", row.kind))
        for x, other in enumerate(rows):
            place, kind = f'x="{250 + 15 * x}" y="{41 + 15 * y}"', other.kind if row.sees(other) else "frame"
            parts.append(f'<rect class="{kind}" {place} width="13" height="13"/>')
    for place, (kind, name) in enumerate((("I", "input"), ("V", "candidates to verify"), ("L", "lookahead window"))):
        parts.append(text(270 + 15 * len(rows), 60 + 22 * place, f"{kind}: {name}", kind))
    write("mask", 470 + 15 * len(rows), 60 + 15 * len(rows), parts)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--record"]:
        record(Path(arguments[1]))
        record_chat(Path(arguments[1]))
    draw_chat(json.loads((FOLDER / "chat.json").read_text()))
    draw_run(json.loads((FOLDER / "recorded.json").read_text()))
    draw_speed(json.loads((FOLDER / "speed.json").read_text()))
    draw_rows()
    draw_mask(DecodeSettings(mode="lookahead", window=4, ngram=4, guesses=3))


if __name__ == "__main__":
    main(sys.argv[1:])
