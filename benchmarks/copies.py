"""What guesses from the text itself are worth in edits: texts replayed, no model asked for its choices.

    python -m benchmarks.copies                       # a machine with AMX
    python -m benchmarks.copies --stairs gpu

Tokens per plain step by kind of edit, where matches are copied (`before`), and where a copy is followed behind its
changes too (`with`), as mode auto plans steps with these sources alone and no account of losses. The edits are answers
of a model that does what it is told: functions, docstrings and records of this Python's standard library, changed by a
program, in the model's tokens. `--answers` adds what the model itself answers. No test lives here.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.auto import number
from benchmarks.oracle import best_rows
from benchmarks.simulated import SHAPES, Stairs
from lacli.auto.cost_model import StepCostModel
from lacli.auto.planner import Branches, Chain, Limits, best_prefix
from lacli.auto.rewriting import RewritingSource
from lacli.auto.step_cost import Cost, Point, StepCost
from lacli.auto.suffix import MatchSource, SuffixSource
from lacli.bench.tasks import built_in, read_tasks
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.session.session import Session
from lacli.settings import LEAVES, DecodeSettings
from lacli.text.format import markdown

AMX = "1:1,2:1.72,4:2.01,8:2.67,10:2.50,12:2.68,16:3.18,20:3.96,32:5.40,64:10.2"
"""Two Xeon cores, 0.5B shape in Q4_0, measured with `lacli cost` in November 2026."""

MARGIN, CHEAP_ROW = 1.08, 0.15
"""What a step with guesses must promise beside a plain one, and plain steps a row up to which trees are planned."""

COUNT = 24
"""Edits of each kind."""

NAMES = ["count", "items", "result", "payload", "current_value", "node", "user_name", "handle_request", "buffer"]
WORDS = ["value", "object", "method", "result", "number", "when", "returned", "other", "first", "default", "always"]
PEOPLE = ["Anna", "Boris", "Clara", "David", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Olga"]
FAMILIES = ["Miller", "Novak", "Olsen", "Perez", "Quist", "Rossi", "Silva", "Tanaka", "Urban", "Weber", "Zhang"]
PLACES = ["Berlin", "Lisbon", "Madrid", "Oslo", "Paris", "Rome", "Tokyo", "Vienna", "Zurich", "Dublin"]


class Text(NamedTuple):
    """A prompt, and its answer's tokens."""

    kind: str
    prompt: list[int]
    answer: list[int]


Edit = tuple[str, str, str]
"""An instruction, a text, and what becomes of it."""


def renamed(code: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![\w.]){old}\b", new, code)


def names_in(node: ast.AST) -> list[str]:
    """The arguments and variables of a function, without `self`."""
    arguments = [each.arg for each in ast.walk(node) if isinstance(each, ast.arg)]
    stored = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    return [name for name in dict.fromkeys(arguments + stored) if name not in ("self", "cls")]


def rename(random: Random, code: str, node: ast.FunctionDef, count: int) -> Edit | None:
    """Replace the `count` most frequent names."""
    names = sorted(names_in(node), key=lambda name: -len(re.findall(rf"(?<![\w.]){name}\b", code)))[:count]
    fresh = random.sample([name for name in NAMES if not re.search(rf"\b{name}\b", code)], count)
    if len(names) < count or len(re.findall(rf"(?<![\w.]){names[0]}\b", code)) < 3:
        return None
    changed = code
    for old, new in zip(names, fresh, strict=True):
        changed = renamed(changed, old, new)
    return "Rename " + ", ".join(f"`{old}` to `{new}`" for old, new in zip(names, fresh, strict=True)), code, changed


def docstring(random: Random, code: str, node: ast.FunctionDef) -> Edit | None:
    """Remove the docstring, or add it."""
    if not ast.get_docstring(node):
        return None
    first, lines = node.body[0], code.split("\n")
    bare = "\n".join(lines[: first.lineno - 1] + lines[first.end_lineno :])
    return random.choice([("Remove the docstring.", code, bare), ("Add a docstring.", bare, code)])


def annotate(random: Random, code: str, node: ast.FunctionDef) -> Edit | None:
    """Give every argument a type."""
    changed = code
    for argument in node.args.args:
        kind = random.choice(["int", "str", "bool", "list[str]", "Path", "float"])
        if argument.arg not in ("self", "cls"):
            changed = re.sub(rf"(def [^\n]*?[(, ]){argument.arg}\b", rf"\1{argument.arg}: {kind}", changed, count=1)
    changed = re.sub(r"\):\n", ") -> None:\n", changed, count=1)
    return ("Add type annotations.", code, changed) if changed != code else None


