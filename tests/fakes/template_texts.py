"""Chat templates for tests: their texts, a model that compiles them, and transformers' rendering of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from lacli.text.template import STOPS, ChatTemplate, compile_template

BOS, EOS = "<s>", "</s>"
FIXTURES = Path(__file__).parents[1] / "text" / "templates"
FIXTURE_NAMES = sorted(path.stem for path in FIXTURES.glob("*.jinja"))

Message = Mapping[str, object]


class FileOnly:
    """A model with only a chat template and the texts of its tokens."""

    def __init__(self, chat_template: str = "", tokens: Sequence[str] = ()) -> None:
        self._chat_template, self._tokens = chat_template, tokens

    @property
    def chat_template(self) -> str:
        return self._chat_template

    def compile_template(self, source: str) -> Callable[..., str]:
        return compile_template(source, BOS, EOS)

    def has_token(self, text: str) -> bool:
        return text in self._tokens


def fixture(name: str) -> str:
    """Return the text of a template in the test data, written like a published template."""
    return (FIXTURES / f"{name}.jinja").read_text(encoding="utf-8")


def bundled(name: str) -> str:
    return (files("lacli") / "data" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def compiled(source: str) -> ChatTemplate:
    return ChatTemplate("", source, compile_template(source, BOS, EOS))


def every_source() -> dict[str, str]:
    """Return all templates by name; a name with * at its end is of the test data."""
    return {**{name: bundled(name) for name in STOPS}, **{f"{name}*": fixture(name) for name in FIXTURE_NAMES}}


def by_transformers(source: str, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
    """Return the prompt that transformers renders for these messages."""
    given = [dict(message) for message in messages]
    return str(
        _tokenizer().apply_chat_template(given, tools, chat_template=source, tokenize=False, add_generation_prompt=True)
    )


@cache
def _tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token=BOS, eos_token=EOS)  # type: ignore[no-untyped-call]
