"""Habits of other tools: their names of commands, llama.cpp's flags, a prompt behind MODEL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lacli.cli.habits import translated, understood
from lacli.cli.main import commands
from lacli.errors import UsageError
from tests.loading import STDLIB_7M
from tests.program import call


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ls --json", "list --json"),
        ("models", "list"),
        ("remove x", "rm x"),
        ("download x", "pull x"),
        ("version", "--version"),
        ("help", "--help"),
        ("help run", "run --help"),
        ("help ls", "list --help"),
        ("", "--help"),
        ("run ls", "run ls"),
    ],
)
def test_a_command_of_other_tools_is_the_one_that_does_the_same(typed: str, meant: str) -> None:
    assert translated(typed.split()) == meant.split()


@pytest.mark.parametrize("command", ["ps", "stop"])
def test_a_command_that_lacli_has_not_is_answered_in_one_line(command: str) -> None:
    done = call(command)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1) and "lacli" in done.err


def test_versions_flag_has_a_letter() -> None:
    assert call("-V").out == call("--version").out


def taken(*arguments: str) -> tuple[list[str], str]:
    return understood(arguments, commands()["run"].params)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-W15", "-n-1", "-t8", "-l15043+1"),
        ("-q", "-v", "-qv"),
        ("-qvp", "-ng"),
        ("-p", "-ng", "--system-prompt", "-hff", "--", "-p", "-p"),
        ("-ngl", "3", "-sys", "-x", "--temp=1"),
        ("model", "-"),
        ("-c", "-5"),
    ],
)
def test_numbers_may_follow_a_letter_and_values_may_be_anything(arguments: tuple[str, ...]) -> None:
    assert taken(*arguments) == ([*arguments], "")


@pytest.mark.parametrize("word", ["-ng", "-hff", "-hx", "-Wx", "-qx", "-qh", "-pHello", "-Z"])
def test_letters_that_are_no_flags_are_not_taken_for_a_value(word: str) -> None:
    assert taken("-p", "hi", word, "3")[1] == word


@pytest.mark.parametrize("words", [("-p", "a", "--prompt=b"), ("-f", "a", "--file", "b"), ("-f", "a", "-q", "-f", "b")])
def test_a_second_part_of_a_prompt_does_not_replace_the_first_in_silence(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="is given twice"):
        taken(*words)
    assert taken("-p", "-p", "-t", "1", "-t", "2")[1] == "", "of other flags the last one counts"


def test_what_is_so_already_is_left_out_but_not_out_of_a_prompt() -> None:
    assert taken("--jinja", "-p", "--jinja") == (["-p", "--jinja"], "")


@pytest.mark.parametrize(
    ("word", "hint"), [("-px", "did you mean -p x?"), ("-sx", "lists what there is"), ("-ng", "-ngl?")]
)
def test_letters_behind_a_flag_are_offered_as_its_value_where_it_takes_any_text(word: str, hint: str) -> None:
    done = call("run", "-p", "hi", word)
    assert done.code == 2 and f"no such option: {word} (" in done.err and hint in done.err


def test_a_prompt_and_a_system_prompt_in_the_places_of_other_tools_are_told_their_own() -> None:
    assert "(lacli run -p TEXT answers a prompt)" in call("what is and/or").err
    assert "-sys gives a system prompt" in call("run", str(STDLIB_7M), "-s", "You are a poet", "hi").err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--num_ctx", "--ctx-size"),
        ("--num-ctx=4096", "--ctx-size"),
        ("--context", "--ctx-size"),
        ("--n_ctx", "--ctx-size"),
        ("--num-gpu", "--gpu-layers"),
        ("--num-predict", "--n-predict or --predict"),
        ("--max-new-tokens", "--max-tokens"),
        ("--ctx", "--ctx-size"),
        ("--gpu", "--gpu-layers"),
        ("--ngl", "-ngl"),
        ("--format", "--json-schema"),
    ],
)
def test_flags_of_other_tools_are_answered_with_what_they_are_called_here(word: str, meant: str) -> None:
    done = call("run", "-p", "hi", word, "3")
    assert done.code == 2 and done.err.endswith(f"(did you mean {meant}?)\n")


def test_of_two_prompts_the_hint_is_quotes() -> None:
    assert call("run", str(STDLIB_7M), "say", "hi").err.endswith("(put the prompt into quotes)\n")
    assert call("run", str(STDLIB_7M), "say", __file__).err.endswith(f"(a file's text is read with -f {__file__})\n")


def test_a_commands_own_flag_is_not_that_of_llama_cpp() -> None:
    assert call("run", "-p", "hi", "-r", "3").err.startswith("lacli: -r: an answer ends before --stop")
    assert "-r is '0'" in call("bench", "-r", "0").err


@pytest.mark.parametrize("flag", ["--no-mmap", "-no-cnv", "-md", "--lora=x"])
def test_llama_cpps_flags_for_what_lacli_does_not_do_are_refused_with_the_reason(flag: str) -> None:
    done = call("run", "-p", "hi", flag)
    assert (done.code, done.err.count("\n")) == (2, 1) and done.err.startswith(f"lacli: {flag}: ")


def asked(*arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """The model and the prompt that `lacli run` would answer."""
    with patch("lacli.cli.run.ask") as ask:
        assert call("run", *arguments, stdin=stdin, env=env).code == 0
    question, loading = ask.call_args.args[:2]
    return loading.model, question.text


def test_a_prompt_may_stand_behind_the_model() -> None:
    assert asked("x.gguf", "Why?") == asked("x.gguf", "-p", "Why?") == ("x.gguf", "Why?")
    assert asked("x.gguf", "Why?", stdin=b"So.") == ("x.gguf", "So.\n\nWhy?")
    assert asked("x.gguf", "-", stdin=b"So.") == ("x.gguf", "So.")
    assert asked("-", stdin=b"So.") == (str(STDLIB_7M), "So.")


@pytest.mark.parametrize(
    "flags", ["-m x.gguf", "--model x.gguf", "--model=x.gguf", "x.gguf -m x.gguf"], ids=lambda flags: flags
)
def test_a_model_may_stand_behind_a_flag(flags: str) -> None:
    assert asked(*flags.split(), "-p", "hi")[0] == "x.gguf"
    assert asked(*flags.split(), "-", stdin=b"hi") == ("x.gguf", "hi")


@pytest.mark.parametrize("variable", ["LACLI_MODEL", "LLAMA_ARG_MODEL"])
def test_the_environment_names_the_model_of_a_command_that_names_none(variable: str) -> None:
    env = {"LACLI_MODEL": "", variable: "x.gguf"}
    assert asked("-p", "Why?", env=env) == ("x.gguf", "Why?")
    assert asked("y.gguf", "Why?", env=env) == asked("-m", "y.gguf", "Why?", env=env) == ("y.gguf", "Why?")
    assert asked("-hf", "owner/repo", "Why?", env=env) == ("hf:owner/repo", "Why?")
    for command in ("rm", "pull"):
        assert call(command, "nosuch", env=env).err == call(command, "nosuch").err
        assert "x.gguf" not in call(command, env=env).err


def test_beside_a_model_of_the_environment_an_argument_that_names_none_is_the_prompt() -> None:
    env = {"LACLI_MODEL": "x.gguf"}
    assert asked("A queue.", env=env) == ("x.gguf", "A queue.") and asked("Explain", env=env) == ("x.gguf", "Explain")
    assert asked("Explain", env=env, stdin=b"So.") == ("x.gguf", "So.\n\nExplain")
    assert asked("-", env=env, stdin=b"So.") == asked("-p", "-", env=env, stdin=b"So.") == ("x.gguf", "So.")
    for name in ("smollm2-135m", "owner/repo"):
        assert asked(name, env=env, stdin=b"So.") == (name, "So.")
    assert "no such file: y.gguf" in call("run", "y.gguf", env=env, stdin=b"So.").err
    assert "no such model: nosuch" in call("run", "nosuch", "-p", "hi", env=env).err
    # What is nearly a name is a slip, and not what another model is to answer.
    assert "did you mean llama-3.2" in call("run", "llama3.2", env=env).err


@pytest.mark.parametrize(("word", "code"), [("Explain", 1), ("Explain this", 2)])
def test_a_prompt_in_the_place_of_a_model_is_told_where_it_goes(word: str, code: int) -> None:
    done = call("run", word, env={"LACLI_MODEL": ""}, stdin=b"def f(): pass")
    assert done.code == code and word in done.err and "behind a model: smollm2-135m " in done.err


@pytest.mark.parametrize("flags", [["-m", "x.gguf", "Why?"], ["Why?", "--model", "x.gguf"]], ids=str)
def test_beside_a_models_flag_the_argument_is_the_prompt(flags: list[str]) -> None:
    assert asked(*flags) == ("x.gguf", "Why?")


def test_llama_cpps_flag_of_the_hub_names_a_repository_of_the_hub(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "repo").touch()
    for flag in ("-hf", "--hf-repo"):
        assert asked(flag, "owner/repo:Q8_0", "-p", "hi")[0] == "hf:owner/repo:Q8_0"
    assert asked("-hf", "hf:owner/repo", "-p", "hi")[0] == "hf:owner/repo"


@pytest.mark.parametrize("command", ["run", "chat", "check", "bench", "cost", "show", "pull", "rm"])
def test_every_command_with_a_model_takes_it_behind_a_flag(command: str) -> None:
    missing = "no such file: nosuch.gguf"
    answers = [call(command, *flags, *(["-p", "x"] if command == "run" else [])) for flags in MODELS]
    assert answers[0] == answers[1] and (missing in answers[0].err or command == "rm") and answers[0].code


MODELS = (["nosuch.gguf"], ["-m", "nosuch.gguf"])


@pytest.mark.parametrize("flag", ["-cnv", "--conversation", "-i", "--interactive"])
def test_a_conversation_is_a_chat_that_begins_with_the_prompt(flag: str) -> None:
    with patch("lacli.cli.run.start") as start:
        assert call("run", "x.gguf", flag, "-p", "hi").code == 0
    plan = start.call_args.args[0]
    assert (plan.model, plan.first) == ("x.gguf", "hi")
    with patch("lacli.cli.chat.start") as start:
        assert call("chat", "x.gguf", flag).code == 0
    assert start.call_args.args[0].model == "x.gguf"


@pytest.mark.parametrize("arguments", ["x.gguf hi", "x.gguf -p hi", "-m x.gguf hi"])
def test_a_chats_first_message_may_stand_behind_the_model(arguments: str) -> None:
    with patch("lacli.cli.chat.start") as start:
        assert call("chat", *arguments.split()).code == 0
        assert call("chat", "x.gguf", "hi", "-p", "ho").code == 2
    plan = start.call_args.args[0]
    assert (plan.model, plan.first) == ("x.gguf", "hi")
