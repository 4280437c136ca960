"""Mode auto in fresh processes, the first run ever and the tenth, in turns with plain and llama.cpp's programs.

    python -m benchmarks.fresh --models demo,05b.gguf --tokens 64,256 --rivals llama-lookup,llama-server:ngram-mod
    python -m benchmarks.fresh --models 05b.gguf --seconds 0     how long each table would take
    python -m benchmarks.fresh --table rows.jsonl                the tables of what --json has kept

Every answer of lacli's is a new process with a cache folder of its own. `first` finds in it that this build of
llama.cpp works here, and nothing else; `tenth` a copy of the folder that nine other prompts were answered in. Speeds
are those of the decode phase by each program's own clock. Prints Markdown: times as fast as plain decoding of the same
prompt in the same round, the geometric mean over prompts with its 95% interval. Progress is told on stderr.
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
from functools import partial
from itertools import islice, product, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter

from benchmarks.fresh_table import AUTO, PLAIN, SHORTEST, Answer, Row, read_rows, tables
from benchmarks.rivals.found import Rival, find_rivals
from benchmarks.rivals.programs import Program
from benchmarks.rivals.runs import PATIENCE, environment, failed
from benchmarks.rivals.server import Server
from lacli.auto.model_cost import known_cost
from lacli.bench.plan import by_class
from lacli.bench.tasks import Task, built_in, read_tasks
from lacli.errors import LacliError
from lacli.hub.names import demo_model
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.text.records import NAME
from lacli.text.template import with_one_bos

ROOT = Path(__file__).parent.parent
PROMPTS = Path(__file__).with_name("prompts.jsonl")
RUNS = ("first", "tenth")
EARLIER = 9
"""Answers that were given in the cache folder before the tenth run."""

SPEED_TOKENS = 16
"""Tokens of the answer that tells how fast plain decoding is, for the estimate."""


@dataclass(frozen=True)
class Question:
    """A prompt as lacli gets it, and as other programs do: through the chat template, as text and as token ids."""

    task: Task
    spelled: str
    tokens: tuple[int, ...]


Ask = Callable[[Question, int], Answer]
"""Answers a question with at most the given number of tokens."""


@dataclass(frozen=True)
class Model:
    """A model that is ready to be asked. `start_s`, `token_s`: seconds of a process and of a plain step.

    `folder`: holds its cache folders; `first` is one of them. `flags`: for lacli. `model_settings`: with the context
    and the threads that lacli chose. `earlier`: answered before the tenth run.
    """

    path: Path
    folder: Path
    flags: tuple[str, ...]
    model_settings: ModelSettings
    offloaded: bool
    questions: tuple[Question, ...]
    earlier: tuple[Task, ...]
    start_s: float = 0.0
    token_s: float = 0.0

    def seconds(self, answers: int, limit: int) -> float:
        """Seconds that `answers` plain answers of `limit` tokens take."""
        return answers * (self.start_s + limit * self.token_s)

    def ask(self, prompt: str, limit: int, mode: str, cache: str) -> Answer:
        """Answer in a copy of the cache folder of that name; the copy is thrown away."""
        with TemporaryDirectory(dir=self.folder) as copy:
            shutil.copytree(self.folder / cache, copy, dirs_exist_ok=True)
            return self.run(prompt, limit, mode, Path(copy))

    def run(self, prompt: str, limit: int, mode: str, cache: Path, **variables: str) -> Answer:
        """Answer in this cache folder. `variables`: of the environment."""
        begin = perf_counter()
        asked = ("--json", "--no-stdin", "--mode", mode, "-n", str(limit), f"--prompt={prompt}")
        out = lacli(["run", str(self.path), *self.flags, *asked], cache, **variables)
        whole_s = perf_counter() - begin
        found = json.loads(out)
        seconds, prompt_s, first_s = (found[f"{name}_ms"] / 1e3 for name in ("predicted", "prompt", "first_token"))
        return Answer(found["predicted_n"], seconds, first_s, found["text"], whole_s - prompt_s - seconds)


def lacli(arguments: Sequence[str], cache: Path, **variables: str) -> str:
    """Return what a new lacli prints, with no settings from the environment but `variables`. Raises LacliError."""
    kept = {name: value for name, value in environment().items() if not name.startswith("LACLI_")}
    seconds = PATIENCE.start_s + PATIENCE.answer_s
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lacli", *arguments],
            cwd=ROOT,
            env={**kept, **variables, "XDG_CACHE_HOME": str(cache)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LacliError(f"lacli did not finish within {seconds:g} seconds", "ask for fewer --tokens") from error
    if done.returncode:
        raise failed(f"lacli {arguments[0]}", done.returncode, done.stderr)
    return done.stdout


def ready(path: Path, tasks: Sequence[Task], folder: Path, arguments: argparse.Namespace) -> Model:
    """Choose the prompts, make the cache folder of the first run, and time plain decoding."""
    threads: int = arguments.threads
    asked = ModelSettings(threads=threads, threads_batch=threads)
    with Session(path, asked, DecodeSettings(mode="plain"), SamplingSettings()) as session:
        chosen, earlier = split(tasks, arguments.each, partial(long_enough, session))
        model = Model(
            path,
            folder,
            ("-t", str(threads)) if threads else (),
            replace(session.model_settings, context=session.engine.cells),
            session.model.offloaded,
            tuple(question_of(session, task) for task in chosen),
            tuple(earlier),
        )
    first = folder / "first"
    # Whether the build works here is tried once, in half a second, by whoever asks first: plain decoding would too.
    model.run("Hello.", 1, PLAIN, first, LACLI_LEARN="0")
    if arguments.known:
        lacli(["cost", str(path), *model.flags], first)
        if not known_cost(first / "lacli" / NAME, path, model.model_settings):
            say(f"{path.name}: the times of lacli cost are too rough to be kept; nothing is known before the first run")
    timed = model.ask(earlier[0].turns[0], SPEED_TOKENS, PLAIN, "first")
    return replace(model, start_s=timed.first_token_s + (timed.start_s or 0.0), token_s=timed.token_s)


def long_enough(session: Session, task: Task) -> bool:
    """Whether the model's answer is long enough to count."""
    generation = session.generate(session.prompt(task.turns[0]), SHORTEST)
    for _ in generation:
        pass
    return generation.answer().statistics.tokens == SHORTEST


