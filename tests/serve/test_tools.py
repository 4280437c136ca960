"""Tools: prompts with functions, calls taken out of texts, and calls that a grammar forces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from openai import BadRequestError, OpenAI

import lacli
from lacli.errors import UsageError
from lacli.serve.protocol import ChatRequest
from lacli.text.calls import FORMS, CallRules, CallSplitter, form_of
from lacli.text.reasoning import ReasoningSplitter
from lacli.text.stream import Piece
from tests.fakes.template_texts import bundled, by_transformers, compiled
from tests.loading import STDLIB_7M
from tests.serve.conftest import app_of
from tests.serve.test_app import QUESTION, function, post
from tests.serve.test_fields import events

SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Bonn", "Rome"]}},
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
NOTHING: Any = {"type": "object", "properties": {}}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "description": "", "parameters": NOTHING}}
FUNCTIONS = {"weather": SCHEMA, "clock": NOTHING}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
HISTORY: Any = [
    {"role": "user", "content": "Rain in Bonn?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "no", "tool_call_id": "call_1"},
]

CITY = 'Bonn {"</tool_call> ```'
ARGUMENTS = {"city": CITY}
"""A call's arguments; their text contains marks of calls and of code."""

PLAIN = json.dumps({"name": "weather", "arguments": ARGUMENTS})
INDENTED = json.dumps({"name": "weather", "arguments": ARGUMENTS}, indent=2)
WRITTEN_CALLS = {
    "Hermes": f"<tool_call>\n{PLAIN}\n</tool_call>",
    "Llama 3": PLAIN.replace("arguments", "parameters"),
    "Llama 3 with a tag": f"<|python_tag|>{PLAIN.replace('arguments', 'parameters')}",
    "Mistral": f'[TOOL_CALLS] [{PLAIN[:-1]}, "id": "a"}}]',
    "Mistral with names in front": f"[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{json.dumps(ARGUMENTS)}",
    "bare": PLAIN,
    "bare, indented": INDENTED,
    "fence": f"```json\n{INDENTED}\n```",
    "fence without a label": f"```\n{PLAIN}\n```",
    "fence in the tag": f"<tool_call>\n```json\n{INDENTED}\n```\n</tool_call>",
    "tools": f"<tools>\n{PLAIN}\n</tools>",
    "doubled outer brackets": f"<tool_call>\n{{{PLAIN}}}\n</tool_call>",
    "doubled brackets": f"<tool_call>\n{{{PLAIN[:-2].replace(': {', ': {{')}}}}}}}\n</tool_call>",
    "doubled brackets in a fence": f"```json\n{{{PLAIN}}}\n```",
    "list in a fence": f"```json\n[\n  {PLAIN}\n]\n```",
    "Qwen3-Coder": f"<tool_call>\n<function=weather>\n<parameter=city>\n{CITY}\n</parameter>\n</function></tool_call>",
    "Qwen3-Coder in a line": f"<tool_call><function=weather><parameter=city>{CITY}</parameter></function></tool_call>",
    "Qwen3-Coder without a tag": f"<function=weather>\n<parameter=city>\n{CITY}\n</parameter>\n</tool_call>",
    "JSON between tags": f"<function=weather>{json.dumps(ARGUMENTS)}</function>",
    "Seed-OSS": f"<seed:tool_call>\n<function=weather>\n<parameter=city>{CITY}</parameter></function></seed:tool_call>",
    "Gemma 4": f'<|tool_call>call:weather{{city:<|"|>{CITY}<|"|>}}<tool_call|>',
    "LFM2": f"<|tool_call_start|>[weather(city='{CITY}')]<|tool_call_end|>",
    "LFM2, in JSON": f"<|tool_call_start|>[{PLAIN}]<|tool_call_end|>",
    "no opening tag": f"{PLAIN}\n</tool_call>",
    "no closing tag": f"<tool_call>\n{PLAIN}",
    "no last bracket": f"<tool_call>\n{PLAIN[:-1]}\n</tool_call>",
}
"""A call of `weather` in each form that models write. Qwen2.5-Coder's models write most forms of Hermes."""

