"""The documents agree with the program: generated help, models.txt, commands, Python and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.generate import PAGES
from lacli import DecodeSettings, ModelSettings
from lacli.cli.main import program
from tests.loading import STDLIB_7M

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", PAGES)
def test_help_in_the_docs_is_what_the_program_prints(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == PAGES[page](), "run: python docs/generate.py"


def test_every_model_has_a_unique_alias_a_repository_a_quant_figures_and_words() -> None:
    lines = [
        line
        for line in (ROOT / "lacli" / "data" / "models.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    models = [line.split(maxsplit=4) for line in lines]
    assert len({alias for alias, *_ in models}) == len(models) >= 20
    for _, repository, quant, figures, words in models:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", repository) and re.fullmatch(r"[\d.]+\+[\d.]+GB", figures)
        assert quant and words


def test_the_readme_begins_with_exactly_two_commands() -> None:
    block = (ROOT / "README.md").read_text().split("```sh\n", 1)[1].split("```", 1)[0]
    run, test = block.splitlines()
    assert "pip install" in run and "lacli run" in run
    assert "[test]" in test and test.endswith("-m pytest -n 2")


@pytest.mark.parametrize("kind", [DecodeSettings, ModelSettings])
def test_the_page_on_programs_names_every_setting_that_users_have(kind: type[Any]) -> None:
    page, inner = (ROOT / "docs" / "python.md").read_text(), {"gives_way", "constraints"}
    own = {field.name for field in fields(kind)} - inner - {"leaves"}
    assert [name for name in own if not re.search(rf"`{name}[`=]", page)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_the_docs_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").symlink_to(STDLIB_7M)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    for block in blocks:
        # Blocks of the README without lacli are a model's answers.
        if page != "README.md" or "lacli" in block:
            exec(compile(block, page, "exec"), names)
    assert "lacli" in names


PAGES_OF_THE_DOCS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def lacli_calls(page: str) -> Iterator[list[str]]:
    """Yield the words of each call of lacli in the shell blocks of a page."""
    for kind, block in re.findall(r"^```+(sh|bash|console)\n(.*?)^```+$", page, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if kind != "console" or line.startswith("$ "):
                lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                for is_joint, words in groupby(lexer, lambda word: word in ("|", "&&", ";")):
                    call = [word for word in words if word != "time"]
                    if not is_joint and Path(call[0]).name == "lacli":
                        yield call


def test_the_program_takes_each_command_of_the_docs() -> None:
    commands: Any = vars(typer.main.get_command(program()))["commands"]
    calls = [call for page in PAGES_OF_THE_DOCS for call in lacli_calls(page.read_text())]
    assert len(calls) > 20
    for _, name, *arguments in calls:
        assert commands[name].make_context(name, arguments)


PAGES_AND_LINKS = [
    (page.relative_to(ROOT), link)
    for page in PAGES_OF_THE_DOCS
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text())
]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_docs_leads_to_a_file_and_a_heading() -> None:
    wrong = []
    for page, link in PAGES_AND_LINKS:
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{page}: {link}")
    assert wrong == []