def question_of(session: Session, task: Task) -> Question:
    """Make a task's first turn a prompt of the session's model."""
    tokens = session.prompt(task.turns[0])
    text = session.text(tokens, special=True)
    return Question(task, with_one_bos(text, session.model.bos(), adds_bos=session.model.adds_bos), tuple(tokens))


def split(tasks: Sequence[Task], each: int, counts: Callable[[Task], bool]) -> tuple[list[Task], list[Task]]:
    """The first `each` tasks of each class that count, which are measured, and those that are answered before.

    The latter are other tasks of the same classes, then those that ship with lacli.
    """
    classes = by_class(tasks).values()
    chosen = in_turns([[*islice(filter(counts, members), each)] for members in classes])
    others = in_turns([[task for task in members if task not in chosen] for members in classes])
    return chosen, [*others, *in_turns([*by_class(built_in()).values()])][:EARLIER]


def in_turns(classes: Sequence[Sequence[Task]]) -> list[Task]:
    """One task of each class after the other, so that what is cut off is of all classes."""
    return [task for tasks in zip_longest(*classes) for task in tasks if task]


def contenders(model: Model, runs: Sequence[str], rivals: Sequence[Rival], stack: ExitStack) -> dict[str, Ask]:
    """Who answers, by name, plain decoding first; what is opened for it ends with the stack."""

    def fresh(mode: str, cache: str) -> Ask:
        return lambda question, limit: model.ask(question.task.turns[0], limit, mode, cache)

    found = {PLAIN: fresh(PLAIN, "first"), **{f"{AUTO}{run}": fresh("auto", run) for run in runs}}
    for rival in rivals:
        program = rival.open(model.path, model.model_settings, offloaded=model.offloaded)
        stack.enter_context(program)
        found[rival.name] = asking(program)
    return found


def asking(program: Program | Server) -> Ask:
    """Answers by another program."""

    def ask(question: Question, limit: int) -> Answer:
        run = program.answer(question.spelled, question.tokens, limit)
        return Answer(run.tokens, run.seconds, run.prompt_s, run.text or "")

    return ask