CALLED = '{"name": "clock", "arguments": {}}'
TWO = {
    "semicolon": ("{0}; {0}", '{"name": "clock", "parameters": {}}'),
    "list": ("[TOOL_CALLS][{0}, {0}]", CALLED),
    "list in a fence": ("```json\n[\n  {0},\n  {0}\n]\n```", CALLED),
    "Mistral": ("{0}{0}", "[TOOL_CALLS]clock[ARGS]{}"),
    "Gemma 4": ("{0}{0}", "<|tool_call>call:clock{}<tool_call|>"),
    "LFM2": ("<|tool_call_start|>[{0}, {0}]<|tool_call_end|>", "clock()"),
    "Qwen3-Coder": ("{0}\n{0}", "<tool_call>\n<function=clock>\n</function>\n</tool_call>"),
}
"""A pattern for two calls, and the form of one call, for each family."""


def splitting(form: str = "", schema: str = "", *, several: bool = True, forced: bool = False) -> CallSplitter:
    return CallSplitter(CallRules(form, FUNCTIONS, several, forced, schema))


def read(splitter: CallSplitter, parts: Sequence[str]) -> tuple[str, list[tuple[str, Any]]]:
    """Return the content and the calls of a text that comes in `parts`."""
    content = "".join(map(splitter.feed, parts)) + splitter.feed("", final=True)
    pieces = dict.fromkeys(range(len(splitter.calls)), "")
    for number, part in splitter.parts:
        assert bool(part.name) is not bool(pieces[number] or part.arguments), "first the name, then the arguments"
        pieces[number] += part.arguments
    assert [*pieces.values()] == [call.arguments for call in splitter.calls]
    return content, [(call.name, json.loads(call.arguments)) for call in splitter.calls]


def split(parts: Sequence[str], *, several: bool = True) -> tuple[str, list[tuple[str, Any]]]:
    return read(splitting(several=several), parts)


