"""The pages of -h and --help-all keep their rules at every width, and together show every flag."""

from __future__ import annotations

import re
import shlex

import pytest

from lacli.cli.environment import variables
from lacli.cli.help import PAGES, WithPages
from lacli.cli.main import COMMANDS, PANELS, commands
from tests.program import call, finish, on_terminal

WIDTHS = (20, 40, 60, 80, 200)
NARROWEST = 40
"""Columns below which long names stick out, because they are not broken."""

SCREEN = 24
"""Lines of the smallest terminal; the page has to leave one for the next prompt."""

TALLEST = 40
"""Lines of a short page at most, of a command with many values."""


def shown(*arguments: str, columns: int = 80) -> str:
    done = call(*arguments, env={"COLUMNS": str(columns)})
    assert (done.code, done.err) == (0, "")
    return done.out


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(command: str, columns: int) -> None:
    for flag in ("-h", "--help-all"):
        page, wide = (shown(*command.split(), flag, columns=width) for width in (columns, 10_000))
        assert max(map(len, page.splitlines())) <= min(columns, 100) or columns < NARROWEST
        assert page.split() == wide.split()
        assert not re.search(r"<\w+>|\[x[<>]=|…", page)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_on_the_whole_page_in_every_spelling_with_llama_cpps_variable(command: str) -> None:
    page = shown(command, "--help-all").split()
    for parameter in commands()[command].params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            names = [*parameter.opts, *parameter.secondary_opts]
            theirs = [f"({name})" for name in variables(*parameter.opts) if name.startswith("LLAMA_ARG_")]
            assert {*names} <= {word.rstrip(",") for word in page}
            assert not parameter.envvar or {*theirs} <= {*page}
    assert {"--help,", "--help"} & {*page} and "--help-all" in page


@pytest.mark.parametrize("command", COMMANDS)
def test_the_short_page_has_the_flags_it_names_and_says_where_the_others_are(command: str) -> None:
    page = shown(command, "-h")
    assert len(page.splitlines()) <= TALLEST and "--help-all" in page
    for flag in (PAGES[command].flags or "").split():
        assert re.search(rf"^  (-\w+, )?{flag}\b", page, re.MULTILINE), flag


def test_the_first_pages_fit_the_smallest_terminal() -> None:
    for arguments in ((), ("-h",), ("run", "-h"), ("chat", "-h")):
        assert len(shown(*arguments).splitlines()) < SCREEN


def test_commands_stand_in_panels() -> None:
    page = shown("-h")
    for panel, names in PANELS.items():
        block = page[page.index(f"{panel}\n") :].split("\n")[1 : len(names) + 1]
        assert [line.split()[0] for line in block] == [*names]


@pytest.mark.parametrize("command", PAGES)
def test_examples_are_command_lines_that_the_program_takes(command: str) -> None:
    for example in PAGES[command].examples:
        used, *arguments = shlex.split(example.rpartition("lacli ")[2])
        assert command in ("", used)
        with commands()[used].make_context(used, arguments) as context:
            assert isinstance(context.command, WithPages)


def test_a_flags_line_is_a_sentence_with_its_default() -> None:
    page = shown("run", "--help-all")
    assert "(default: no limit)" in page and "(default: 0.95)" in page
    for command in commands().values():
        for parameter in command.params:
            assert parameter.hidden or parameter.help.rsplit(" (default:")[0].endswith("."), parameter.opts


def test_a_page_has_colours_on_a_terminal_only() -> None:
    assert "\x1b" in finish(on_terminal("rm", "-h")).out
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in finish(on_terminal("rm", "-h", env=env)).out
    assert "\x1b" not in shown("rm", "-h")