def rounds(
    names: Sequence[str], questions: Sequence[Question], repeat: int, until: float
) -> Iterator[tuple[int, Question, str]]:
    """Yield who answers what, and in which repetition: all contenders in a round, one after the other.

    Each contender begins as many rounds of each class as any other. `until`: when the last round may begin, by the
    monotonic clock.
    """
    kinds = {question.task.kind for question in questions}
    for number, (turn, question) in enumerate(product(range(repeat), questions)):
        if monotonic() > until:
            return
        first = number // len(kinds) % len(names)
        for name in [*names[first:], *names[:first]]:
            yield turn, question, name


def measured(model: Model, asks: Mapping[str, Ask], limit: int, repeat: int, until: float) -> Iterator[Row]:
    """Ask, and yield the answers; one that fails is told and left out."""
    whole = len(asks) * len(model.questions) * repeat
    for number, (turn, question, name) in enumerate(rounds([*asks], model.questions, repeat, until), 1):
        task = question.task
        place = f"{model.path.name}, {limit} tokens, {number} of {whole}: {name}, {task.kind}"
        try:
            answer = asks[name](question, limit)
        except LacliError as error:
            say(f"{place}: left out: {error}")
            continue
        say(f"{place}: {answer.tokens} tokens in {answer.seconds:.2f} s")
        yield Row(model.path.name, limit, task.kind, task.turns[0], turn, name, answer)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(arguments: argparse.Namespace, stack: ExitStack) -> Iterator[Row]:
    """Make the models ready, say how long each table will take, and measure one after the other."""
    rivals = find_rivals([name for name in arguments.rivals.split(",") if name])
    runs = [run for run in RUNS if run in arguments.runs.split(",")]
    limits = sorted(map(int, arguments.tokens.split(",")))
    tasks = read_tasks(str(arguments.prompts))
    models = []
    for name in arguments.models.split(","):
        path = demo_model() if name == "demo" else Path(name).resolve()
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="lacli-")))
        models.append(ready(path, tasks, folder, arguments))
    competing = 1 + len(runs) + len(rivals)
    for model, limit in product(models, limits):
        answers = competing * len(model.questions) * arguments.repeat
        earlier = EARLIER if "tenth" in runs and limit == limits[0] else 0
        seconds = model.seconds(answers + earlier, limit)
        say(f"{model.path.name}, {limit} tokens: {answers} answers, {earlier} before them: about {seconds:.0f} s")
    end = monotonic() + arguments.seconds
    left = len(models) * len(limits)
    for model in models:
        if "tenth" in runs and monotonic() < end:
            learn(model, limits[0])
        for limit in limits:
            # A table that was quicker than its share of the time leaves more to the others.
            until = monotonic() + (end - monotonic()) / left - model.seconds(competing, limit)
            left -= 1
            with ExitStack() as opened:
                asks = contenders(model, runs, rivals, opened)
                yield from measured(model, asks, limit, arguments.repeat, until)


def learn(model: Model, limit: int) -> None:
    """Make the cache folder of the tenth run: what the first one has, and the earlier answers' traces."""
    say(f"{model.path.name}: {len(model.earlier)} answers of {limit} tokens before the tenth")
    tenth = model.folder / "tenth"
    shutil.copytree(model.folder / "first", tenth)
    for task in model.earlier:
        model.run(task.turns[0], limit, "auto", tenth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="demo", help="GGUF files with commas between them; demo is lacli's own")
    parser.add_argument("--tokens", default="64,256", help="tokens of an answer, at most")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines, as lacli bench takes them")
    parser.add_argument(
        "--each", type=int, default=3, help=f"prompts of each class, with answers of {SHORTEST} tokens or more"
    )
    parser.add_argument("--repeat", type=int, default=1, help="times that each prompt is asked")
    parser.add_argument("--runs", default=",".join(RUNS), help="of mode auto")
    parser.add_argument("--rivals", default="", help="llama.cpp's programs on PATH, as benchmarks.rivals takes them")
    parser.add_argument("--known", action="store_true", help="lacli cost has measured the model before the first run")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each physical core")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of all rounds together; 0 only estimates")
    parser.add_argument("--json", type=Path, help="keep each answer as a line of this new file")
    parser.add_argument("--table", type=Path, nargs="+", help="measure nothing, and show what --json has kept")
    arguments = parser.parse_args()
    rows: list[Row] = []
    try:
        with ExitStack() as stack:
            kept = stack.enter_context(arguments.json.open("x")) if arguments.json else None
            known = (row for path in arguments.table or () for row in read_rows(path))
            for row in known if arguments.table else measure(arguments, stack):
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
