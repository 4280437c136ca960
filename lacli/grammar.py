"""What is wrong with a GBNF grammar, in one line with its line number or its rule's name.

Keeps from llama.cpp's parser what it does not survive, and reads its words about the rest; the parsing itself is
llama.cpp's (`chain.py` calls it).
"""

from __future__ import annotations

import re

LOCATED = re.compile(r"error parsing grammar: (?P<what>.*?)(?: at (?P<rest>.*))?\Z", re.DOTALL)
RULE = re.compile(r"^\s*([A-Za-z0-9-]+)\s*::=", re.MULTILINE)
TEXT = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')
NAME = re.compile(r"[\s(]*([A-Za-z][A-Za-z0-9-]*)")


DEEPEST, MOST_RULES = 1000, 5000
"""llama.cpp's parser calls itself for every parenthesis and every rule that begins with a rule."""

REPEAT = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")


def danger(grammar: str) -> str:
    """Why a grammar must not reach llama.cpp's parser, which it would crash or keep busy for ever; empty if it may."""
    bare = TEXT.sub(" ", grammar)
    if "\0" in grammar:
        return "it holds a NUL character"
    for found in REPEAT.finditer(bare):
        least, most = int(found[1]), int(found[2])
        if least > most:
            return f"{found[0]} repeats at least {least} and at most {most} times"
    depth = 0
    for character in bare:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth > DEEPEST:
            return f"it has more than {DEEPEST} parentheses inside each other"
    if bare.count("::=") > MOST_RULES:
        return f"it has more than {MOST_RULES} rules"
    return ""


def complaint(grammar: str, printed: str, logged: str) -> str:
    """A sentence about a grammar that was refused.

    printed: what the parser wrote to C's stderr: its reason, the text from the fault on, and the whole grammar.
    logged: the library's error line, for what was found after the parsing.
    """
    if found := LOCATED.search(printed.removesuffix("\n").removesuffix(grammar).rstrip("\n")):
        what, rest = found["what"], found["rest"]
        if rest is None:
            return what[:1].lower() + what[1:]
        line = grammar[: len(grammar) - len(rest)].count("\n") + 1
        here = rest.split("\n", 1)[0].strip()[:40]
        return f"line {line}: {what} at {here!r}" if here else f"line {line}: {what}"
    if "left recursion" in logged:
        rule = _left_recursive(grammar)
        return f"rule {rule!r} begins with itself (left recursion)" if rule else "a rule begins with itself"
    if "'root' symbol" in logged:
        return "it has no rule named 'root'"
    if "::=" not in grammar:
        return "it has no rules"
    return logged


def _left_recursive(grammar: str) -> str | None:
    """The first rule that reaches itself through the first names of alternatives."""
    first = _first_names(grammar)
    for name in first:
        reached, new = set[str](), {name}
        while new:
            new = {follower for rule in new for follower in first.get(rule, ())} - reached
            reached |= new
        if name in reached:
            return name
    return None


def _first_names(grammar: str) -> dict[str, set[str]]:
    """For each rule the rules that one of its alternatives begins with."""
    bare = TEXT.sub(" '' ", grammar)
    parts = RULE.split(bare)[1:]
    return {
        name: {found[1] for alternative in re.split(r"[|(]", body) if (found := NAME.match(alternative))}
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
