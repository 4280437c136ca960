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
    "seed": (spellings("seed"), "Seed of the random numbers. -1: another one each time."),
    "temp": (
        spellings("temp"),
        "Temperature of sampling. At 0 the most probable token is taken, and nothing is random.",
    ),
    "top_k": (("--top-k",), "Keep this many of the most probable tokens. 0: all."),
    "top_p": (("--top-p",), "Keep the most probable tokens that make up this probability. 1: all."),
    "min_p": (("--min-p",), "Keep tokens with at least this share of the top token's probability. 0: all."),
    "typical": (spellings("typical"), "Locally typical sampling: probability to keep. 1: off."),
    "top_nsigma": (
        spellings("top_nsigma"),
        "Keep logits within this many standard deviations of the top one. -1: off.",
    ),
    "xtc_probability": (("--xtc-probability",), "Probability with which XTC leaves out the top tokens. 0: off."),
    "xtc_threshold": (("--xtc-threshold",), "Probability from which XTC takes a token for a top one. Above 0.5: off."),
    "dynatemp_range": (("--dynatemp-range",), "Dynamic temperature: range around --temp. 0: off."),
    "dynatemp_exp": (("--dynatemp-exp",), "Dynamic temperature: exponent of the entropy."),
    "repeat_penalty": (("--repeat-penalty",), "Penalty of repeated tokens. 1: off."),
    "repeat_last_n": (("--repeat-last-n",), "Tokens that the penalties look back at. 0: none."),
    "presence_penalty": (("--presence-penalty",), "Penalty of tokens that occurred, once. 0: off."),
    "frequency_penalty": (("--frequency-penalty",), "Penalty of tokens that occurred, each time. 0: off."),
    "dry_multiplier": (("--dry-multiplier",), "DRY: penalty of repeated passages. 0: off."),
    "dry_base": (("--dry-base",), "DRY: growth of the penalty with a passage's length."),
    "dry_allowed_length": (("--dry-allowed-length",), "DRY: tokens of a passage that may repeat at most."),
    "dry_penalty_last_n": (("--dry-penalty-last-n",), "DRY: tokens to look back at. 0: none."),
    "mirostat": (("--mirostat",), "Mirostat 1 or 2 in the place of top-k, top-p and the like. 0: off."),
    "mirostat_lr": (("--mirostat-lr",), "Mirostat's learning rate, eta."),
    "mirostat_ent": (("--mirostat-ent",), "Mirostat's target entropy, tau."),
    "ignore_eos": (("--ignore-eos",), "Go on past the model's end token. Only -n or the context ends the answer."),
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
    metavar="TEXT",
    show_default='newline : " *',
    help="DRY: a text that ends a passage. Repeatable; 'none': none.",
)
BIAS = text_option(
    *spellings("logit_bias"),
    metavar="ID(+/-)BIAS",
    help="Add to a token's logit: 15043+1, 15043-1 or 2-inf. Repeatable.",
)
GRAMMAR = text_option("--grammar", help="GBNF grammar that the answer must follow.")
GRAMMAR_FILE = text_option("--grammar-file", metavar="FILE", help="Read the grammar from a file.")
SCHEMA = text_option(*spellings("json_schema"), metavar="JSON", help="JSON schema of the answer. '{}': any object.")
SCHEMA_FILE = text_option(*spellings("json_schema_file"), metavar="FILE", help="Read the schema from a file.")
VERIFY = setting(
    "--verify",
    help="How guesses are verified when sampling. match: the same text as plain decoding with this seed; rejection: "
    "the same distribution.",
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
