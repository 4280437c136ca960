"""The formats of model families, compared with transformers' rendering."""

from __future__ import annotations

import pytest

from lacli.text.template import STOPS, as_messages
from tests.fakes.template_texts import bundled, by_transformers, compiled, every_source

CONVERSATION = as_messages("And 3+3?", "Be brief.", [("What is 2+2?", "4.")])

TOOL_LIKE = '{"name": "run", "arguments": {"path": "/tmp", "all": true}}\n<tool_call>[1, 2]</tool_call>'
CONTENTS = (
    as_messages("Why is the sky blue?"),
    as_messages("c?", "Short.", [("a?", "A."), ("b?", "B.")]),
    as_messages("""Say "it's" {{ bos_token }} {% raw %} {x} {# no #}""", """A "sys'tem" {{ 1 }}"""),
    as_messages("def f():\n    return '\\n'\n\n\tand then?", "a\n\nb", [("x\ny", "1\n2\n")]),
    as_messages(TOOL_LIKE, TOOL_LIKE, [(TOOL_LIKE, TOOL_LIKE)]),
    as_messages("<b>a & b</b> <|im_end|> [INST] </s>", "", [("<x>", "&lt;")]),
)
FOLDS = {"gemma2*"}
"""Templates without a system role."""


@pytest.mark.parametrize("name", STOPS)
def test_a_stop_follows_an_answer_in_a_bundled_format(name: str) -> None:
    rendered = compiled(bundled(name)).render(CONVERSATION)
    after = rendered[rendered.index("4.") + len("4.") :].lstrip()
    assert after.startswith(STOPS[name])


def folded(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    if messages[0]["role"] != "system":
        return messages
    system, first, *others = messages
    return [{"role": "user", "content": system["content"] + "\n\n" + first["content"]}, *others]


@pytest.mark.parametrize("name", sorted(every_source()))
def test_a_template_renders_as_in_transformers(name: str) -> None:
    source = every_source()[name]
    for messages in CONTENTS:
        given = folded(messages) if name in FOLDS else messages
        assert compiled(source).render(messages) == by_transformers(source, given)


@pytest.mark.parametrize("name", ["qwen", "qwen3*", "deepseek-r1*"])
def test_thoughts_of_earlier_answers_are_left_out(name: str) -> None:
    answer = "<think>\nThe user wants a sum.\n</think>\n\n4."
    messages = as_messages("And 3+3?", "", [("What is 2+2?", answer)])
    source = every_source()[name]
    rendered = compiled(source).render(messages)
    assert rendered == by_transformers(source, messages)
    assert "wants a sum" not in rendered and "4." in rendered
