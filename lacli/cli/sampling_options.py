"""The sampling flags, spelled as in llama.cpp, and the SamplingSettings they make; these check the ranges."""

from __future__ import annotations

from typing import Any

import typer

from lacli.cli.environment import setting
from lacli.cli.groups import Table, field_options, option
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings, Verify, token_bias
from lacli.settings import spellings
from lacli.text.question import check_text, read_text

SAMPLING = "Sampling"
DEFAULT = SamplingSettings()

FIELDS = {
    "seed": (spellings("seed"), "Seed; -1 takes another one each time."),
    "temp": (spellings("temp"), "Temperature; at 0 the most probable token is taken."),
    "top_k": (("--top-k",), "Keep the k most probable; 0 keeps all."),
    "top_p": (("--top-p",), "Keep what makes up this probability; 1 keeps all."),
    "min_p": (("--min-p",), "Keep what has this share of the top token's; 0 keeps all."),
    "typical": (spellings("typical"), "Locally typical sampling; 1 is off."),
    "top_nsigma": (
        spellings("top_nsigma"),
        "Keep logits within this many deviations of the top; -1 is off.",
    ),
    "xtc_probability": (("--xtc-probability",), "How often XTC leaves out the top choices; 0 is off."),
    "xtc_threshold": (("--xtc-threshold",), "Probability of a top choice for XTC; above 0.5 it is off."),
    "dynatemp_range": (("--dynatemp-range",), "Dynamic temperature: how far around --temp; 0 is off."),
    "dynatemp_exp": (("--dynatemp-exp",), "Dynamic temperature: exponent of the entropy."),
    "repeat_penalty": (("--repeat-penalty",), "Penalty of repeats; 1 is off."),
    "repeat_last_n": (("--repeat-last-n",), "Tokens that the penalties look back at; 0 is none."),
    "presence_penalty": (("--presence-penalty",), "Penalty once; 0 is off."),
    "frequency_penalty": (("--frequency-penalty",), "Penalty for every repeat; 0 is off."),
    "dry_multiplier": (("--dry-multiplier",), "DRY penalty of repeated passages; 0 is off."),
    "dry_base": (("--dry-base",), "DRY: growth with their length."),
    "dry_allowed_length": (("--dry-allowed-length",), "DRY: longest passage that may repeat."),
    "dry_penalty_last_n": (("--dry-penalty-last-n",), "DRY: tokens it looks back at; 0 is none."),
    "mirostat": (("--mirostat",), "Mirostat 1 or 2 instead of the narrowing samplers; 0 is off."),
    "mirostat_lr": (("--mirostat-lr",), "Mirostat's learning rate, eta."),
    "mirostat_ent": (("--mirostat-ent",), "Mirostat's target entropy, tau."),
    "ignore_eos": (("--ignore-eos",), "Never end by an end token: only -n or the context ends it."),
}
"""The flags and the help of the fields of SamplingSettings that a flag holds as they are."""


def text_option(*names: str, help: str, **more: Any) -> Any:
    """What is for one question, or may hold any character: the environment has no default of it."""
    return typer.Option(*names, help=help, rich_help_panel=SAMPLING, **more)


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
    read = read_text(file) if file is not None else check_text(text or "", name)
    if not read.strip():
        raise UsageError(f"{file or name} is empty", "leave it out for an answer without a form")
    return read


BREAKER = text_option(
    "--dry-sequence-breaker",
    help="DRY: a text that ends a passage; repeatable, 'none' for none. (default: newline : \" *)",
)
BIAS = text_option(
    *spellings("logit_bias"),
    metavar="ID(+/-)BIAS",
    help="Add to a token's logit: 15043+1, 15043-1, 2-inf; repeatable.",
)
GRAMMAR = text_option("--grammar", help="GBNF grammar that the answer must follow.")
GRAMMAR_FILE = text_option("--grammar-file", help="The same from a file.")
SCHEMA = text_option(*spellings("json_schema"), help="JSON schema of the answer; '{}' is any object.")
SCHEMA_FILE = text_option(*spellings("json_schema_file"), help="The same from a file.")
VERIFY = setting(
    "--verify",
    metavar="HOW",
    help="How guesses are verified when sampling: match (the same text as plain decoding with this seed) or "
    "rejection (the same distribution).",
    rich_help_panel=SAMPLING,
)

sampling_group = Table(
    (
        *field_options(DEFAULT, SAMPLING, FIELDS),
        option("dry_sequence_breaker", list[str] | None, None, BREAKER),
        option("logit_bias", list[str] | None, None, BIAS),
        option("grammar", str | None, None, GRAMMAR),
        option("grammar_file", str | None, None, GRAMMAR_FILE),
        option("json_schema", str | None, None, SCHEMA),
        option("json_schema_file", str | None, None, SCHEMA_FILE),
        option("verify", Verify, DEFAULT.verify, VERIFY),
    ),
    make_sampling,
)
