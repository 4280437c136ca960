"""The forms of a prompt file's rows, and the task that each becomes.

A row is known by its fields, never by the name of its file: plain prompts, the conversations of Spec-Bench and
MT-Bench, HumanEval, ClassEval, MBPP, GSM8K, XSum and CNN/Daily Mail. Reads no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lacli.bench.tasks import OWN, Task
from lacli.errors import LacliError

Row = Mapping[str, object]

HUMANEVAL, GSM8K, MBPP, CLASSEVAL, XSUM, CNN_DM = "humaneval", "gsm8k", "mbpp", "classeval", "xsum", "cnn-dm"
ANSWER_MARK = "####"
"""What GSM8K writes before the final number of an answer."""

SUMMARY_SYSTEM = """\
You are an intelligent chatbot. Answer the questions only using the following context:
{}
Here are some rules you always follow:
- Generate human readable output, avoid creating output with gibberish text.
- Generate only the requested output, don't include any other language before or after the requested output.
- Never say thank you, that you are happy to help, that you are an AI agent, etc. Just answer directly.
- Generate professional language typically used in business documents in North America.
- Never generate offensive or foul language."""
SUMMARY_USER = "Briefly summarize the given context.\nSummary:"
"""The prompt of the lookahead paper's Appendix D, where the last word is the beginning of the answer."""

CODE_LIMIT, CLASS_LIMIT = 512, 2048
"""Tokens an answer may have on HumanEval and ClassEval, in the lookahead paper's section 5."""


def task_from_row(row: Row, kind: str = OWN) -> Task:
    """The task of one row; kind is the class of rows that name none.

    Raises LacliError for a row of no known form, or with a field of the wrong type.
    """
    for fields, form in FORMS:
        if all(row.get(field) is not None for field in fields):
            return form(row, kind)
    raise LacliError("no prompt", 'a row has "prompt", or "turns" with a list of messages')


def _conversation(row: Row, kind: str) -> Task:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise LacliError("turns is not a list of messages", 'write "turns": ["first question", "second question"]')
    return replace(_common(row, kind), turns=tuple(_checked(turn, "turns") for turn in turns))


def _plain(row: Row, kind: str) -> Task:
    return replace(_common(row, kind), turns=(_text(row, "prompt"),))


def _humaneval(row: Row, kind: str) -> Task:
    return Task(
        (_text(row, "prompt"),),
        HUMANEVAL,
        _text(row, "task_id"),
        raw=True,
        limit=CODE_LIMIT,
        reference=_optional(row, "canonical_solution"),
    )


def _classeval(row: Row, kind: str) -> Task:
    name, skeleton = _text(row, "class_name"), _text(row, "skeleton").strip()
    question = (
        f"Complete the class {name} in the following code. Answer with the whole code.\n```python\n{skeleton}\n```"
    )
    return Task((question,), CLASSEVAL, _name(row), limit=CLASS_LIMIT, reference=_optional(row, "solution_code"))


def _mbpp(row: Row, kind: str) -> Task:
    tests = row["test_list"]
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise LacliError("test_list is not a list of strings", "fetch the file again")
    # The sanitised half of MBPP calls the text its prompt.
    text = _text(row, "text" if row.get("text") is not None else "prompt")
    question = "\n".join((text, "The code must pass these tests:", "```python", *tests, "```"))
    return Task((_checked(question, "test_list"),), MBPP, _name(row), reference=_optional(row, "code"))


def _gsm8k(row: Row, kind: str) -> Task:
    answer = _text(row, "answer")
    if ANSWER_MARK not in answer:
        raise LacliError(f"the answer has no number after {ANSWER_MARK}", 'a row of one\'s own has "prompt"')
    ending = f"Think step by step. The last line of the answer is {ANSWER_MARK} and the final number."
    return Task((f"{_text(row, 'question')}\n\n{ending}",), GSM8K, _name(row), reference=answer)


def _xsum(row: Row, kind: str) -> Task:
    return _summary(row, XSUM, "document", "summary")


def _cnn_dm(row: Row, kind: str) -> Task:
    return _summary(row, CNN_DM, "article", "highlights")


def _summary(row: Row, kind: str, source: str, summary: str) -> Task:
    system = SUMMARY_SYSTEM.replace("{}", _text(row, source))
    return Task((SUMMARY_USER,), kind, _name(row), system, reference=_text(row, summary))


FORMS = (
    (("turns",), _conversation),
    (("task_id", "prompt", "entry_point"), _humaneval),
    (("skeleton", "class_name"), _classeval),
    (("test_list", "code"), _mbpp),
    (("question", "answer"), _gsm8k),
    (("document", "summary"), _xsum),
    (("article", "highlights"), _cnn_dm),
    (("prompt",), _plain),
)
"""The fields that tell a form, the most telling first, and who reads it."""


def _common(row: Row, kind: str) -> Task:
    """What plain rows and conversations share; the turns are still missing."""
    return Task(
        turns=(),
        kind=_optional(row, "class") or _optional(row, "category") or kind,
        name=_name(row),
        system=_optional(row, "system"),
        limit=_limit(row),
        reference=_reference(row),
    )


def _limit(row: Row) -> int:
    given = [row[field] for field in ("limit", "max_tokens") if row.get(field) is not None]
    limit = given[0] if given else 0
    if type(limit) is not int or limit < 0:
        raise LacliError("limit is not a number of tokens", 'write "limit": 256, or leave it out')
    return limit


def _reference(row: Row) -> str:
    """The right answer: a text, or a list with one for each turn; lists of anything else are of no use here."""
    reference = row.get("reference")
    texts = reference if isinstance(reference, list) else [reference]
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _name(row: Row) -> str:
    names = (row.get(field) for field in ("task_id", "question_id", "id"))
    return next((str(name) for name in names if isinstance(name, str | int)), "")


def _text(row: Row, field: str) -> str:
    text = row[field]
    if not isinstance(text, str):
        raise LacliError(f"{field} is not a text", "put it into quotes")
    return _checked(text, field)


def _optional(row: Row, field: str) -> str:
    return "" if row.get(field) in (None, "") else _text(row, field)


def _checked(text: str, field: str) -> str:
    """Raises LacliError for a blank text, and for half a surrogate pair, which JSON can write and UTF-8 cannot."""
    if not text.strip():
        raise LacliError(f"{field} is empty", "leave the row out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LacliError(f"{field} holds half a surrogate pair", "write the whole character") from error
    return text
