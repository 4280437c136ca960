"""Compare mode auto with the alternatives of a user: a new process for every answer, all contenders in turns.

    python -m benchmarks.fresh --model FILE --spec-bench question.jsonl --seconds 1500 --json rows.jsonl
    python -m benchmarks.fresh --table rows.jsonl        print only the tables of the answers in rows.jsonl

A contender is plain, auto, lookup, lookahead:W/N/G, or one of llama.cpp's programs on PATH: llama-lookup,
llama-lookahead, llama-server:KIND of speculation. A mode with @ik at its end decodes with ik_llama.cpp. All contenders
decode the same rendered prompt greedily. lacli gets the cache folder after one earlier answer of the model, as in a
user's second run. Speeds are of the decode phase, by each program's own clock. Progress is printed on stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from benchmarks.fresh_table import SHORTEST, Answer, Row, read_rows, tables
from benchmarks.rivals import ANSWER_S, START_S, Rival, environment, failed, find_rival
from lacli.engine.load import ModelEngine, open_engine
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.template import with_one_bos

ROOT = Path(__file__).parent.parent
OWN_PROMPTS = tuple(Path(__file__).with_name(name) for name in ("edits.jsonl", "third_turns.jsonl"))
CLASSES = {
    "qa": "question",
    "translation": "translation",
    "summarization": "summary",
    "rag": "retrieved passages",
    "math_reasoning": "maths",
    "coding": "code writing",
    "edit": "code edit",
    "extract": "JSON extraction",
    "third turn": "third turn",
}
"""The measured classes, by their names in the files of Spec-Bench and of lacli."""

QUICK = (
    "plain,auto,lookup,lookahead:5/4/5,llama-lookup,"
    "llama-server:ngram-simple,llama-server:ngram-cache,llama-server:ngram-mod"
)
SLOW = "lookahead:15/5/15,llama-lookahead"
"""Contenders that need 20 seconds for 96 tokens with a 0.5B model on two CPU cores."""

EARLIER = "Write a Python function that reads a CSV file into a list of dictionaries, and explain how it works."
"""The prompt of one answer by lacli before the measured answers; it fills the cache folder."""


@dataclass(frozen=True)
class Prompt:
    """A conversation up to the measured answer, as text and as token ids. `place`: its number in its class."""

    kind: str
    place: int
    text: str
    tokens: tuple[int, ...]


Ask = Callable[[Prompt, int], Answer]
"""A function that answers a prompt with at most the given number of tokens."""

Key = tuple[str, int, str]
"""The class and the place of a prompt, and the contender's name."""


def read_conversations(paths: Sequence[Path]) -> dict[str, list[list[str]]]:
    """Return the conversations of each class; each is a list of texts of user and model in turns, question last.

    A row's `answers` are the model's texts after its `turns`. The first turn without an answer is the question.
    Raises LacliError for a file that cannot be read.
    """
    found: dict[str, list[list[str]]] = {kind: [] for kind in CLASSES.values()}
    for path in paths:
        try:
            for row in map(json.loads, path.read_text("utf-8").splitlines()):
                turns, answers = row.get("turns") or [row["prompt"]], row.get("answers", [])
                if kind := CLASSES.get(row.get("class") or row["category"]):
                    earlier = [text for exchange in zip(turns, answers, strict=False) for text in exchange]
                    found[kind].append([*earlier, turns[len(answers)]])
        except (OSError, ValueError, LookupError) as error:
            raise LacliError(f"cannot read prompts in {path}: {error!r}", "rows need turns and category") from error
    return {kind: conversations for kind, conversations in found.items() if conversations}


def prompt_of(session: ModelEngine, kind: str, place: int, conversation: Sequence[str]) -> Prompt:
    """Render a conversation as a prompt of the session's model."""
    *earlier, question = conversation
    tokens = session.prompts.question(question, history=list(zip(earlier[::2], earlier[1::2], strict=True)))
    text = session.text(tokens, special=True)
    return Prompt(kind, place, with_one_bos(text, session.model.bos(), adds_bos=session.model.adds_bos), tuple(tokens))