def written(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a request's messages in the form that a template gets."""
    return [message.for_template for message in ChatRequest.model_validate({"messages": messages}).messages]


def cuts(text: str) -> Iterator[list[str]]:
    """Yield a text cut in two at every place, and cut into its characters."""
    for place in range(len(text) + 1):
        yield [text[:place], text[place:]]
    yield [*text]


@pytest.mark.parametrize(
    ("source", "begins"),
    [
        (bundled("qwen"), "<tool_call>\n{"),
        (bundled("llama3"), "{"),
        (bundled("mistral"), "[TOOL_CALLS][{"),
        ("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]%s[ARGS]"),
        ("<tool_call>\n{'name'", "<tool_call>\n{"),
        ("{{ '<tool_call>\n' }}\n{{- '{\"name\"' }}", "<tool_call>\n{"),
        ("<tool_call><function=f>", None),
        ("<tool_call>\n<function=f>\n<parameter=a>", "<tool_call>\n{"),
        ("<|tool_call>call:f", "<|tool_call>{"),
        ("<|channel|>commentary ", "<|channel|>commentary to=functions.%s "),
        ("List of tools: <|tool_list_start|>[", "<|tool_call_start|>[{"),
        ("List of tools: [", "<|tool_call_start|>[{"),
        ("<tool_call>{name}<arg_key>", None),
    ],
)
def test_a_template_tells_how_its_model_calls(source: str, begins: str | None) -> None:
    template = compiled("{{ tools }}" + source)
    if begins:
        assert form_of(template).startswith(begins)
    else:
        with pytest.raises(UsageError, match="cannot read"):
            form_of(template)


def test_a_form_of_calls_that_cannot_be_read_is_said_once_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    for source, said in (("{{ tools }}<tool_call><arg_key>", 1), (bundled("qwen"), 0), ("{{ messages }}", 0)):
        with lacli.load(STDLIB_7M, threads=1, template=source) as model:
            app_of(model)
        assert [*map(len, (caplog.messages, "".join(caplog.messages).split("cannot read")))] == [said, said + 1]
        caplog.clear()


@pytest.mark.parametrize("name", ["qwen", "llama3", "mistral"])
def test_functions_calls_and_results_are_written_as_the_template_says(name: str) -> None:
    messages, source = written(HISTORY), bundled(name)
    prompt = compiled(source).render(messages, [WEATHER, CLOCK])
    assert prompt == by_transformers(source, messages, [WEATHER, CLOCK])
    assert prompt.count("Bonn") > 1 and (json.dumps(CLOCK) in prompt or json.dumps(CLOCK, indent=4) in prompt)


@pytest.mark.parametrize("text", WRITTEN_CALLS.values(), ids=WRITTEN_CALLS)
def test_a_call_is_found_in_every_form_wherever_the_text_is_cut(text: str) -> None:
    for before in ("", "\n ", "Let me see <b> [x] `y` {z}.\n\n", "```python\nx = [1]\n```\n"):
        for parts in cuts(f"{before}{text}\n"):
            assert split(parts) == (before.strip(), [("weather", ARGUMENTS)])
    assert split([*f"{text}\n{text}"]) == ("", [("weather", ARGUMENTS)] * 2)
    assert split([*f"{text}\n{text}"], several=False) == ("", [("weather", ARGUMENTS)])
    if not text.startswith("{"):
        assert split([*f"So: {text}"]) == ("So:", [("weather", ARGUMENTS)]), "inside a line"


def test_of_an_answer_that_is_cut_in_a_call_no_mark_stays_content() -> None:
    call = f"<tool_call>{CALLED}</tool_call>"
    assert split([call[:-5]]) == ("", [("clock", {})])
    for length in range(len(call)):
        assert splitting(forced=True).feed(call[:length], final=True) == ""
        assert splitting(schema='{"type": "object"}').feed(call[:length], final=True) == "" or not length
    for length in range(len("<tool_call>")):
        assert split([f"{call}\n{call[:length]}"]) == ("", [("clock", {})])
    assert split([f"{call} so 1 <"]) == ("so 1 <", [("clock", {})])


@pytest.mark.parametrize(("both", "call"), TWO.values(), ids=TWO)
def test_several_calls_are_found_unless_one_is_allowed(both: str, call: str) -> None:
    text = both.replace("{0}", call)
    for parts in cuts(text):
        assert split(parts) == ("", [("clock", {})] * 2)
        assert split(parts, several=False) == ("", [("clock", {})])


@pytest.mark.parametrize(
    "text",
    [
        'It is <tool_call>{"name": "weather", "arguments": ',
        '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": NaN}, "name": "clock"}</tool_call>',
        '{"name": "nothing", "parameters": {}}',
        'See {"name": "clock", "parameters": {}}',
        '{"a": [1, "}"]} is JSON',
        "{",
        "[TOOL_CALLS][1]",
        "[TOOL_CALLS]clock{}",
        '{"name": "nothing", "arguments": {}}',
        '```json\n{"name": "clock", "arguments": "now"}\n```',
        '{"name": "clock", "arguments": null}',
        '{"name": "clock", "price": {"city": "Bonn"}}',
        '[{"name": "Ada", "arguments": {"age": 36}}]',
        '{\n  "calls": [\n    {"name": "clock", "arguments": {}}\n  ]\n}',
        '```python\nclock()\ncalls = [{"name": "clock", "arguments": {}}]\n```',
        "{" * 50 + "[" * 50,
    ],
)
def test_text_that_is_no_call_stays_content(text: str) -> None:
    for parts in cuts(text):
        assert split(parts) == (text, [])


def test_a_call_without_its_last_bracket_swallows_nothing_of_what_follows() -> None:
    call = '<tool_call>{"name": "clock", "arguments": {}'
    for parts in cuts(f"{call}</tool_call> So. {call}}}</tool_call>"):
        assert split(parts) == ("So.", [("clock", {})] * 2)
    assert split([f"{call}\nSo."]) == ("So.", [("clock", {})])


def test_text_that_begins_no_call_is_not_held_back() -> None:
    fed, out = ("a", " <b", "> <tool", "ing>", "<tool_call>x y"), ["a", " <b", ">", " <tooling>", "<tool_call>x y"]
    splitter = splitting()
    assert [splitter.feed(text) for text in fed] == out


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_call_comes_whole_and_in_a_stream_without_its_markup(caller: OpenAI, choice: Any) -> None:
    asked: Any = {"model": "any", "messages": QUESTION, "tools": [CLOCK, WEATHER], "tool_choice": choice}
    whole = caller.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None and whole.message.tool_calls
    (call,) = whole.message.tool_calls
    assert call.type == "function" and call.id and call.function.name in ("weather", "clock")
    if call.function.name == "weather":
        assert json.loads(call.function.arguments)["city"] in ("Bonn", "Rome")
    assert choice == "required" or call.function.name == "weather"
    events = [event.choices[0] for event in caller.chat.completions.create(**asked, stream=True)]
    part, *others = [part for event in events for part in event.delta.tool_calls or ()]
    assert not any(event.delta.content for event in events) and events[-1].finish_reason == "tool_calls"
    assert part.index == 0 and part.id and part.function
    assert (part.function.name, part.function.arguments) == (call.function.name, "")
    assert all(other.index == 0 and not (other.id or other.type) for other in others)
    assert "".join(other.function.arguments for other in others) == call.function.arguments
    assert len(others) > 1 or call.function.arguments == "{}"


def test_stop_texts_end_the_content_and_no_call() -> None:
    call = f"<tool_call>{CALLED}</tool_call>"
    for text, content, calls, stop in (
        (f"So a.{call}", "So a.", 1, ""),
        (f"So.{call} a clock b", "So.a", 1, " clock"),
        (f"So a clock b.{call}", "So a", 0, " clock"),
        (f"So a cl{call}ock", "So a clock", 1, ""),
        ("So a clo", "So a clo", 0, ""),
    ):
        for parts in cuts(text):
            splitter = CallSplitter(CallRules("", FUNCTIONS, True, False), (" clock", "name", "arg"))
            found, called = read(splitter, parts)
            assert (found, len(called), splitter.stop) == (content, calls, stop)


def test_an_answer_with_tools_ends_at_a_stop_text_outside_of_calls(qwen: str) -> None:
    url, body = f"{qwen}/v1/chat/completions", {"messages": QUESTION, "tools": [CLOCK]}
    forced = post(url, {**body, "tool_choice": "required", "stop": ["name", "{"]})["choices"][0]
    assert forced["finish_reason"] == "tool_calls" and forced["message"]["tool_calls"]
    free = post(url, {**body, "max_tokens": 40})["choices"][0]["message"]["content"]
    stop = free[20:24]
    asked = {**body, "stop": ["", stop], "max_tokens": 40}
    whole, streamed = post(url, asked)["choices"][0], events(url, asked)
    assert whole["message"]["content"] == free[: free.index(stop)] and whole["finish_reason"] == "stop"
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in streamed) == whole["message"]["content"]
    assert streamed[-1]["timings"]["predicted_n"] < 40


