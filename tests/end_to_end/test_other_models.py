"""Qwen2.5-Coder's calls, gemma without a template, a long prompt of SmolLM2, where LACLI_TEST_MODELS names a folder."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

import lacli
from lacli import DecodeSettings, ModelSettings, SamplingSettings
from lacli.serve.app import Server, ServeSettings
from tests.loading import load, other_model
from tests.serve.conftest import serving

CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PATH: Any = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": said, "parameters": parameters}}
    for name, said, parameters in (
        ("get_weather", "Get the current weather of a city", CITY),
        ("read_file", "Read a text file", PATH),
    )
]
ASKED = {
    "Read the file /etc/hostname.": ("read_file", {"path": "/etc/hostname"}),
    "What is the weather in Paris right now?": ("get_weather", {"city": "Paris"}),
}


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_a_coder_calls_a_function_and_answers_with_its_result(name: str) -> None:
    with lacli.load(other_model(name), parallel=1, context=2048) as model:
        settings = ServeSettings((name,), SamplingSettings(), max_tokens=200)
        with serving(Server(model, settings).app()) as address:
            client = OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0)
            for question, (function, arguments) in ASKED.items():
                messages: list[Any] = [{"role": "user", "content": question}]
                asked: Any = {"model": name, "messages": messages, "tools": TOOLS}
                first = client.chat.completions.create(**asked).choices[0]
                assert first.finish_reason == "tool_calls" and not first.message.content
                assert first.message.tool_calls
                (call,) = first.message.tool_calls
                assert call.type == "function" and call.function.name == function
                assert json.loads(call.function.arguments) == arguments
                events = [event.choices[0] for event in client.chat.completions.create(**asked, stream=True)]
                parts = [part.function for event in events for part in event.delta.tool_calls or () if part.function]
                assert events[-1].finish_reason == "tool_calls" and not any(event.delta.content for event in events)
                assert parts[0].name == function
                assert json.loads("".join(part.arguments or "" for part in parts)) == arguments
            result = {"role": "tool", "content": '{"degrees": 21, "sky": "clear"}', "tool_call_id": call.id}
            # With functions offered these models call again instead of answering.
            asked |= {"messages": [*messages, first.message, result], "tool_choice": "none"}
            second = client.chat.completions.create(**asked).choices[0]
            assert second.finish_reason == "stop" and not second.message.tool_calls
            assert "21" in (second.message.content or "")


def test_gemma_without_a_template_talks_in_its_own_format_and_stops() -> None:
    with lacli.load(other_model("gemma-3-270m"), parallel=1, context=1024) as model:
        assert "conversations use the format gemma" in model.engine.notes[0]
        messages = [{"role": "user", "content": "Name a colour. Answer in one word."}]
        assert "<start_of_turn>user" in model.engine.text(model.tokenize(messages), special=True)
        answer = model.chat(messages, max_tokens=100)
        assert "_of_turn>" not in answer.text and "<|im_" not in answer.text
        # A base model may not end a turn by itself, so its format is what ends it.
        assert model.engine.prompts.template.stops == ("<end_of_turn>", "<start_of_turn>")
        assert all(map(model.engine.model.has_token, model.engine.prompts.template.stops))


def test_behind_six_thousand_tokens_smollm2_decodes_only_what_is_new() -> None:
    # Reading them takes more than a minute on one core, so one prompt serves both questions.
    model_settings = ModelSettings(context=7000, gpu_layers=0)
    lines = "".join(f"Box {number} holds {number} red balls.\n" for number in range(1, 451))
    lookup = DecodeSettings(mode="lookup")
    with load(other_model("smollm2-135m"), model_settings=model_settings, decode_settings=lookup) as engine:
        prompt = engine.model.tokenize(lines + "Box 451 holds")
        assert 6000 < len(prompt) < 6500
        first = "".join(piece.text for piece in engine.generate(prompt, 16).pieces)
        longer = [*prompt, *engine.model.tokenize(" 451 red balls.\nBox 452 holds")]
        text, pieces = engine.generate(longer, 8)
        second = "".join(piece.text for piece in pieces)
    assert first.startswith(" 451 red balls.\nBox 452") and second.startswith(" 452 red balls")
    assert text.answer().statistics.reused_tokens >= len(prompt)
