"""Questions to prompts: system role or not, BOS once, templates that fail."""

from __future__ import annotations

import pytest

from lacli.errors import PromptError
from lacli.template import chat_prompt, without_bos

Messages = list[dict[str, str]]


def roles(messages: Messages) -> str:
    return "".join(f"<{message['role']}>{message['content']}" for message in messages)


def no_system(messages: Messages) -> str:
    if messages[0]["role"] == "system":
        raise ValueError("System role not supported")
    return roles(messages)


def broken(messages: Messages) -> str:
    raise ValueError("no filter named 'x'")


def test_a_question_is_the_user_and_the_system_text_goes_before_it() -> None:
    assert chat_prompt(roles, "why?") == "<user>why?"
    assert chat_prompt(roles, "why?", "be brief") == "<system>be brief<user>why?"


def test_a_template_without_a_system_role_gets_the_text_in_the_question() -> None:
    assert chat_prompt(no_system, "why?", "be brief") == "<user>be brief\n\nwhy?"


@pytest.mark.parametrize("system", ["", "be brief"])
def test_a_template_that_fails_is_an_error_that_names_the_way_out(system: str) -> None:
    with pytest.raises(PromptError, match="--raw"):
        chat_prompt(broken, "why?", system)


def test_a_rendered_bos_is_dropped_only_where_the_vocabulary_adds_one() -> None:
    assert without_bos("<s>[INST]", "<s>", adds_bos=True) == "[INST]"
    assert without_bos("<s>[INST]", "<s>", adds_bos=False) == "<s>[INST]"
    assert without_bos("<s><s>x", "<s>", adds_bos=True) == "<s>x"
    assert without_bos("x", "", adds_bos=True) == "x"