def attribute(random: Random, code: str, node: ast.FunctionDef) -> Edit | None:
    """Replace the most frequent attribute of `self`."""
    found = sorted(set(re.findall(r"self\.(\w+)", code)), key=lambda name: (-code.count(f"self.{name}"), name))
    if code.count("self.") < 6:
        return None
    new = random.choice([f"self._{found[0].strip('_')}_", f"self.state.{found[0]}"])
    return f"Replace self.{found[0]} by {new}.", code, re.sub(rf"self\.{found[0]}\b", new, code)


def quotes(random: Random, code: str, node: ast.FunctionDef) -> Edit | None:
    """Write double quotes for single ones."""
    fits = code.count("'") >= 8 and '"' not in code
    return ("Use double quotes instead of single ones.", code, code.replace("'", '"')) if fits else None


def prose(random: Random, code: str, node: ast.FunctionDef) -> Edit | None:
    """Correct a docstring in which one word in twelve is another one, missing, or too much."""
    text = ast.get_docstring(node) or ""
    if not 300 < len(text) < 1600 or ">>>" in text:
        return None
    words = re.split(r"(\s+)", text)
    for place in range(0, len(words), 2):
        if random.random() < 1 / 12:
            other = random.choice(WORDS)
            words[place] = random.choice([other, other, f"{words[place]} {other}", ""])
    return "Correct the mistakes and answer with the whole text.", "".join(words), text


def records(random: Random, code: str, node: ast.FunctionDef) -> Edit | None:
    """Write records as JSON; they have nothing to do with the function."""
    pick = random.choice
    found = [
        (f"{pick(PEOPLE)} {pick(FAMILIES)}", random.randint(18, 80), pick(PLACES), f"+{random.randint(10**8, 10**9)}")
        for _ in range(random.randint(5, 9))
    ]
    line = pick(["{}, {} years old, lives in {}, phone {}", "{};{};{};{}"])
    answer = [dict(zip(("name", "age", "city", "phone"), each, strict=True)) for each in found]
    text = "\n".join(line.format(*each) for each in found)
    return "Convert to JSON with name, age, city and phone.", text, json.dumps(answer, indent=2)


KINDS: dict[str, Callable[[Random, str, ast.FunctionDef], Edit | None]] = {
    "a name replaced": partial(rename, count=1),
    "three names replaced": partial(rename, count=3),
    "an attribute replaced": attribute,
    "single to double quotes": quotes,
    "types added": annotate,
    "docstring added or removed": docstring,
    "prose corrected": prose,
    "records to JSON": records,
}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of 8 to 32 lines of the standard library, the same ones in the same order on any machine."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_text(errors="replace")
        lines = source.split("\n")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and 8 <= (node.end_lineno or 0) - node.lineno <= 32:
                code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                # A string with lines at the margin keeps a method where it is.
                parsed = ast.parse(code).body[0] if code.startswith("def ") else None
                if isinstance(parsed, ast.FunctionDef):
                    yield code, parsed


def edits() -> Iterator[tuple[str, Edit]]:
    """COUNT edits of each kind."""
    random = Random(5)
    found = list(functions())
    random.shuffle(found)
    for kind, edit in KINDS.items():
        made = (edit(random, code, node) for code, node in found)
        for _, each in zip(range(COUNT), filter(None, made), strict=False):
            yield kind, each


def edited_texts(session: Session) -> Iterator[Text]:
    for kind, (instruction, before, after) in edits():
        prompt = session.prompt(f"{instruction}\n```\n{before}\n```", "", raw=False)
        answer = session.model.tokenize(f"```\n{after}\n```", add_special=False)
        yield Text(kind, list(prompt), [*answer, *session.model.ends()[:1]])


def answered_texts(session: Session, limit: int) -> Iterator[Text]:
    """What the model answers to the benchmarks' prompts."""
    plain = DecodeSettings(mode="plain")
    engine = LlamaEngine(session.model, session.model_settings, Capacity.of([plain]), backend_greedy=False)
    for task in [*built_in(), *read_tasks("benchmarks/prompts.jsonl")]:
        prompt = session.prompt(task.turns[0], task.system, raw=task.raw)
        steps = session.decoder_in(engine, plain).generate(prompt, limit)
        kind = task.kind if task.kind in ("edit", "extract") else "other"
        yield Text(f"answers, {kind}", list(prompt), [token for step in steps for token in step.tokens])


