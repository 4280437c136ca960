"""Habits that make prose hard to read are rare. `python -m tests.test_prose PATH ...` counts them in any files."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from tests.program import ROOT

HABITS = {  # uses in 1,000 words, at most
    r"behind|beside|in front of|in the place of": 0.1,
    r"those|that of|that one": 0.5,
    r"what (?:there )?is": 0.2,
    r"(?:in|on|at|to|from) which|where": 0.8,
}
LONG = 28  # words


def python_prose(source: str) -> Iterator[str]:
    """Yield the paragraphs of docstrings (of constants too) and of comments; consecutive comment lines are joined."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from paragraphs("\n".join(line.strip() for line in node.value.value.splitlines()))
    comments, last = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match("#!|# (noqa|type:|pragma|fmt:)", token.string):
            comments += ("\n" if token.start[0] == last + 1 else "\n\n") + token.string.strip("#: ")
            last = token.start[0]
    yield from paragraphs(comments)


def paragraphs(text: str) -> Iterator[str]:
    """Return a page's or docstring's paragraphs, without code, tables, headings, URLs and generated lists."""
    text = re.sub(r"(?ms)^ *(```+).*?^ *\1|^<!-- \w+: begin.*?end -->|^ *(?:>>>|[#|<]).*?$", "", text)
    text = re.sub(r"\]\([^)]*\)|https?://\S+", "", re.sub(r"`+[^`]+`+", "code", text))
    return filter(str.strip, re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\w+ ?(?:\([^)\n]*\))?: ))", text))


def figures(prose: Iterable[str]) -> tuple[list[float], list[str]]:
    """Return each habit's uses per 1,000 words, and all sentences."""
    found = list(prose)
    ended = (each for part in found for each in re.split(r"(?<=[.!?])[\"')*]*\s+", part))
    sentences = [each for each in ended if re.search(r"\w\w", each)]
    thousand = max(sum(len(each.split()) for each in sentences), 1) / 1000
    text = "\n\n".join(found)
    return [len(re.findall(rf"(?i)\b(?:{habit})\b", text)) / thousand for habit in HABITS], sentences


def prose_of(path: Path) -> Iterator[str]:
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        yield from (python_prose if file.suffix == ".py" else paragraphs)(file.read_text())


def test_prose_of_the_package_the_benchmarks_the_tests_and_the_pages_is_plain() -> None:
    pages = map(prose_of, [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    folders = [(0, [prose_of(ROOT / name)]) for name in ("lacli", "benchmarks", "tests")]
    for most_long, prose in (*folders, (5, pages)):
        habits, sentences = figures(chain.from_iterable(prose))
        assert all(uses <= most for uses, most in zip(habits, HABITS.values(), strict=True)), habits
        assert len(long := [each for each in sentences if len(each.split()) > LONG]) <= most_long, long
    words = [len(each.split()) for each in sentences]  # of the pages
    assert sum(words) <= 15 * len(words) and sum(count > 20 for count in words) <= 0.15 * len(words)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        habits, sentences = figures(prose_of(Path(name)))
        words = [len(each.split()) for each in sentences]
        shares = f"{sum(words) / len(words):.0f} a sentence; {sum(n > 20 for n in words) / len(words):.0%} above 20"
        print(f"{name}: {', '.join(f'{uses:.1f}' for uses in habits)}; {shares}; {sum(n > LONG for n in words)} long")
