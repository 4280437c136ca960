"""Reasoning: in messages and templates, its effort, and grammars for the answer after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel

import lacli
from lacli.context import Floats
from lacli.llamacpp.sampler import LlamaSampler
from tests.loading import STDLIB_7M
from tests.serve.conftest import app_of, serving
from tests.serve.test_app import QUESTION, post
from tests.serve.test_fields import events
from tests.serve.test_tools import CLOCK

THINKS = """
{%- if tools %}{{ tools | tojson }}<tool_call>{"name": "f", "arguments": {}}</tool_call>{% endif %}
{%- for each in messages %}<|im_start|>{{ each.role }}
{% if each.reasoning_content %}<think>
{{ each.reasoning_content.strip() }}
</think>

{% endif %}{{ each.content.strip() }}<|im_end|>
{% endfor %}{{ "Effort: " ~ reasoning_effort ~ "\n" if reasoning_effort }}<|im_start|>assistant
<think>{{ "\n" }}"""
"""A template that opens a reasoning block, shows earlier blocks, and has an effort."""


class Yes(BaseModel):
    yes: bool


SCHEMA = Yes.model_json_schema()
OBJECT: Any = {"type": "json_schema", "json_schema": {"name": "yes", "schema": SCHEMA}}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "response_format": {"response_format": OBJECT},
    "json_schema": {"json_schema": SCHEMA},
    "grammar": {"grammar": 'root ::= "{\\"yes\\": true}"'},
    "tools that may not be called": {"response_format": OBJECT, "tools": [CLOCK], "tool_choice": "none"},
    "tools": {"response_format": OBJECT, "tools": [CLOCK]},
    "a call": {"tools": [CLOCK], "tool_choice": "required"},
}
"""Fields of requests that force a form of the answer."""


@pytest.fixture(scope="module")
def thinking() -> Iterator[lacli.Model]:
    """Yield a model whose template opens a reasoning block."""
    with lacli.load(STDLIB_7M, threads=1, parallel=2, template=THINKS) as model:
        yield model


@pytest.fixture(scope="module")
def thinker(thinking: lacli.Model) -> Iterator[str]:
    with serving(app_of(thinking, max_tokens=300)) as address:
        yield address


@pytest.fixture
def wishes(thinking: lacli.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each sampler prefer the tokens of a reasoning block at the beginning, unless a grammar forbids them."""
    draw, text = LlamaSampler.draw, "hm {\n</think>\n\n"
    wanted: dict[LlamaSampler, Iterator[int]] = {}

    def wanting(self: LlamaSampler, logits: Floats) -> int:
        tokens = thinking.engine.model.tokenize(text, add_special=False)
        if (token := next(wanted.setdefault(self, chain(tokens, repeat(-1))))) >= 0:
            logits = logits.copy()
            logits[token] = 1e6
        return draw(self, logits)

    monkeypatch.setattr(LlamaSampler, "draw", wanting)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_of_earlier_answers_reaches_the_template(thinker: str, name: str) -> None:
    answer = {"role": "assistant", "content": "4.", "reasoning_content": None, name: "hm"}
    prompt = post(f"{thinker}/apply-template", {"messages": [*QUESTION, answer, *QUESTION]})["prompt"]
    assert "assistant\n<think>\nhm\n</think>\n\n4.<|im_end|>" in prompt


@pytest.mark.parametrize(
    ("body", "effort"),
    [
        ({"reasoning_effort": "low"}, "Effort: low\n"),
        ({"reasoning_effort": None}, ""),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "Effort: high\n"),
    ],
)
def test_reasoning_effort_reaches_a_template_that_knows_it(thinker: str, body: Mapping[str, Any], effort: str) -> None:
    prompt = post(f"{thinker}/apply-template", {"messages": QUESTION, **body})["prompt"]
    assert prompt.endswith(f"{effort}<|im_start|>assistant\n<think>\n") and prompt.count("Effort") == bool(effort)


def said_by(message: Mapping[str, Any]) -> str:
    """Return the text of a message, or the calls in it."""
    calls = message.get("tool_calls") or ()
    return "".join(call["function"].get("name", "") for call in calls) or message.get("content") or ""


@pytest.mark.usefixtures("wishes")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_model_thinks_freely_before_an_answer_of_a_given_form(thinker: str, form: Mapping[str, Any]) -> None:
    body = {"messages": QUESTION, **form}
    whole = post(f"{thinker}/v1/chat/completions", body)["choices"][0]
    parts = [event["choices"][0]["delta"] for event in events(f"{thinker}/v1/chat/completions", body)]
    for messages in ([whole["message"]], parts):
        assert "".join(each.get("reasoning_content") or "" for each in messages) == "hm {\n"
        said = "".join(map(said_by, messages))
        assert said == "clock" or type(json.loads(said)["yes"]) is bool
    assert whole["finish_reason"] in ("stop", "tool_calls")


@pytest.mark.usefixtures("wishes")
def test_a_parsed_answer_is_an_object_of_its_class(thinker: str) -> None:
    with OpenAI(api_key="none", base_url=f"{thinker}/v1", max_retries=0) as client:
        reply = client.chat.completions.parse(model="any", messages=QUESTION, response_format=Yes)
    assert isinstance(reply.choices[0].message.parsed, Yes)


@pytest.mark.parametrize(
    "off", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}], ids=str
)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_with_thinking_off_the_answer_has_its_form_at_once(
    thinker: str, form: Mapping[str, Any], off: Mapping[str, Any]
) -> None:
    body = {"messages": QUESTION, **form, **off}
    prompt = post(f"{thinker}/apply-template", body)["prompt"]
    assert prompt.endswith("<think>\n</think>\n\n") and "Effort" not in prompt
    message = post(f"{thinker}/v1/chat/completions", body)["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert (said := said_by(message)) == "clock" or type(json.loads(said)["yes"]) is bool


def test_reasoning_without_an_end_is_no_content(thinker: str) -> None:
    (choice,) = post(f"{thinker}/v1/chat/completions", {"messages": QUESTION, **FORMS["grammar"], "max_tokens": 9})[
        "choices"
    ]
    assert choice["finish_reason"] == "length" and choice["message"]["reasoning_content"]
    assert not choice["message"]["content"]
