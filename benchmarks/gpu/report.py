"""The README of a machine's results: tables made from the JSON files beside it.

Formats what is there; a result that is missing has no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.folders import read_json
from lacli.text.format import markdown

Row = dict[str, Any]

ALL = "all"
"""The class of a benchmark's rows over all classes."""

STEPS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
"""Rows of a step that the table shows."""


def report(results: Path) -> str:
    """The README's text."""
    models = sorted({path.name.partition(".")[0] for path in results.glob("*.*.json")}, key=by_size)
    rows = {model: read_json(results / f"{model}.bench.json") or [] for model in models}
    parts = [
        "# Measured by `benchmarks/gpu/run.py`",
        heading(read_json(results / "machine.json") or {}),
        "The models are the bundled 7M one in bigger shapes (`benchmarks/expand.py`): its texts at real models' cost.",
        section("All prompts together", speeds(rows)),
        section("Speed against plain decoding, by class", classes(rows)),
        section("What a step of many rows costs, in plain steps", stairs(results, models)),
        section("Is the text plain decoding's?", texts(results, models)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def by_size(name: str) -> tuple[float, str]:
    """Models in the order of their sizes."""
    number = name.partition("b-")[0]
    return (float(number) if number.replace(".", "", 1).isdigit() else 0.0, name)


def section(title: str, table: str) -> str:
    """A table under its title, or nothing."""
    return f"## {title}\n\n{table}" if table else ""


def heading(machine: Row) -> str:
    """The machine in a line."""
    if not machine:
        return ""
    cards = [f"{card['name']} ({card['memory']}, driver {card['driver']})" for card in machine["gpus"]]
    compiler = [f"CUDA {machine['cuda']}"] if machine["cuda"] else []
    memory = f"{machine['memory_gib']} GiB of memory"
    processor = f"{machine['cpu']} ({machine['cores']} cores, {memory})"
    return ", ".join([*cards, processor, *compiler, f"Python {machine['python']}", machine["date"]]) + "."


def speeds(rows: dict[str, list[Row]]) -> str:
    """A row for each model and setting."""
    header = ("model", "setting", "tokens/s", "x plain", "95%", "S", "rows", "ms/step", "identical")
    return table(header, (cells for model in rows for cells in speed_rows(model, rows[model])), left=2)


def speed_rows(model: str, rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Of one model."""
    for row in rows:
        if row["class"] != ALL:
            continue
        low, high = row["speedup_low"], row["speedup_high"]
        told = row["mode"] != "plain" and low is not None and high is not None
        yield (
            model,
            row["setting"],
            number(row["median_ts"], 1),
            number(row["speedup"], 2),
            f"{low:.2f} to {high:.2f}" if told else "",
            number(row["tokens_per_step"], 2),
            number(row["rows_per_step"], 1),
            number(row["ms_per_step"], 2),
            f"{row['identical_n']} of {row['prompts']}",
        )


def classes(rows: dict[str, list[Row]]) -> str:
    """Speed-ups: a row for each model and setting, a column for each class."""
    flat = [(model, row) for model in rows for row in rows[model] if row["mode"] != "plain"]
    kinds = list(dict.fromkeys(row["class"] for _, row in flat if row["class"] != ALL))
    found = {(model, row["setting"], row["class"]): row["speedup"] for model, row in flat}
    settings = dict.fromkeys((model, setting) for model, setting, _ in found)
    lines = ((*key, *(number(found.get((*key, kind)), 2) for kind in kinds)) for key in settings)
    return table(("model", "setting", *kinds), lines, left=2)


def stairs(results: Path, models: Sequence[str]) -> str:
    """t(b)/t(1): a row for each model and context."""
    found = [(model, each) for model in models for each in stairs_of(results, model)]
    shown = [size for size in STEPS if any(size in each["rows"] for _, each in found)]
    lines = []
    for model, each in found:
        relative = dict(zip(each["rows"], each["relative"], strict=True))
        costs = (number(relative.get(size), 2) for size in shown)
        lines.append((model, str(each["context"]), number(each["ms"][0], 2), *costs))
    return table(("model", "context", "ms plain", *(f"{size} rows" for size in shown)), lines)


def stairs_of(results: Path, model: str) -> list[Row]:
    """A model's staircases."""
    cost = read_json(results / f"{model}.cost.json")
    found: list[Row] = cost["staircases"] if cost else []
    return found


def texts(results: Path, models: Sequence[str]) -> str:
    """What `lacli check` found."""
    found = [(model, read_json(results / f"{model}.check.json")) for model in models]
    names = ("answers", "identical", "rounding", "bugs")
    lines = ((model, *(str(check[name]) for name in names), check["verdict"]) for model, check in found if check)
    return table(("model", *names, "verdict"), lines)


def number(value: float | None, digits: int) -> str:
    """A number, or nothing for none."""
    return "" if value is None else f"{value:.{digits}f}"


def table(header: Sequence[str], rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]], left: int = 1) -> str:
    """A Markdown table; nothing without rows."""
    lines = list(rows)
    return markdown(header, lines, left) if lines else ""
