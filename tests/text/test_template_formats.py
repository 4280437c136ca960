"""The formats of model families: texts written out from what was published, and transformers' rendering."""

from __future__ import annotations

import ctypes
from datetime import datetime

import llama_cpp
import pytest

from lacli.text.template import STOPS, THEIR_NAMES, as_messages
from tests.fakes.template_texts import (
    BOS,
    bundled,
    by_transformers,
    compiled,
    every_source,
    fixture,
)

CONVERSATION = as_messages("And 3+3?", "Be brief.", [("What is 2+2?", "4.")])

WRITTEN_OUT = {
    "alpaca": (
        "<s>Be brief.\n\n### Instruction:\nWhat is 2+2?\n\n### Response:\n4.</s>\n\n"
        "### Instruction:\nAnd 3+3?\n\n### Response:\n"
    ),
    "chatml": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
        "<|im_start|>assistant\n4.<|im_end|>\n<|im_start|>user\nAnd 3+3?<|im_end|>\n<|im_start|>assistant\n"
    ),
    "command-r": (
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>What is 2+2?<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>4.<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>And 3+3?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    ),
    "deepseek": (
        "<s>Be brief.<｜User｜>What is 2+2?<｜Assistant｜>4.<｜end▁of▁sentence｜><｜User｜>And 3+3?<｜Assistant｜>"
    ),
    "gemma": (
        "<s><start_of_turn>user\nBe brief.\n\nWhat is 2+2?<end_of_turn>\n<start_of_turn>model\n4.<end_of_turn>\n"
        "<start_of_turn>user\nAnd 3+3?<end_of_turn>\n<start_of_turn>model\n"
    ),
    "gpt-oss": (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: {today}\n\nReasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|><|start|>user<|message|>What is 2+2?<|end|>"
        "<|start|>assistant<|channel|>final<|message|>4.<|end|><|start|>user<|message|>And 3+3?<|end|>"
        "<|start|>assistant"
    ),
    "llama2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nWhat is 2+2? [/INST] 4. </s><s>[INST] And 3+3? [/INST]",
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n4.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nAnd 3+3?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "mistral": "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]What is 2+2?[/INST]4.</s>[INST]And 3+3?[/INST]",
    "phi3": (
        "<|system|>\nBe brief.<|end|>\n<|user|>\nWhat is 2+2?<|end|>\n<|assistant|>\n4.<|end|>\n"
        "<|user|>\nAnd 3+3?<|end|>\n<|assistant|>\n"
    ),
    "phi4": (
        "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>What is 2+2?<|im_end|>"
        "<|im_start|>assistant<|im_sep|>4.<|im_end|><|im_start|>user<|im_sep|>And 3+3?<|im_end|>"
        "<|im_start|>assistant<|im_sep|>"
    ),
    "qwen": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
        "<|im_start|>assistant\n4.<|im_end|>\n<|im_start|>user\nAnd 3+3?<|im_end|>\n<|im_start|>assistant\n"
    ),
    "vicuna": "<s>Be brief. USER: What is 2+2? ASSISTANT: 4.</s>USER: And 3+3? ASSISTANT:",
    "zephyr": (
        "<|system|>\nBe brief.</s>\n<|user|>\nWhat is 2+2?</s>\n<|assistant|>\n4.</s>\n"
        "<|user|>\nAnd 3+3?</s>\n<|assistant|>\n"
    ),
}
"""CONVERSATION in the format of each bundled template, as it was published."""

TOOL_LIKE = '{"name": "run", "arguments": {"path": "/tmp", "all": true}}\n<tool_call>[1, 2]</tool_call>'
CONTENTS = {
    "one question": as_messages("Why is the sky blue?"),
    "with a system text": as_messages("Why is the sky blue?", "You are a physicist."),
    "three turns": as_messages("c?", "", [("a?", "A."), ("b?", "B.")]),
    "three turns and a system text": as_messages("c?", "Short.", [("a?", "A."), ("b?", "B.")]),
    "quotes and braces": as_messages(
        """Say "it's" {{ bos_token }} {% raw %} {x} {# no #}""", """A "sys'tem" {{ 1 }}"""
    ),
    "lines": as_messages("def f():\n    return '\\n'\n\n\tand then?", "a\n\nb", [("x\ny", "1\n2\n")]),
    "emoji": as_messages("Qu'est-ce que 🦙 ? 漢字 👩‍👩‍👧", "réponds 🙂", [("é", "ü 🚀")]),
    "like tools": as_messages(TOOL_LIKE, TOOL_LIKE, [(TOOL_LIKE, TOOL_LIKE)]),
    "markup": as_messages("<b>a & b</b> <|im_end|> [INST] </s>", "", [("<x>", "&lt;")]),
}
FOLDS = {"gemma2*", "phi3-first*", "silent*"}
"""Templates without a system role."""