@pytest.mark.parametrize("form", FORMS.values())
def test_a_grammar_makes_calls_of_every_format(form: str, model: lacli.Model) -> None:
    grammar = CallRules(form, FUNCTIONS, several=False, forced=True).grammar()
    answer = model.generate("Write a function.", grammar=grammar, max_tokens=300)
    assert answer.finish_reason == "eog"
    content, calls = split([answer.text])
    assert not content and len(calls) == 1


VALUES: Any = {"text": "a\n'b'", "n": -1.5, "yes": True, "none": None, "list": ["a", {"k": False}], "zip": "1"}
TEXT: Any = {"anyOf": [{"type": "string"}, {"type": "null"}]}
TYPED: Any = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "number"}, "zip": TEXT}}
WRITTEN_VALUES = {
    "Python": """<|tool_call_start|>[f(text='a\\n\\'b\\'',n=-1.5,yes=True,none=None,list=('a',{"k": False}),zip="1")""",
    "Gemma": """call:f{text:<|"|>a\n'b'<|"|>,n:-1.5,yes:true,none:null,list:[<|"|>a<|"|>,{k:false}],zip:<|"|>1<|"|>}""",
    "tags": "<function=f>"
    + "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in {**VALUES, "list": '["a", {"k": false}]'}.items()
    ),
}


@pytest.mark.parametrize("text", WRITTEN_VALUES.values(), ids=WRITTEN_VALUES)
def test_values_of_every_kind_become_json_wherever_the_text_is_cut(text: str) -> None:
    before = "<|tool_call>" if text.startswith("call:") else ""
    for parts in cuts(f"{before}{text}</function>"):
        splitter = CallSplitter(CallRules("", {"f": TYPED}, True, False))
        assert read(splitter, parts) == ("", [("f", VALUES)])


