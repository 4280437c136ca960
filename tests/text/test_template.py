"""Which template is chosen, and questions to prompts: system role or not, BOS once, templates that fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lacli.errors import LacliError, PromptError, UsageError
from lacli.text.template import (
    OWN,
    STOPS,
    ChatTemplate,
    as_messages,
    choose_template,
    read_variables,
    with_one_bos,
)
from tests.fakes.template_texts import (
    FileOnly,
    bundled,
    compiled,
    fixture,
)

Messages = list[dict[str, str]]


def roles(messages: Messages) -> str:
    return "".join(f"<{message['role']}>{message['content']}" for message in messages)


def no_system(messages: Messages) -> str:
    if messages[0]["role"] == "system":
        raise ValueError("System role not supported")
    return roles(messages)


def broken(messages: Messages) -> str:
    raise ValueError("no filter named 'x'")


@pytest.mark.parametrize(
    ("formatter", "system", "prompt"),
    [
        (roles, "", "<user>why?"),
        (roles, "be brief", "<system>be brief<user>why?"),
        (no_system, "be brief", "<user>be brief\n\nwhy?"),
    ],
)
def test_the_system_text_goes_before_the_question_or_into_it(
    formatter: Callable[[Messages], str], system: str, prompt: str
) -> None:
    assert ChatTemplate("", "", formatter).render(as_messages("why?", system)) == prompt


@pytest.mark.parametrize("system", ["", "be brief"])
def test_a_template_that_fails_is_an_error_that_names_the_way_out(system: str) -> None:
    with pytest.raises(PromptError, match="--raw"):
        ChatTemplate("", "", broken).render(as_messages("why?", system))


@pytest.mark.parametrize(
    ("prompt", "adding", "silent"),
    [
        ("<s>[INST]", "[INST]", "<s>[INST]"),
        ("<s><s>[INST]", "[INST]", "<s>[INST]"),
        ("\n<s>\n[INST]", "\n[INST]", "<s>\n[INST]"),
        ("<s>\n<s>[INST]", "[INST]", "<s>[INST]"),
        (" <s> \n<s>\n[INST]", "\n[INST]", "<s>\n[INST]"),
        ("\n[INST]", "\n[INST]", "\n[INST]"),
        ("[INST]<s>", "[INST]<s>", "[INST]<s>"),
        ("[INST] a [/INST] b</s><s>[INST]", "[INST] a [/INST] b</s><s>[INST]", "[INST] a [/INST] b</s><s>[INST]"),
    ],
)
def test_a_prompt_begins_with_one_bos_at_most(prompt: str, adding: str, silent: str) -> None:
    assert with_one_bos(prompt, "<s>", adds_bos=True) == adding
    assert with_one_bos(prompt, "<s>", adds_bos=False) == silent
    assert with_one_bos(prompt, "", adds_bos=True) == prompt


def test_the_models_own_template_is_used_where_nothing_else_is_wanted() -> None:
    template, notes = choose_template("", FileOnly(fixture("qwen3")))
    assert template and (template.name, template.source, template.stops) == (OWN, fixture("qwen3"), ())
    assert not notes


@pytest.mark.parametrize("name", ["chatml", "command-r", "deepseek", "gemma", "gpt-oss", "llama3", "mistral", "phi3"])
def test_a_model_without_a_template_has_the_bundled_one_whose_control_tokens_it_knows(name: str) -> None:
    template, (note,) = choose_template("", FileOnly(tokens=("</s>", "<s>", "<|end|>", "<|im_end|>", *STOPS[name])))
    assert template == replace(compiled(bundled(name)), name=name, stops=STOPS[name], stands_in=True)
    assert note.startswith("the model has no chat template") and f"conversations are written in {name};" in note


def test_a_model_with_neither_a_template_nor_control_tokens_has_chatml() -> None:
    template, (note,) = choose_template("", FileOnly())
    assert (template.name, template.stops, template.stands_in) == ("chatml", STOPS["chatml"], True)
    assert "chatml" in note
    # Where the user wants none there is nothing to say.
    assert choose_template(None, FileOnly(fixture("qwen3"))) == (template, [])


@pytest.mark.parametrize("broken", ["{% for x in %}", "{{ 'a'", "\n\n{{ x | nonesuch }}", "{% if x %}"])
def test_chatml_takes_the_place_of_a_broken_template_with_a_sentence(broken: str) -> None:
    template, (note,) = choose_template("", FileOnly(broken))
    assert (template.name, template.stops, template.stands_in) == ("chatml", STOPS["chatml"], False)
    assert note.startswith("the model's own chat template is broken in line ")
    assert note.endswith("chatml takes its place, --chat-template sets another") and "\n" not in note


def test_a_template_is_wanted_by_name_file_or_text(tmp_path: Path) -> None:
    own = FileOnly(fixture("qwen3"))
    named, notes = choose_template("Llama3", own)
    assert named and (named.name, named.source, named.stops) == ("llama3", bundled("llama3"), STOPS["llama3"])
    assert not notes
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[-1].content }}:\n")
    from_file, _ = choose_template(str(file), own)
    assert from_file and from_file.name == "mine.jinja" and from_file.render(as_messages("hi")) == "hi:"
    text, _ = choose_template("{{ messages[-1].content }}!", own)
    assert text and text.render(as_messages("hi")) == "hi!"


@pytest.mark.parametrize(("theirs", "ours"), [("deepseek3", "deepseek"), ("Llama2-Sys", "llama2")])
def test_a_template_is_wanted_by_llama_cpps_name_too(theirs: str, ours: str) -> None:
    template, _ = choose_template(theirs, FileOnly())
    assert template and (template.name, template.stops) == (ours, STOPS[ours])


def test_a_file_without_a_folder_or_an_ending_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("{{ messages[-1].content }}")
    template, _ = choose_template("mine", FileOnly())
    assert template and template.name == "mine"


@pytest.mark.parametrize("name", ["nonesuch", "x" * 5000])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        choose_template(name, FileOnly())
    assert all(known in raised.value.hint for known in STOPS) and len(str(raised.value)) < 400


def test_a_name_that_is_nearly_a_templates_is_answered_with_that() -> None:
    with pytest.raises(UsageError, match="did you mean llama3"):
        choose_template("llama-3.1", FileOnly())


def test_a_file_that_cannot_be_used_is_one_line_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(LacliError, match="cannot read .*none.jinja"):
        choose_template(str(tmp_path / "none.jinja"), FileOnly())
    with pytest.raises(LacliError, match="cannot read"):
        choose_template(str(tmp_path), FileOnly())
    binary, broken = tmp_path / "binary.jinja", tmp_path / "broken.jinja"
    binary.write_bytes(b"\xff\xfe{{")
    broken.write_text("{{ 1 }}\n{% endif %}")
    with pytest.raises(LacliError, match="binary.jinja is not UTF-8"):
        choose_template(str(binary), FileOnly())
    with pytest.raises(PromptError, match="broken.jinja: the chat template is broken in line 2"):
        choose_template(str(broken), FileOnly())
    with pytest.raises(LacliError, match="--chat-template is not UTF-8"):
        choose_template("{{ '\udcff' }}", FileOnly())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON: Expecting"),
        ("[" * 99999, "is not JSON: "),
        ("[1]", "is no JSON object"),
        ("nonsense", "is not JSON"),
        ('{"messages": []}', "cannot set messages"),
        ('{"a": "\udcff"}', "is not UTF-8"),
    ],
)
def test_variables_that_are_no_json_object_are_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(LacliError, match=f"^--chat-template-kwargs {reason}") as caught:
        read_variables(text)
    assert caught.value.hint and "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_template_reads_the_variables_that_it_is_given_and_no_other_conversation() -> None:
    source = "{{ messages[-1].content }}{% if enable_thinking is false %}<think></think>{% endif %}"
    template = compiled(source)
    assert template.render(as_messages("hi")) == "hi"
    given = replace(template, variables=read_variables('{"enable_thinking": false, "other": [1, {"a": null}]}'))
    assert given.render(as_messages("hi")) == "hi<think></think>"
    assert read_variables("") == {}


def test_a_template_that_prints_no_question_is_refused() -> None:
    with pytest.raises(PromptError, match="leaves out what is asked"):
        compiled("chatml").render(as_messages("hi"))


@pytest.mark.parametrize("name", ["gemma2", "mistral-v1", "command-r"])
def test_neighbours_of_one_role_become_one_only_where_roles_must_alternate(name: str) -> None:
    apart = [{"role": "user", "content": "a?"}, {"role": "user", "content": "b?"}]
    template = compiled(fixture(name))
    assert template.render(apart) == template.render(as_messages("a?\n\nb?"))
    system = {"role": "system", "content": "Be brief."}
    assert template.render([system, *apart]) == template.render(as_messages("a?\n\nb?", "Be brief."))
    assert compiled(bundled("chatml")).render(apart).count("<|im_start|>user") == 2


def test_a_dropped_system_text_is_found_though_it_stands_elsewhere_too() -> None:
    rendered = compiled(fixture("silent")).render(as_messages("Be brief. Why?", "Be brief."))
    assert rendered == "[INST] Be brief.\n\nBe brief. Why? [/INST]"


def test_what_a_template_says_of_its_failure_is_about_the_conversation_and_not_about_shapes_tried() -> None:
    source = "{% if messages[-1].content is string %}{{ raise_exception('no\nparrots') }}{% endif %}{{ none.x.y }}"
    with pytest.raises(PromptError, match=r"fails: no parrots \(.*--chat-template"):
        compiled(source).render(as_messages("hi", "Be brief."))
