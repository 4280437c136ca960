"""The fields of a request that say how tokens are drawn, in OpenAI's and llama.cpp's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from json import dumps
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, create_model

from lacli.errors import UsageError
from lacli.llamacpp.sampling import MOST_SEED, SamplingSettings
from lacli.options import options_of
from lacli.text.checked import WithoutNull

NUMBERS = {
    each.request or name: each for name, each in options_of(SamplingSettings).items() if each.kind in (int, float, bool)
}
"""Settings that are one field of a request, by its name."""


class ResponseFormat(BaseModel):
    """The form of an answer, as OpenAI and llama.cpp write it."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    # pydantic's models have a method of this name.
    own_schema: Any = Field(None, alias="schema")
    json_schema: dict[str, Any] | None = None

    @property
    def schema_text(self) -> str:
        """The JSON schema that the answer keeps to, "" for none."""
        if self.type == "text":
            return ""
        schema = self.own_schema if self.own_schema is not None else (self.json_schema or {}).get("schema")
        if schema is None and self.type == "json_schema":
            raise UsageError("response_format: no schema", 'give {"json_schema": {"schema": {...}}}')
        if schema is None:
            schema = {"type": "object"}
        if not isinstance(schema, Mapping):
            raise UsageError("response_format: the schema is no object", 'give {"type": "object", ...}')
        return dumps(schema)


if TYPE_CHECKING:
    _Numbers = WithoutNull
else:
    _Numbers = create_model(
        "_Numbers", __base__=WithoutNull, **{field: (each.kind | None, None) for field, each in NUMBERS.items()}
    )


class Sampled(_Numbers):
    """How the tokens of an answer are drawn, with the fields of NUMBERS; None is as the server's flags say."""

    logit_bias: dict[str, float] | list[tuple[int | str, float | bool]] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None

    @property
    def has_grammar(self) -> bool:
        """Whether the whole answer has a form, calls too; a `response_format` is that of a text."""
        return bool(self.grammar or self.json_schema is not None)

    def sampling(self, defaults: SamplingSettings, tokens_of: Callable[[str], Sequence[int]]) -> SamplingSettings:
        """How tokens are drawn: as the request says, otherwise by `defaults`. Raises UsageError for what cannot be.

        `tokens_of`: those of a text, for a bias on one.
        """
        given = {each.name: getattr(self, field) for field, each in NUMBERS.items()}
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if seed := chosen.get("seed"):
            # OpenAI's seeds have 64 bits, llama.cpp's 32; its largest one is another one each time, as -1 is.
            chosen["seed"] = -1 if seed in (-1, MOST_SEED + 1) else seed % (MOST_SEED + 1)
        if self.logit_bias:
            biases = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
            chosen["logit_bias"] = tuple(
                # llama.cpp's false forbids a token.
                (token, float("-inf") if bias is False else float(bias))
                for what, bias in biases
                for token in ([int(what)] if str(what).isdecimal() else tokens_of(str(what)))
            )
        schema = dumps(self.json_schema) if self.json_schema is not None else ""
        if not schema and self.response_format:
            schema = self.response_format.schema_text
        if schema or self.grammar:
            chosen |= {"json_schema": schema, "grammar": self.grammar or ""}
        return replace(defaults, **chosen)


def in_their_words(sampling: SamplingSettings, ends: Sequence[int]) -> dict[str, Any]:
    """How tokens are drawn, in llama.cpp's names. `ends`: the tokens that end a text, which `ignore_eos` forbids."""
    biases = [*((token, None) for token in ends if sampling.ignore_eos), *sampling.logit_bias]
    return {
        **{field: getattr(sampling, each.name) for field, each in NUMBERS.items()},
        "grammar": sampling.grammar,
        "logit_bias": [{"token": token, "bias": None if bias == float("-inf") else bias} for token, bias in biases],
    }
