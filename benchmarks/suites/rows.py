"""The rows of published suites, known by their fields, and the task that each becomes.

HumanEval, ClassEval, MBPP, GSM8K, XSum and CNN/Daily Mail; the conversations of Spec-Bench and MT-Bench have the form
of lacli's own prompt files.
"""

from __future__ import annotations

from lacli.bench.tasks import OWN, Row, Task, checked, name_of, optional_text, task_from_row, text_of
from lacli.errors import LacliError

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


def task_from_suite(row: Row, kind: str = OWN) -> Task:
    """The task of one row; kind is the class of rows that name none.

    Raises LacliError for a row of no known form, or with a field of the wrong type.
    """
    if row.get("turns") is None:
        for fields, form in FORMS:
            if all(row.get(field) is not None for field in fields):
                return form(row)
    return task_from_row(row, kind)


def _humaneval(row: Row) -> Task:
    return Task(
        (text_of(row, "prompt"),),
        HUMANEVAL,
        text_of(row, "task_id"),
        raw=True,
        max_tokens=CODE_LIMIT,
        reference=optional_text(row, "canonical_solution"),
    )


def _classeval(row: Row) -> Task:
    name, skeleton = text_of(row, "class_name"), text_of(row, "skeleton").strip()
    question = (
        f"Complete the class {name} in the following code. Answer with the whole code.\n```python\n{skeleton}\n```"
    )
    return Task(
        (question,), CLASSEVAL, name_of(row), max_tokens=CLASS_LIMIT, reference=optional_text(row, "solution_code")
    )


def _mbpp(row: Row) -> Task:
    tests = row["test_list"]
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise LacliError("test_list is not a list of strings", "fetch the file again")
    # The sanitised half of MBPP calls the text its prompt.
    text = text_of(row, "text" if row.get("text") is not None else "prompt")
    question = "\n".join((text, "The code must pass these tests:", "```python", *tests, "```"))
    return Task((checked(question, "test_list"),), MBPP, name_of(row), reference=optional_text(row, "code"))


def _gsm8k(row: Row) -> Task:
    answer = text_of(row, "answer")
    if ANSWER_MARK not in answer:
        raise LacliError(f"the answer has no number after {ANSWER_MARK}", 'a row of one\'s own has "prompt"')
    ending = f"Think step by step. The last line of the answer is {ANSWER_MARK} and the final number."
    return Task((f"{text_of(row, 'question')}\n\n{ending}",), GSM8K, name_of(row), reference=answer)


def _xsum(row: Row) -> Task:
    return _summary(row, XSUM, "document", "summary")


def _cnn_dm(row: Row) -> Task:
    return _summary(row, CNN_DM, "article", "highlights")


def _summary(row: Row, kind: str, source: str, summary: str) -> Task:
    system = SUMMARY_SYSTEM.replace("{}", text_of(row, source))
    return Task((SUMMARY_USER,), kind, name_of(row), system, reference=text_of(row, summary))


FORMS = (
    (("task_id", "prompt", "entry_point"), _humaneval),
    (("skeleton", "class_name"), _classeval),
    (("test_list", "code"), _mbpp),
    (("question", "answer"), _gsm8k),
    (("document", "summary"), _xsum),
    (("article", "highlights"), _cnn_dm),
)
"""The fields that a form is known by, and what reads it."""
