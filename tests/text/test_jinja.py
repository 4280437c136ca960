"""Templates of strangers: what may render, and that nothing takes all time or memory; a refusal is one line."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import count

import pytest

from lacli.errors import PromptError
from lacli.text.template import as_messages
from tests.fakes.template_texts import compiled, every_source

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
    "a joint": "range(99999)|join('a' * 99999)",
    "a joint of what is reversed": "(['a'] * 9999)|reverse|join('a' * 99999)",
    "the same by the method": "('a' * 99999).join((['a'] * 9999)|reverse)",
    "a joint by a list": "(['a'] * 9999)|join(['a'] * 9999)",
    "a list in many places": "('a' * 9999)|replace('a', ['a'] * 9999)",
    "indent by a text": "('\n' * 9999)|indent('a' * 9999)",
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
    "a loop's joint": "{% for x in range(9999) %}{{ loop|join('a' * 99999) }}{% endfor %}",
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


@pytest.mark.parametrize("source", every_source().values(), ids=every_source())
def test_long_messages_are_no_reason_to_refuse_a_conversation(source: str) -> None:
    long = "<think>why</think>" + "many 'words' of it\n" * 2000
    messages = [*as_messages(long), {"role": "assistant", "content": long}, *as_messages("And?")]
    compiled(source).render(messages)


def test_a_number_in_a_list_is_counted_with_its_digits() -> None:
    with pytest.raises(PromptError, match="takes too much memory"):
        compiled("{% set x = 2 ** 2000 %}{{ ([x * x] * 99999)|length }}").render(as_messages("hi"))