def lacli(arguments: Sequence[str], cache: Path) -> dict[str, Any]:
    """Run `lacli run` without LACLI_ variables, and return its JSON. Raises LacliError if it fails or is too slow."""
    kept = {name: value for name, value in environment().items() if not name.startswith("LACLI_")}
    seconds = START_S + ANSWER_S
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lacli", "run", *arguments, "--json", "--no-stdin", "--temp", "0"],
            cwd=ROOT,
            env={**kept, "XDG_CACHE_HOME": str(cache)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LacliError(f"lacli did not finish within {seconds:g} seconds", "ask for fewer tokens with -n") from error
    if done.returncode:
        raise failed("lacli run", done.returncode, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def asking_lacli(model: Path, flags: Sequence[str], cache: Path) -> Ask:
    """Return a function that answers with a new `lacli run` and a fresh copy of the folder `cache`."""

    def ask(prompt: Prompt, limit: int) -> Answer:
        with TemporaryDirectory(prefix="lacli-") as copy:
            shutil.copytree(cache, copy, dirs_exist_ok=True)
            found = lacli([str(model), *flags, "-n", str(limit), "--raw", f"--prompt={prompt.text}"], Path(copy))
        if found["prompt_n"] != len(prompt.tokens):
            raise LacliError(f"lacli reads {found['prompt_n']} tokens in a prompt of {len(prompt.tokens)}", "a bug")
        seconds = found["predicted_ms"] / 1e3
        return Answer(found["predicted_n"], seconds, found["text"], found["steps"], found["rows_mean"])

    return ask


def asking_rival(rival: Rival, model: Path, settings: ModelSettings, *, offloaded: bool) -> Ask:
    """Return a function that answers with a new process of llama.cpp's program each time."""
    return lambda prompt, limit: rival.answer(prompt.text, prompt.tokens, limit, model, settings, offloaded=offloaded)


def flags_of(name: str) -> list[str]:
    """Return the flags of lacli for a contender's name, as `lookahead:5/4/5@ik`."""
    named, _, engine = name.partition("@")
    mode, _, sizes = named.partition(":")
    letters = zip(("-W", "-N", "-G"), sizes.split("/"), strict=True) if sizes else ()
    return ["--engine", engine or "llama", "--mode", mode, *(part for pair in letters for part in pair)]


def contenders(
    names: Sequence[str], model: Path, session: ModelEngine, cache: Path, draft: Path | None = None
) -> dict[str, Ask]:
    """Return a function for each name. `cache`: lacli's cache folder. `draft`: the draft model of llama-server."""
    model_settings = replace(session.model_settings, context=session.context.cells)
    found: dict[str, Ask] = {}
    for name in names:
        if name.startswith("llama-"):
            rival = replace(find_rival(name), draft=draft)
            found[rival.name] = asking_rival(rival, model, model_settings, offloaded=session.model.offloaded)
        else:
            flags = [*flags_of(name), "-t", str(model_settings.threads)]
            found[name.replace(":", " ")] = asking_lacli(model, flags, cache)
    return found


@dataclass(frozen=True)
class Plan:
    """A measurement: `each` prompts of every class, answered with at most `limit` tokens by all contenders in turns.

    `slow`: contenders that answer only the first prompt of every class. `until`: the time at which the last round
    should have ended, in seconds of the monotonic clock.
    """

    model: str
    limit: int
    each: int
    contenders: Mapping[str, Ask]
    slow: frozenset[str] = frozenset()
    until: float = math.inf

    def rows(self, prompts: Mapping[str, Sequence[Prompt]], known: Sequence[Row] = ()) -> Iterator[Row]:
        """Have the prompts answered, and yield the new answers. Answers in `known` rows are not repeated.

        If the first answer to a prompt is too short to count, the class continues with its next prompt.
        A round does not begin if it would end after `until`, with the duration of the longest round before it.
        """
        answers = {
            (row.kind, row.place, row.contender): row.answer
            for row in known
            if (row.model, row.limit) == (self.model, self.limit)
        }
        waiting = {kind: iter(members) for kind, members in prompts.items()}
        longest = 0.0
        for lap in range(self.each):
            for number, members in enumerate(waiting.values()):
                for prompt in members:
                    begin = monotonic()
                    if begin + longest > self.until:
                        return
                    for row in self._round(prompt, self._in_turn(lap, number), answers):
                        answers[row.kind, row.place, row.contender] = row.answer
                        yield row
                    longest = max(longest, monotonic() - begin)
                    if not self._is_short(prompt, answers):
                        break

    def _in_turn(self, lap: int, number: int) -> list[str]:
        """Return the names of a round in order. The first one changes each round; slow ones end lap 0 only."""
        quick = [name for name in self.contenders if name not in self.slow]
        first = (lap + number) % len(quick)
        return [*quick[first:], *quick[:first], *(name for name in self.contenders if name in self.slow and not lap)]

    def _round(self, prompt: Prompt, names: Sequence[str], answers: Mapping[Key, Answer]) -> Iterator[Row]:
        """Yield the new answers to a prompt; stop after the first if that is too short. Errors go to stderr."""
        for name in names:
            place = f"{self.model}, {prompt.kind} {prompt.place}, {name}"
            if self._is_short(prompt, answers):
                return
            if (prompt.kind, prompt.place, name) in answers:
                continue
            try:
                answer = self.contenders[name](prompt, self.limit)
            except LacliError as error:
                say(f"{place}: left out: {error}")
                continue
            say(f"{place}: {answer.tokens} tokens in {answer.seconds:.2f} s")
            yield Row(self.model, self.limit, prompt.kind, prompt.place, name, answer)

    def _is_short(self, prompt: Prompt, answers: Mapping[Key, Answer]) -> bool:
        """Whether the first answer to a prompt has fewer than SHORTEST tokens and fewer than the limit."""
        first = next((answers[key] for key in answers if key[:2] == (prompt.kind, prompt.place)), None)
        return first is not None and first.tokens < min(SHORTEST, self.limit)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(arguments: argparse.Namespace, known: Sequence[Row]) -> Iterator[Row]:
    """Let lacli give one answer that is not counted, then yield the answers of all contenders."""
    until = monotonic() + arguments.seconds
    model: Path = arguments.model.resolve()
    threads: int = arguments.threads
    conversations = read_conversations([*arguments.spec_bench, *OWN_PROMPTS])
    slow, names = ([name for name in text.split(",") if name] for text in (arguments.slow, arguments.contenders))
    with TemporaryDirectory(prefix="lacli-") as folder:
        cache = Path(folder)
        with open_engine(
            model,
            ModelSettings(threads=threads, threads_batch=threads),
            DecodeSettings(mode="plain"),
            SamplingSettings(),
        ) as session:
            prompts = {
                kind: [prompt_of(session, kind, *each) for each in enumerate(members)]
                for kind, members in conversations.items()
            }
            asks, late = (contenders(each, model, session, cache) for each in (names, slow))
            if arguments.draft:
                asks |= contenders(["llama-server:draft-simple"], model, session, cache, arguments.draft)
        say(f"{model.name}: the answer before the measured ones")
        lacli([str(model), "--mode", "auto", "-n", str(arguments.predict), f"--prompt={EARLIER}"], cache)
        plan = Plan(model.name, arguments.predict, arguments.each, asks | late, frozenset(late), until)
        yield from plan.rows(prompts, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the GGUF file that answers")
    parser.add_argument("--draft", type=Path, help="a GGUF file; adds llama-server with this draft model")
    parser.add_argument("--contenders", default=QUICK, help="contenders, with commas; default: %(default)s")
    parser.add_argument(
        "--slow", default=SLOW, help="contenders for the first prompt of each class only; default: %(default)s"
    )
    parser.add_argument(
        "--spec-bench",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="Spec-Bench's question.jsonl; without it only code edit, JSON extraction and third turn are measured",
    )
    parser.add_argument("--each", type=int, default=4, help="prompts of each class")
    parser.add_argument("-n", "--predict", type=int, default=96, help="the most tokens of an answer")
    parser.add_argument("-t", "--threads", type=int, default=0, help="threads; 0: one for each physical core")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--json", type=Path, help="add each answer to this file; answers in it are not repeated")
    parser.add_argument("--table", type=Path, nargs="+", help="measure nothing; print the tables of --json files")
    arguments = parser.parse_args()
    if not (arguments.model or arguments.table):
        parser.error("give the model with --model FILE, or files of --json with --table")
    files = arguments.table or [path for path in (arguments.json,) if path and path.exists()]
    try:
        rows = [row for path in files for row in read_rows(path)]
        with ExitStack() as stack:
            kept = stack.enter_context(arguments.json.open("a")) if arguments.json and arguments.model else None
            for row in measure(arguments, tuple(rows)) if arguments.model else ():
                rows.append(row)
                if kept:
                    print(json.dumps(asdict(row)), file=kept, flush=True)
    except KeyboardInterrupt:
        say("interrupted")
    except (LacliError, OSError) as error:
        raise SystemExit(f"fresh: {error}") from None
    if rows:
        print(tables(rows))


if __name__ == "__main__":
    main()
