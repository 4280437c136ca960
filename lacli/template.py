"""From a question to a prompt: the model's chat template, or none.

Strings in, strings out; how a string becomes tokens is llama.cpp's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lacli.errors import PromptError

Formatter = Callable[..., str]


def chat_prompt(formatter: Formatter, question: str, system: str = "", history: Sequence[tuple[str, str]] = ()) -> str:
    """A conversation that ends with a question, rendered to where the answer begins.

    history: the questions before, each with its answer. A template that knows no system role gets the system text in
    front of the first question. Raises PromptError when the template cannot be rendered.
    """
    messages = []
    for asked, answer in history:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": question})
    if not system:
        return _render(formatter, messages)
    try:
        return formatter([{"role": "system", "content": system}, *messages])
    except Exception:  # a template is a program of its author's: whatever it raises, it refuses the role
        first, *others = messages
        return _render(formatter, [{"role": "user", "content": f"{system}\n\n{first['content']}"}, *others])


def without_bos(prompt: str, bos: str, *, adds_bos: bool) -> str:
    """A rendered prompt less its BOS where the vocabulary adds one, so that it is never doubled (llama.cpp's rule)."""
    return prompt.removeprefix(bos) if adds_bos and bos else prompt


def _render(formatter: Formatter, messages: list[dict[str, str]]) -> str:
    try:
        return formatter(messages)
    except Exception as error:
        raise PromptError(f"the model's chat template fails: {error}", "use --raw to go without it") from error