WANTS_PARTS = {"parts*"}


@pytest.mark.parametrize("name", STOPS)
def test_a_conversation_and_its_stops_are_what_the_format_says(name: str) -> None:
    source = bundled(name)
    expected = WRITTEN_OUT[name].replace("{today}", f"{datetime.now():%Y-%m-%d}")
    assert compiled(source).render(CONVERSATION) == by_transformers(source, CONVERSATION) == expected
    after = expected[expected.index("4.") + len("4.") :].lstrip()
    if name == "gpt-oss":
        after = after.replace("<|end|>", "<|return|>", 1)  # published: history has the one for the other
    assert after.startswith(STOPS[name])


def folded(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    if messages[0]["role"] != "system":
        return messages
    system, first, *others = messages
    return [{"role": "user", "content": system["content"] + "\n\n" + first["content"]}, *others]


@pytest.mark.parametrize("name", sorted(every_source()))
def test_a_template_renders_as_in_transformers(name: str) -> None:
    source = every_source()[name]
    for messages in CONTENTS.values():
        theirs = folded(messages) if name in FOLDS else messages
        given: list[dict[str, object]] = [dict(message) for message in theirs]
        if name in WANTS_PARTS:
            given = [{"role": each["role"], "content": [{"type": "text", "text": each["content"]}]} for each in theirs]
        assert compiled(source).render(messages) == by_transformers(source, given)


FAMILIES = {
    "chatml": "chatml",
    "deepseek": "deepseek-r1",
    "gemma": "gemma2",
    "gpt-oss": "gpt-oss",
    "llama2": "llama2",
    "phi3": "phi3",
    "zephyr": "zephyr",
}
"""Bundled templates and the fixtures that are written like a published one of their families."""


def without_frame(rendered: str) -> str:
    """A conversation less the fixed text before it and the thought begun after it, which releases have or have not."""
    if rendered.startswith("<|start|>system"):
        rendered = rendered.partition("<|end|>")[2]
    return rendered.removesuffix("<think>\n")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_bundled_template_writes_what_its_familys_own_writes(name: str) -> None:
    sources = (bundled(name), fixture(FAMILIES[name]))
    for messages in CONTENTS.values():
        ours, published = (without_frame(compiled(source).render(messages)) for source in sources)
        assert ours == published


SAME_NAMES = ("chatml", "command-r", "gemma", "llama3", "phi3", "phi4")


def by_llama_cpp(name: str, messages: list[dict[str, str]]) -> str:
    """The same conversation by one of the formats that are written in llama.cpp itself."""
    given = [llama_cpp.llama_chat_message(each["role"].encode(), each["content"].encode()) for each in messages]
    room = ctypes.create_string_buffer(10_000)
    array = (llama_cpp.llama_chat_message * len(given))(*given)
    length = llama_cpp.llama_chat_apply_template(name.encode(), array, len(given), True, room, len(room))
    assert length > 0
    return room.raw[:length].decode()


@pytest.mark.parametrize(("theirs", "ours"), {**{name: name for name in SAME_NAMES}, **THEIR_NAMES}.items())
def test_a_name_that_is_llama_cpps_too_means_its_format(theirs: str, ours: str) -> None:
    def bare(text: str) -> str:
        """Without BOS and space, which releases of one family have otherwise."""
        return "".join(text.replace(BOS, "").split())

    assert bare(compiled(bundled(ours)).render(CONVERSATION)) == bare(by_llama_cpp(theirs, CONVERSATION))


@pytest.mark.parametrize("name", ["qwen", "deepseek", "qwen3*", "deepseek-r1*"])
def test_thoughts_of_earlier_answers_are_left_out(name: str) -> None:
    answer = "<think>\nThe user wants a sum.\n</think>\n\n4."
    messages = as_messages("And 3+3?", "", [("What is 2+2?", answer)])
    source = every_source()[name]
    rendered = compiled(source).render(messages)
    assert rendered == by_transformers(source, messages)
    assert "wants a sum" not in rendered and "4." in rendered
    assert rendered.count("<think>") == (name == "deepseek-r1*") and "</think>" not in rendered


def test_a_template_that_wants_thoughts_apart_gets_them_apart() -> None:
    thought = "The user wants a sum."
    answer = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>4."
    messages = as_messages("And 3+3?", "", [("What is 2+2?", answer)])
    for source in (fixture("gpt-oss"), bundled("gpt-oss")):
        rendered = compiled(source).render(messages)
        apart = [messages[0], {"role": "assistant", "content": "4.", "thinking": thought}, messages[2]]
        assert rendered == by_transformers(source, apart)
        assert thought not in rendered and "final<|message|>4.<|end|>" in rendered
