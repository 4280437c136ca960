"""Which template is chosen, and questions to prompts: system role or not, BOS once, templates that fail."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from lacli.errors import LacliError, PromptError, UsageError
from lacli.text.template import (
    OWN,
    STOPS,
    ChatTemplate,
    as_messages,
    chatml,
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


def chat_prompt(formatter: Callable[[Messages], str], question: str, system: str = "") -> str:
    """A question through a template of this formatter."""
    return ChatTemplate("", "", formatter).render(as_messages(question, system))


def test_a_question_is_the_user_and_the_system_text_goes_before_it() -> None:
    assert chat_prompt(roles, "why?") == "<user>why?"
    assert chat_prompt(roles, "why?", "be brief") == "<system>be brief<user>why?"


def test_a_template_without_a_system_role_gets_the_text_in_the_question() -> None:
    assert chat_prompt(no_system, "why?", "be brief") == "<user>be brief\n\nwhy?"


@pytest.mark.parametrize("system", ["", "be brief"])
def test_a_template_that_fails_is_an_error_that_names_the_way_out(system: str) -> None:
    with pytest.raises(PromptError, match="--raw"):
        chat_prompt(broken, "why?", system)


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


def test_a_model_without_a_template_has_none_and_chatml_is_at_hand() -> None:
    assert choose_template("", FileOnly()) == (None, [])
    assert chatml(FileOnly()).render([{"role": "user", "content": "hi"}]) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("broken", ["{% for x in %}", "{{ 'a'", "\n\n{{ x | nonesuch }}", "{% if x %}"])
def test_chatml_takes_the_place_of_a_broken_template_with_a_sentence(broken: str) -> None:
    template, (note,) = choose_template("", FileOnly(broken))
    assert template and template.name == "chatml" and template.stops == STOPS["chatml"]
    assert note.startswith("the model's own chat template is broken in line ")
    assert note.endswith("ChatML takes its place, --chat-template sets another") and "\n" not in note


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


@pytest.mark.parametrize("name", ["llama-3.1", "nonesuch", "x" * 5000])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        choose_template(name, FileOnly())
    assert all(known in raised.value.hint for known in STOPS) and len(str(raised.value)) < 400


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
def test_neighbours_of_one_role_become_one_where_roles_must_alternate(name: str) -> None:
    apart = [{"role": "user", "content": "a?"}, {"role": "user", "content": "b?"}]
    template = compiled(fixture(name))
    assert template.render(apart) == template.render(as_messages("a?\n\nb?"))
    system = {"role": "system", "content": "Be brief."}
    assert template.render([system, *apart]) == template.render(as_messages("a?\n\nb?", "Be brief."))


def test_neighbours_stay_apart_where_the_template_takes_them() -> None:
    apart = [{"role": "user", "content": "a?"}, {"role": "user", "content": "b?"}]
    assert compiled(bundled("chatml")).render(apart).count("<|im_start|>user") == 2


def test_a_dropped_system_text_is_found_though_it_stands_elsewhere_too() -> None:
    rendered = compiled(fixture("silent")).render(as_messages("Be brief. Why?", "Be brief."))
    assert rendered == "[INST] Be brief.\n\nBe brief. Why? [/INST]"


def test_what_a_template_says_of_its_failure_is_about_the_conversation_and_not_about_shapes_tried() -> None:
    source = "{% if messages[-1].content is string %}{{ raise_exception('no\nparrots') }}{% endif %}{{ none.x.y }}"
    with pytest.raises(PromptError, match=r"fails: no parrots \(.*--chat-template"):
        compiled(source).render(as_messages("hi", "Be brief."))


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filters in loops": "{% for a in range(99999) %}{% if range(99999)|select('none')|list %}{% endif %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "blocks": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "comparisons": "{% set x = 'a' * 99999 %}{% set y = x ~ '' %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ x == y }}{% endfor %}{% endfor %}",
    "powers": "{{ 9 ** 9 ** 9 ** 9 }}",
    "lists that hold themselves twice": "{% set n = namespace(x=['ha']) %}{% set m = namespace(x=['ha']) %}"
    "{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% set m.x = (m.x, m.x) %}{% endfor %}{{ n.x == m.x }}",
    "the recursion of loops": "{% for x in range(9) recursive %}{{ loop(range(9)) }}{{ loop(range(9)) }}{% endfor %}",
}
DOUBLED = {
    "~": "n.x ~ n.x",
    "+": "n.x + n.x",
    "replace": "n.x|replace('', n.x)",
    "the method replace": "n.x.replace('', n.x)",
    "join": "[n.x, n.x]|join",
    "the method join": "''.join([n.x, n.x])",
    "format": "'{0}{0}'.format(n.x)",
    "a list": "[n.x, n.x]",
    "a dictionary": "{'a': n.x, 'b': n.x}",
    "the values of a dictionary": "{'a': n.x, 'b': n.x}.values()",
    "dict": "dict(a=n.x, b=n.x)",
    "a list times two": "[n.x] * 2",
    "map": "[none, none]|map('default', n.x, true)|list",
    "a macro's text": "text(n.x)",
    "a macro's arguments": "listed(n.x, n.x) or n.y",
    "a macro's names": "listed(a=n.x, b=n.x) or n.z",
}
LARGE = {
    "times": "'a' * 100000000000",
    "a list times": "[0] * 100000000000",
    "ljust": "'a'.ljust(100000000000)",
    "ljust by attr": "('a'|attr('ljust'))(100000000000)",
    "center": "'a'|center(100000000000)",
    "a format": "'{:100000000000}'.format(1)",
    "%": "'%100000000000d' % 1",
    "% of a large one": "'%s%s' % ('a' * 600000, 'a' * 600000)",
    "% again and again": "'%(a)s%(a)s' % {'a': 'b'}",
    "round": "5|round(-100000000000)",
    "round up": "5|round(100000000000, 'ceil')",
    "sum": "([[0]] * 9999)|sum(start=[])",
    "batch": "'a'|batch(100000000000, 0)|list",
    "slice": "'a'|slice(100000000000)|list",
    "wordcount": "('a ' * 99999)|wordcount",
    "indent": "('\n' * 999)|indent(100000000000)",
    "a joint": "range(99999)|join('a' * 999999)",
    "tojson": "[[1]]|tojson(indent=100000000000)",
    "bytes": "(1).to_bytes(100000000000, 'big')",
    "quotes of quotes": "'\"'" + "|tojson" * 99,
    "characters": "('a' * 9999999)|list",
    "words": "('aa ' * 9999999).split()",
    "what is raised": "raise_exception('a' * 10000000000)",
    "clocks": "strftime_now('%c' * 10000000000)",
}
IN_A_LOOP = (
    "{% set n = namespace(x='ha', y='', z='') %}"
    "{% macro text(x) %}{{ x }}{{ x }}{% endmacro %}"
    "{% macro listed() %}{% set n.y = varargs %}{% set n.z = kwargs %}{% endmacro %}"
    "{% for i in range(60) %}{% set n.x = " + "@" + " %}{% endfor %}{{ n.x }}"
)
GREEDY = {
    **{f"{name} again and again": IN_A_LOOP.replace("@", doubled) for name, doubled in DOUBLED.items()},
    **{name: "{{ " + large + " }}" for name, large in LARGE.items()},
    "a large constant where the compiler computes": "{% autoescape 'a' * 100000000000 %}{% endautoescape %}",
    "quotes of quotes there": "{% autoescape '\"'" + "|tojson" * 99 + " %}{% endautoescape %}",
    "what lies deep": "{% set n = namespace(x=[]) %}{% for i in range(99) %}{% set n.x = [n.x] %}{% endfor %}"
    "{{ ([n.x] * 150)|tojson(indent=64) }}",
    "the template's own text": "{% for i in range(99999) %}" + "text" * 9999 + "{% endfor %}",
    "a constant's text": "{% for i in range(99999) %}{{ '" + "text" * 9999 + "' }}{% endfor %}",
    "itself": "text " * 99999,
}


SEARCHES = (
    *("rfind('ab' ~ m)", "rpartition('ab' ~ m)", "rsplit('ab' ~ m)", "rsplit(sep='ab' ~ m)"),
    *("strip('b' * 6000 ~ 'a')", "lstrip('b' * 6000 ~ 'a')", "rstrip('b' * 6000 ~ 'a')"),
)
DEAF = {
    **{call: "{% set m = 'a' * 6000 %}{{ (m ~ m)." + call + " }}" for call in SEARCHES},
    "trim": "{{ ('a' * 6000)|trim('b' * 6000 ~ 'a') }}",
    "trim of an escaped text": "{{ ('a' * 6000)|e|trim(chars='b' * 6000 ~ 'a') }}",
    "an attribute's parts": "{% set l = ['a'] * 99 %}{{ l|map(attribute='0.' * 99 ~ '0')|list }}",
    "attributes": "{% set l = ['a'] * 99 %}{{ l|sort(attribute='0,' * 99 ~ '0') }}",
    "filters of filters": "{% set n = namespace(x=range(999)) %}"
    "{% for i in range(50) %}{% set n.x = n.x|select %}{% endfor %}{{ n.x|max }}",
    "the same, in lists": "{% set n = namespace(x=range(999)) %}"
    "{% for i in range(50) %}{% set n.x = n.x|batch(1) %}{% endfor %}{{ n.x|max }}",
    "numbers of one hash": "{{ range(0, 9999 * (2**61 - 1), 2**61 - 1)|unique|first }}{{ ([0] * 9999)|unique|list }}",
    "keys of one hash": "{{ dict(range(0, 4999 * (2**61 - 1), 2**61 - 1)|groupby('real')) }}",
}
"""What one operation does for long."""


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'%s of %d: 100%%%s' % ('a', 2, [1])", "a of 2: 100%[1]"),
        ("'%r' % 'a'", "'a'"),
        ("7 % 4", "3"),
        ("[1, 2.5]|sum", "3.5"),
        ("[{'n': 1}, {'n': 2}]|sum(attribute='n')", "3"),
        ("2.567|round(1)", "2.6"),
        ("2.1|round(method='ceil')", "3.0"),
        ("'two words'|wordcount", "2"),
        ("range(3)|batch(2, 'x')|list", "[[0, 1], [2, 'x']]"),
        ("range(3)|slice(2)|list", "[[0, 1], [2]]"),
    ],
)
def test_what_makes_little_of_much_is_allowed(expression: str, text: str) -> None:
    source = "{{ messages[-1].content }}{{ " + expression + " }}"
    assert compiled(source).render(as_messages("hi ")) == f"hi {text}"


def test_a_filter_that_stays_refused_is_named_so_where_it_is_needed_and_nowhere_else() -> None:
    with pytest.raises(PromptError, match="'center, which is not allowed in a chat template'"):
        compiled("{{ 'a'|center }}")
    with pytest.raises(PromptError, match="No filter named 'nonesuch'"):
        compiled("{{ 'a'|nonesuch }}")
    unneeded = "{% if needed is defined %}{{ 'a'|center }}{% endif %}{{ messages[-1].content }}"
    assert compiled(unneeded).render(as_messages("hi")) == "hi"
    with pytest.raises(PromptError, match="'center, which is not allowed in a chat template'"):
        replace(compiled(unneeded), variables={"needed": True}).render(as_messages("hi"))


@pytest.mark.parametrize("name", DEAF)
def test_an_operation_that_would_take_all_time_is_refused_before_or_while_it_is_done(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count()
    monkeypatch.setattr("lacli.text.jinja.thread_time", lambda: next(looks) * 1e-4)
    monkeypatch.setattr("lacli.text.jinja.MAX_SECONDS", 0.02)
    with pytest.raises(PromptError, match="^the chat template takes too (long|much time or memory)"):
        compiled(DEAF[name]).render(as_messages("hi"))


@pytest.mark.parametrize("name", [*ENDLESS, *GREEDY])
def test_a_template_that_would_take_all_time_or_memory_is_refused_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.text.jinja.MAX_SECONDS", 0.02)
    monkeypatch.setattr("lacli.text.jinja.MAX_BYTES", allowed := 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(
            PromptError, match=r"^the chat template [^\n]* \(give another with --chat-template"
        ) as caught:
            compiled({**ENDLESS, **GREEDY}[name]).render(as_messages("hi"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "--raw" in caught.value.hint and len(str(caught.value)) < 400
    assert peak < 32 * allowed


def test_a_long_conversation_may_take_longer_than_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = compiled("{% for m in messages %}{% for letter in m.content %}{{ letter }}{% endfor %}{% endfor %}")
    monkeypatch.setattr("lacli.text.jinja.MAX_SECONDS", 0.0)
    monkeypatch.setattr("lacli.text.jinja.MAX_BYTES", 0)
    assert slow.render(as_messages("hi" * 999)) == "hi" * 999
    with pytest.raises(PromptError, match="takes too much memory"):
        compiled("{{ 'a' * 999999 }}").render(as_messages("hi"))


def test_a_number_in_a_list_is_counted_with_its_digits() -> None:
    with pytest.raises(PromptError, match="takes too much memory"):
        compiled("{% set x = 2 ** 2000 %}{{ ([x * x] * 99999)|length }}").render(as_messages("hi"))
