"""The choice of a template, and prompts from questions: system role or not, BOS once, templates that fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lacli.errors import LacliError, PromptError, UsageError
from lacli.text.template import (
    MARK,
    OWN,
    STOPS,
    ControlNames,
    as_messages,
    choose_template,
    read_variables,
    with_one_bos,
)
from tests.fakes.template_texts import FileOnly, bundled, compiled, fixture


@pytest.mark.parametrize(
    ("prompt", "adding", "silent"),
    [
        ("<s>[INST]", "[INST]", "<s>[INST]"),
        ("<s><s>[INST]", "[INST]", "<s>[INST]"),
        ("\n[INST]", "\n[INST]", "\n[INST]"),
        ("[INST] a [/INST] b</s><s>[INST]", "[INST] a [/INST] b</s><s>[INST]", "[INST] a [/INST] b</s><s>[INST]"),
    ],
)
def test_a_prompt_begins_with_one_bos_at_most(prompt: str, adding: str, silent: str) -> None:
    assert with_one_bos(prompt, "<s>", adds_bos=True) == adding
    assert with_one_bos(prompt, "<s>", adds_bos=False) == silent
    assert with_one_bos(prompt, "", adds_bos=True) == prompt


def test_the_models_own_template_is_used_unless_another_is_wanted() -> None:
    template, notes = choose_template("", FileOnly(fixture("qwen3")))
    assert (template.name, template.source, template.stops, notes) == (OWN, fixture("qwen3"), (), [])


@pytest.mark.parametrize("name", ["chatml", "gemma", "llama3", "mistral"])
def test_a_model_without_a_template_has_the_bundled_one_whose_control_tokens_it_knows(name: str) -> None:
    template, (note,) = choose_template("", FileOnly(tokens=("</s>", "<s>", "<|end|>", "<|im_end|>", *STOPS[name])))
    assert template == replace(compiled(bundled(name)), name=name, stops=STOPS[name], stands_in=True)
    assert note.startswith("the model has no chat template") and f"conversations use the format {name};" in note


def test_a_template_is_wanted_by_name_file_or_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = FileOnly(fixture("qwen3"))
    named, notes = choose_template("Llama3", own)
    assert (named.name, named.source, named.stops) == ("llama3", bundled("llama3"), STOPS["llama3"])
    assert not notes
    monkeypatch.chdir(tmp_path)
    for name in ("mine.jinja", "mine"):
        (tmp_path / name).write_text("{{ messages[-1].content }}:\n")
        for wanted in (name, str(tmp_path / name)):
            from_file, _ = choose_template(wanted, own)
            assert from_file.name == name and from_file.render(as_messages("hi")) == "hi:"
    text, _ = choose_template("{{ messages[-1].content }}!", own)
    assert text.render(as_messages("hi")) == "hi!"


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ("nonesuch", UsageError, "one of chatml, command-r, .*qwen"),
        ("llama-3.1", UsageError, "did you mean llama3"),
        ("{{ '\udcff' }}", LacliError, "--chat-template is not UTF-8"),
        ("{{ 1 }}\n{% endif %}", PromptError, "the chat template is broken: .*endif.*--chat-template"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_line(wanted: str, error: type[LacliError], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        choose_template(wanted, FileOnly())
    assert raised.value.hint and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[" * 99999, "is not JSON: "), ("[1]", "is not a JSON object"), ('{"a": "\udcff"}', "is not UTF-8")],
)
def test_variables_that_are_no_json_object_are_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(LacliError, match=f"^--chat-template-kwargs {reason}") as caught:
        read_variables(text)
    assert caught.value.hint and "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["gemma2", "mistral-v1", "command-r"])
def test_neighbours_of_one_role_become_one_only_if_roles_must_alternate(name: str) -> None:
    apart = [{"role": "user", "content": "a?"}, {"role": "user", "content": "b?"}]
    template = compiled(fixture(name))
    assert template.render(apart) == template.render(as_messages("a?\n\nb?"))
    system = {"role": "system", "content": "Be brief."}
    assert template.render([system, *apart]) == template.render(as_messages("a?\n\nb?", "Be brief."))
    assert compiled(bundled("chatml")).render(apart).count("<|im_start|>user") == 2


def test_a_template_that_fails_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(PromptError, match=r"fails: .*no parrots \(.*--chat-template.*--raw"):
        compiled("{{ raise_exception('no\nparrots') }}").render(as_messages("hi", "Be brief."))


def test_names_of_control_tokens_are_marked_wherever_they_begin() -> None:
    names = ControlNames({"<a>", "<<a>", "x"})
    assert names.marked("b <a> <<a> <x>") == f"b <{MARK}a> <{MARK}<{MARK}a> <x>"
    assert names.marked("<a>", but=("<a>",)) == "<a>"
    written = names.marked("b<<a>")
    assert [*names.spans(f"<a>{written}<a>")] == [("<a>", False), (written, True), ("<a>", False)]
    assert [*names.spans("<a>b<<a>")] == [("<a>b<<a>", False)]