class Machine:
    """Steps of up to the largest measured size, in plain steps."""

    def __init__(self, stairs: Stairs) -> None:
        self.rows = int(stairs.rows[-1])
        points = tuple(Point(rows, stairs(rows), stairs(rows)) for rows in range(1, self.rows + 1))
        cost = StepCost(64, points)
        model = StepCostModel(self.rows, Cost((cost,)))
        self.relative, self.slope, self.best = model.relative, model.slope, best_rows(cost)

    def oracle(self, tokens: int) -> float:
        """Plain steps that an oracle takes for an answer."""
        steps, rest = divmod(tokens, self.best)
        return steps * self.relative[self.best] + (self.relative[rest] if rest else 0.0)

    def replay(self, sources: Sequence[MatchSource], text: Text) -> float:
        """Plain steps that an answer takes with these sources."""
        known, whole, spent = list(text.prompt), text.prompt + text.answer, 0.0
        for source in sources:
            source.begin(known)
        while len(known) < len(whole):
            room = min(self.rows, len(whole) - len(known) + 1)
            grow = self._tree if self.slope[1] <= CHEAP_ROW else self._chain
            rows, paths = grow(sources, known, room)
            spent += self.relative[rows]
            accepted = max((common(path, whole[len(known) :]) for path in paths), default=0)
            known += whole[len(known) : len(known) + accepted + 1]
            for source in sources:
                source.extend(known)
        return spent

    def _chain(self, sources: Sequence[MatchSource], text: Sequence[int], room: int) -> tuple[int, list[list[int]]]:
        best, rows, chain = MARGIN, 1, list[int]()
        for source in sources:
            if source.kind >= 0:
                limits = Limits(self.relative, self.slope, room, float("inf"))
                (count,), tokens = best_prefix([Chain(source.chances(room - 1))], limits, chains=True)
                size = 1 + count
                if tokens > best * self.relative[size]:
                    best, rows, chain = tokens / self.relative[size], size, source.continuation(size - 1)
        return rows, [chain]

    def _tree(self, sources: Sequence[MatchSource], text: Sequence[int], room: int) -> tuple[int, list[list[int]]]:
        branches = Branches(sources, text, LEAVES, room - 1)
        (count,), tokens = best_prefix([branches], Limits(self.relative, self.slope, room, float("inf")))
        rows = 1 + count
        if tokens < MARGIN * self.relative[rows]:
            return 1, []
        paths = list[list[int]]()
        for node in branches.nodes[:count]:
            paths.append([*(paths[node.parent] if node.parent >= 0 else []), node.token])
        return rows, paths


def common(path: Sequence[int], text: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = zip(path, text, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(path), len(text)))


def both(is_end: Callable[[int], bool]) -> list[MatchSource]:
    """The sources that mode auto has for copies."""
    suffix = SuffixSource(is_end=is_end)
    return [suffix, RewritingSource(suffix)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--stairs", default=AMX, help=f"{', '.join(SHAPES)}, or points such as 1:1,8:2.5")
    parser.add_argument("--limit", type=int, default=200, help="tokens of an answer")
    parser.add_argument("--answers", action="store_true", help="the model's own answers too")
    arguments = parser.parse_args()
    settings = ModelSettings(context=4096, threads=1, threads_batch=1)
    session = Session(arguments.model, settings, DecodeSettings(mode="plain"), SamplingSettings(temp=0))
    texts = [*edited_texts(session), *(answered_texts(session, arguments.limit) if arguments.answers else ())]
    machine, rows = Machine(Stairs.named(arguments.stairs)), list[list[str]]()
    for kind in dict.fromkeys(text.kind for text in texts):
        chosen = [text._replace(answer=text.answer[: arguments.limit]) for text in texts if text.kind == kind]
        tokens = sum(len(text.answer) for text in chosen)
        before = sum(machine.replay([SuffixSource()], text) for text in chosen)
        after = sum(machine.replay(both(session.model.is_end), text) for text in chosen)
        oracle = sum(machine.oracle(len(text.answer)) for text in chosen)
        rows.append([kind, *(number(tokens / spent) for spent in (before, after, oracle)), str(len(chosen))])
    print(markdown(["tokens per plain step", "before", "with", "oracle", "texts"], rows))


if __name__ == "__main__":
    main()
