"""Recorded answers of real models, which `benchmarks.replay` decodes again on the clock of any machine.

A record is one prompt's greedy answer by plain decoding, or the steps of mode lookahead for that answer.
`RecordedContext` replaces the model: it chooses the recorded token after each row's position. That choice is right for
every row that can be accepted. So a mode accepts the same tokens as with the real model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lacli.batch import Batch, Ints
from lacli.bench.plan import Task, read_tasks
from lacli.context import Floats
from lacli.engine.engine import Engine, SequenceOptions
from lacli.engine.load import ModelEngine, open_engine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings

CLASSES = {
    "qa": "question",
    "translation": "translation",
    "summarization": "summary",
    "rag": "passages",
    "math_reasoning": "maths",
    **dict.fromkeys(("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "chat"),
}
"""The class in this benchmark of each Spec-Bench category. MT-Bench's categories are the class chat."""

SECOND_TURN, AGAIN = "second turn", "again"
"""Two classes: second turns of chats, and second turns that ask for the first answer again with a change."""

OWN_PROMPTS = tuple(Path(__file__).with_name(name) for name in ("edits.jsonl", "second_turns.jsonl"))
"""Files of prompts whose classes Spec-Bench does not have."""

MAX_CHARACTERS = 4500
"""The most characters of a question: about 1,200 tokens."""

MAX_EDIT = 160
"""The most tokens of an answer whose task has its own limit: recording more takes long."""

SPREAD = 4
"""The first so many questions are spread over a class and half, however many are chosen."""


@dataclass(frozen=True)
class Question:
    """A prompt: its class `kind`, its half (`tune` or `report`), its task, and the index of the answered turn."""

    kind: str
    half: str
    task: Task
    turn: int = 0


@dataclass(frozen=True)
class Record:
    """The tokens of a prompt and of its plain answer. `ends`: the end-of-text tokens among both."""

    prompt: list[int]
    answer: list[int]
    ends: list[int]

    @cached_property
    def text(self) -> list[int]:
        """The tokens of the prompt and of the answer."""
        return [*self.prompt, *self.answer]


def questions(paths: Iterable[Path], each: int) -> list[Question]:
    """Return at most `each` questions of each class and half in JSONL files, and second turns of the chats.

    The first half of a category is `tune`, the second half `report`. The classes take turns in the list.
    """
    categories: dict[str, list[Task]] = {}
    for path in paths:
        for task in read_tasks(str(path)):
            categories.setdefault(task.kind, []).append(task)
    by_kind: dict[tuple[str, str], list[Task]] = {}
    for name, tasks in categories.items():
        kind = CLASSES.get(name, name)
        middle = len(tasks) // 2
        for half, part in (("tune", tasks[:middle]), ("report", tasks[middle:])):
            by_kind.setdefault((kind, half), []).extend(part[:1] if kind == "chat" else part)
    found: list[list[Question]] = []
    for (kind, half), tasks in by_kind.items():
        short = [task for task in tasks if len(task.turns[0]) <= MAX_CHARACTERS]
        spread = short[:: max(len(short) // SPREAD, 1)][:each]
        found.append([Question(kind, half, task, int(kind == AGAIN)) for task in spread])
        if kind == "chat":
            found.append([Question(SECOND_TURN, half, task, 1) for task in spread])
    return [group[place] for place in range(each) for group in found if place < len(group)]


class Records:
    """The records of a model in a folder, a file for each prompt. `limit`: for answers without a limit of their own."""

    def __init__(self, folder: Path, model: Path, limit: int) -> None:
        self._folder = folder / model.stem
        self._model, self._limit = model, limit
        self._session: ModelEngine | None = None

    def plain(self, question: Question, *, decode: bool = True) -> Record | None:
        """Return the record of a question. A missing record is decoded now; None if `decode` is False."""
        path = self._path(question, "plain")
        if not path.exists():
            if not decode:
                return None
            self._decode(question, path)
        with np.load(path) as found:
            return Record(found["prompt"].tolist(), found["answer"].tolist(), found["ends"].tolist())

    def lookahead(
        self, question: Question, settings: DecodeSettings, *, decode: bool = True
    ) -> list[tuple[int, int]] | None:
        """Return the rows and tokens of each step of mode lookahead for a question. None: as in `plain`."""
        path = self._path(question, f"{settings.window}-{settings.ngram}-{settings.guesses}")
        if not path.exists():
            if not decode:
                return None
            engine = Engine(self._open().context, settings)
            steps = list(engine.steps(self._prompt(question), SequenceOptions(self._tokens(question))))
            np.savez_compressed(path, steps=np.array([(step.rows, len(step.tokens)) for step in steps], np.int16))
        with np.load(path) as found:
            return [(rows, tokens) for rows, tokens in found["steps"].tolist()]

    def _decode(self, question: Question, path: Path) -> None:
        prompt, context = self._prompt(question), self._open().context
        steps = Engine(context, DecodeSettings(mode="plain")).steps(prompt, SequenceOptions(self._tokens(question)))
        answer = [token for step in steps for token in step.tokens]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            prompt=np.array(prompt, np.int32),
            answer=np.array(answer, np.int32),
            ends=np.array([token for token in {*prompt, *answer} if context.is_end(token)], np.int32),
        )

    def _prompt(self, question: Question) -> list[int]:
        session, task = self._open(), question.task
        if not question.turn:
            return session.prompts.question(task.turns[0], task.system, raw=task.raw)
        first = self.plain(replace(question, turn=0))
        assert first
        answer = session.text(first.answer)
        return session.prompts.question(task.turns[1], task.system, raw=task.raw, history=[(task.turns[0], answer)])

    def _tokens(self, question: Question) -> int:
        return min(question.task.max_tokens, MAX_EDIT) or self._limit

    def _open(self) -> ModelEngine:
        if self._session is None:
            settings = ModelSettings(context=4096, threads=1, threads_batch=1)
            self._session = open_engine(
                self._model, settings, DecodeSettings(mode="lookahead"), SamplingSettings(temp=0.0)
            )
        return self._session

    def _path(self, question: Question, what: str) -> Path:
        task = question.task
        turns = task.turns[: question.turn + 1]
        named = repr((turns, task.system, task.raw, self._tokens(question)))
        return self._folder / f"{hashlib.sha256(named.encode()).hexdigest()[:16]}.{what}.npz"


class RecordedContext:
    """A context that chooses the tokens of a record's answer after the record's prompt."""

    cells = 1 << 16
    batch_rows = 2048
    prefill_rows = mixed_rows = max_outputs = 512
    trained_tokens = cells
    ids = 256
    vocabulary = 151_936
    can_share, passes_all_cells = True, False

    def __init__(self, record: Record) -> None:
        self._text, self._ends = record.text, frozenset(record.ends)
        self._chosen: list[int] = []

    def decode(self, batch: Batch) -> bool:
        wanted = batch.positions[: len(batch)][batch.outputs[: len(batch)].astype(bool)].tolist()
        # No token after the answer's last one is ever accepted.
        self._chosen = [self._text[min(place + 1, len(self._text) - 1)] for place in wanted]
        return True

    def greedy(self) -> Ints:
        return np.array(self._chosen)

    def logits(self) -> Floats:
        raise NotImplementedError("a record has the most probable tokens only")

    def row_logits(self, row: int) -> Floats:
        raise NotImplementedError("a record has the most probable tokens only")

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Do nothing: there are no cells."""

    def remove(self, sequence: int, start: int, end: int) -> bool:
        return True

    def clear(self) -> None:
        """Do nothing: there are no cells."""

    def is_end(self, token: int) -> bool:
        return token in self._ends
