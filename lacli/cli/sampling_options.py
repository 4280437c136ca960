"""The sampling flags, spelled as in llama.cpp, and the SamplingSettings they make; these check the ranges."""

from __future__ import annotations

import os
from inspect import Parameter
from typing import Any

import typer

from lacli.cli.groups import Table, field_options, option
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings, token_bias
from lacli.settings import spellings
from lacli.text.question import check_text, read_text

DEFAULT = SamplingSettings()

FIELDS = {
    "seed": "Seed of the random numbers. -1: another one each time.",
    "temp": "Temperature of sampling. At 0 the most probable token is taken, and nothing is random.",
    "top_k": "Keep this many of the most probable tokens. 0: all.",
    "top_p": "Keep the most probable tokens that make up this probability. 1: all.",
    "min_p": "Keep tokens with at least this share of the top token's probability. 0: all.",
    "typical": "Locally typical sampling: probability to keep. 1: off.",
    "top_nsigma": "Keep logits within this many standard deviations of the top one. -1: off.",
    "xtc_probability": "Probability with which XTC leaves out the top tokens. 0: off.",
    "xtc_threshold": "Probability from which XTC takes a token for a top one. Above 0.5: off.",
    "dynatemp_range": "Dynamic temperature: range around --temp. 0: off.",
    "dynatemp_exp": "Dynamic temperature: exponent of the entropy.",
    "repeat_penalty": "Penalty of repeated tokens. 1: off.",
    "repeat_last_n": "Tokens that the penalties look back at. 0: none, -1: all.",
    "presence_penalty": "Penalty of tokens that occurred, once. 0: off.",
    "frequency_penalty": "Penalty of tokens that occurred, each time. 0: off.",
    "dry_multiplier": "DRY: penalty of repeated passages. 0: off.",
    "dry_base": "DRY: growth of the penalty with a passage's length.",
    "dry_allowed_length": "DRY: tokens of a passage that may repeat at most.",
    "dry_penalty_last_n": "DRY: tokens to look back at. 0: none, -1: all.",
    "mirostat": "Mirostat 1 or 2 in the place of top-k, top-p and the like. 0: off.",
    "mirostat_lr": "Mirostat's learning rate, eta.",
    "mirostat_ent": "Mirostat's target entropy, tau.",
    "ignore_eos": "Go on past the model's end token. Only -n or the context ends the answer.",
}
"""The help of the fields of SamplingSettings that a flag holds as they are."""

VERIFY = {
    "verify": "How guesses are verified when sampling. match: the same text as plain decoding with this seed; "
    "rejection: the same distribution."
}
"""The same of the last flag."""


def text_option(name: str, kind: Any, **more: Any) -> Parameter:
    """What is for one question, or may hold any character: the environment has no default of it."""
    return option(name, kind, None, typer.Option(*spellings(name), **more))


def make_sampling(
    *,
    dry_sequence_breaker: list[str] | None,
    logit_bias: list[str] | None,
    grammar: str | None,
    grammar_file: str | None,
    json_schema: str | None,
    json_schema_file: str | None,
    **fields: Any,
) -> SamplingSettings:
    """The settings of all sampling flags. `fields`: those that are fields of SamplingSettings as they are."""
    breakers = [check_text(each, "--dry-sequence-breaker") for each in dry_sequence_breaker or () if each != "none"]
    return SamplingSettings(
        **fields,
        dry_sequence_breaker=tuple(breakers) if dry_sequence_breaker else DEFAULT.dry_sequence_breaker,
        logit_bias=tuple(token_bias(each) for each in logit_bias or ()),
        grammar=_one_text(grammar, "--grammar", grammar_file),
        json_schema=_one_text(json_schema, "--json-schema", json_schema_file),
    )


def _one_text(text: str | None, name: str, file: str | None) -> str:
    """What stands in the flag or in the file that the flag's twin names; empty where neither was given."""
    if text is not None and file is not None:
        raise UsageError(f"{name} and {name}-file are both given", "give one of them")
    if text is None and file is None:
        return ""
    if text and os.path.isfile(text):
        raise UsageError(f"{name} {text} names a file", f"{name}-file reads it")
    read = read_text(file) if file is not None else check_text(text or "", name)
    if not read.strip():
        raise UsageError(f"{file or name} is empty", "leave it out for an answer without a form")
    return read


sampling_group = Table(
    (
        *field_options(DEFAULT, FIELDS),
        text_option("dry_sequence_breaker", list[str] | None, metavar="TEXT", show_default='newline : " *',
                    help="DRY: a text that ends a passage. Repeatable; 'none': none."),
        text_option("logit_bias", list[str] | None, metavar="ID(+/-)BIAS",
                    help="Add to a token's logit: 15043+1, 15043-1 or 2-inf. Repeatable."),
        text_option("grammar", str | None, help="GBNF grammar that the answer must follow."),
        text_option("grammar_file", str | None, metavar="FILE", help="Read the grammar from a file."),
        text_option("json_schema", str | None, metavar="JSON", help="JSON schema of the answer. '{}': any object."),
        text_option("json_schema_file", str | None, metavar="FILE", help="Read the schema from a file."),
        *field_options(DEFAULT, VERIFY),
    ),
    make_sampling,
)  # fmt: skip
