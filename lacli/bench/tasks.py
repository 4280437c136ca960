"""What a benchmark asks: the task, its classes, and the prompts that ship with lacli.

Files of a user's own are read in `task_files.py`, published suites in `suites.py`; nothing here decodes anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from lacli.errors import UsageError

CLASSES = {
    "code": "code completion",
    "edit": "code editing, copy-heavy",
    "chat": "chat",
    "summary": "summarising",
    "extract": "extraction to JSON",
    "translate": "translation",
    "maths": "maths",
    "story": "creative writing",
    "docs": "technical documentation",
    "forms": "forms and templates",
}
"""The classes that ship with lacli, in the order of its tables: a short name -> what it is."""

OWN = "own"
PROMPTS = "bench_prompts.jsonl"


@dataclass(frozen=True)
class Task:
    """One conversation to decode, or one text to continue.

    turns: the user's messages in order, at least one; each is asked after the answer to the one before it. kind: its
    class. name: its id in its source, HumanEval/0 for example. raw: continue the text as it stands, without a chat
    template. limit: tokens that an answer may have; 0 is what the user asks for. reference: the right answer, where
    the source has one.
    """

    turns: tuple[str, ...]
    kind: str = OWN
    name: str = ""
    system: str = ""
    raw: bool = False
    limit: int = 0
    reference: str = ""


def built_in(classes: Sequence[str] = ()) -> list[Task]:
    """The prompts that ship with lacli, class by class in the order of CLASSES, or those of the classes named.

    Raises UsageError for a class that does not exist.
    """
    for name in classes:
        if name not in CLASSES:
            raise UsageError(f"there is no prompt class {name}", f"the classes are {', '.join(CLASSES)}")
    wanted = [name for name in CLASSES if name in classes or not classes]
    tasks = _shipped()
    return [task for name in wanted for task in tasks if task.kind == name]


def _shipped() -> list[Task]:
    tasks: list[Task] = []
    for line in (files("lacli") / "data" / PROMPTS).read_text("utf-8").splitlines():
        row = json.loads(line)
        kind, turns = row["class"], row.get("turns") or [row["prompt"]]
        number = sum(task.kind == kind for task in tasks)
        tasks.append(Task(tuple(turns), kind, f"{kind}/{number}"))
    return tasks