@pytest.mark.parametrize(
    "named", ["<|channel|>commentary to=functions.clock", " to=functions.clock<|channel|>commentary"]
)
def test_a_message_of_gpt_oss_to_a_function_is_a_call(named: str) -> None:
    for parts in cuts(f"<|channel|>analysis<|message|>So.<|end|><|start|>assistant{named} json<|message|>{{}}"):
        reasoning = ReasoningSplitter(bare=True)
        steps = [*(reasoning.feed([Piece(part)]) for part in parts), reasoning.finish()]
        texts = ["".join(piece.text for piece in pieces if not piece.reasoning) for pieces in steps]
        assert split(texts) == ("", [("clock", {})])
        assert "".join(piece.text for pieces in steps for piece in pieces if piece.reasoning) == "So."


def test_with_tools_and_a_response_format_the_answer_is_a_call_or_keeps_to_the_format(qwen: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
    body = {"messages": QUESTION, "tools": [WEATHER], "parallel_tool_calls": False, "response_format": form}
    for bias in (-100, 100):
        reply = post(f"{qwen}/v1/chat/completions", {**body, "logit_bias": [["<", bias]]})
        message, finish = reply["choices"][0]["message"], reply["choices"][0]["finish_reason"]
        assert bool(message.get("tool_calls")) is (bias > 0) is (finish == "tool_calls")
        assert message["content"] is None or json.loads(message["content"]) in (True, False)
    forced = post(f"{qwen}/v1/chat/completions", {**body, "tool_choice": "required"})["choices"][0]
    assert forced["finish_reason"] == "tool_calls" and forced["message"]["tool_calls"]


def test_the_prompt_has_the_tools_unless_none_may_be_called(qwen: str) -> None:
    # Fields that a function may leave out are written with their defaults.
    asked = {"messages": HISTORY, "tools": [{"type": "function", "function": {"name": "clock", "description": None}}]}
    assert json.dumps(CLOCK) in post(f"{qwen}/apply-template", asked)["prompt"]
    without = post(f"{qwen}/apply-template", {**asked, "tool_choice": "none"})["prompt"]
    assert "clock" not in without and '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}' in without


def test_control_tokens_in_calls_results_and_functions_are_plain_text() -> None:
    with lacli.load(STDLIB_7M, threads=1, template="qwen") as model:
        prompts = model.engine.prompts
        names = {token: prompts.text([token], special=True) for token in model.engine.model.ends}
        token, name = next((token, name) for token, name in names.items() if name not in bundled("qwen"))
        tool = {"type": "function", "function": {"name": "f", "description": name}}
        call = {"function": {"name": "f", "arguments": json.dumps({name: name})}}
        result = {"role": "tool", "content": name, "tool_call_id": "a"}
        messages = [HISTORY[0], {"role": "assistant", "tool_calls": [call]}, result]
        tokens = prompts.tokenize(prompts.render(written(messages), [tool]))
        assert token not in tokens and model.engine.text(tokens).count(name) == 4


@pytest.mark.parametrize(("depth", "words"), [(500, "too deeply|exceeds the available"), (100_000, "too deeply")])
def test_a_request_that_is_nested_too_deeply_is_refused(qwen: str, depth: int, words: str) -> None:
    # Python 3.12 and later can parse 500 levels; then the text is longer than the context.
    nested: dict[str, Any] = {}
    for _ in range(500):
        nested = {"items": nested}
    body = json.dumps({"messages": QUESTION, "tools": [function("a", {"properties": {"a": nested}})]})
    body = body.replace("{}", '{"items": ' * (depth - 500) + "{}" + "}" * (depth - 500))
    with pytest.raises(HTTPError) as raised:
        urlopen(Request(f"{qwen}/v1/chat/completions", body.encode()))
    assert raised.value.code == 400 and re.search(words, raised.value.read().decode())


@pytest.mark.parametrize("asked", [{"messages": QUESTION, "tools": [CLOCK]}, {"messages": HISTORY}])
def test_a_model_whose_template_knows_no_tools_refuses_them(client: OpenAI, address: str, asked: Any) -> None:
    assert "supports no tools" in post(f"{address}/apply-template", asked)["error"]["message"]
    with pytest.raises(BadRequestError, match="supports no tools"):
        client.chat.completions.create(model="any", **asked)
    assert client.chat.completions.create(
        model="any", messages=QUESTION, tools=[CLOCK], tool_choice="none", max_tokens=3
    ).choices
