"""The sampling flags, spelled as in llama.cpp, and the SamplingSettings they make.

Declarations only; ranges are checked by the settings.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lacli.cli.environment import setting
from lacli.errors import UsageError
from lacli.llamacpp import sampling
from lacli.llamacpp.sampling import SamplingSettings, token_bias
from lacli.settings import spellings
from lacli.text.question import check_text, read_text

SAMPLING = "Sampling"
DEFAULT = SamplingSettings()


def sampling_option(*names: str, help: str, **more: Any) -> Any:
    return setting(*names, help=help, rich_help_panel=SAMPLING, **more)


def text_option(*names: str, help: str, **more: Any) -> Any:
    """What is for one question, or may hold any character: the environment has no default of it."""
    return typer.Option(*names, help=help, rich_help_panel=SAMPLING, **more)


def sampling_group(
    seed: Annotated[
        int, sampling_option(*spellings("seed"), help="Seed; -1 takes another one each time.")
    ] = DEFAULT.seed,
    temp: Annotated[
        float,
        sampling_option(
            *spellings("temp"),
            help="Temperature; at 0 the most probable token is taken.",
        ),
    ] = DEFAULT.temp,
    top_k: Annotated[int, sampling_option("--top-k", help="Keep the k most probable; 0 keeps all.")] = DEFAULT.top_k,
    top_p: Annotated[
        float,
        sampling_option("--top-p", help="Keep what makes up this probability; 1 keeps all."),
    ] = DEFAULT.top_p,
    min_p: Annotated[
        float,
        sampling_option("--min-p", help="Keep what has this share of the top token's; 0 keeps all."),
    ] = DEFAULT.min_p,
    typical: Annotated[
        float, sampling_option(*spellings("typical"), help="Locally typical sampling; 1 is off.")
    ] = DEFAULT.typical,
    top_nsigma: Annotated[
        float,
        sampling_option(*spellings("top_nsigma"), help="Keep logits so many deviations below the top; -1 is off."),
    ] = DEFAULT.top_nsigma,
    xtc_probability: Annotated[
        float, sampling_option("--xtc-probability", help="How often XTC leaves out the top choices; 0 is off.")
    ] = DEFAULT.xtc_probability,
    xtc_threshold: Annotated[
        float, sampling_option("--xtc-threshold", help="Probability of a top choice for XTC; above 0.5 it is off.")
    ] = DEFAULT.xtc_threshold,
    dynatemp_range: Annotated[
        float, sampling_option("--dynatemp-range", help="Dynamic temperature: how far around --temp; 0 is off.")
    ] = DEFAULT.dynatemp_range,
    dynatemp_exp: Annotated[
        float, sampling_option("--dynatemp-exp", help="Dynamic temperature: exponent of the entropy.")
    ] = DEFAULT.dynatemp_exp,
    repeat_penalty: Annotated[
        float,
        sampling_option("--repeat-penalty", help="Penalty of repeats; 1 is off."),
    ] = DEFAULT.repeat_penalty,
    repeat_last_n: Annotated[
        int, sampling_option("--repeat-last-n", help="Tokens that the penalties look back at; 0 is none.")
    ] = DEFAULT.repeat_last_n,
    presence_penalty: Annotated[
        float,
        sampling_option("--presence-penalty", help="Penalty once; 0 is off."),
    ] = DEFAULT.presence_penalty,
    frequency_penalty: Annotated[
        float,
        sampling_option("--frequency-penalty", help="Penalty for every repeat; 0 is off."),
    ] = DEFAULT.frequency_penalty,
    dry_multiplier: Annotated[
        float, sampling_option("--dry-multiplier", help="DRY penalty of repeated passages; 0 is off.")
    ] = DEFAULT.dry_multiplier,
    dry_base: Annotated[float, sampling_option("--dry-base", help="DRY: growth with their length.")] = DEFAULT.dry_base,
    dry_allowed_length: Annotated[
        int, sampling_option("--dry-allowed-length", help="DRY: longest passage that may repeat.")
    ] = DEFAULT.dry_allowed_length,
    dry_penalty_last_n: Annotated[
        int, sampling_option("--dry-penalty-last-n", help="DRY: tokens it looks back at; 0 is none.")
    ] = DEFAULT.dry_penalty_last_n,
    dry_sequence_breaker: Annotated[
        list[str] | None,
        text_option(
            "--dry-sequence-breaker",
            help="DRY: a text that ends a passage; repeatable, 'none' for none. (default: newline : \" *)",
        ),
    ] = None,
    mirostat: Annotated[
        int, sampling_option("--mirostat", help="Mirostat 1 or 2 instead of the narrowing samplers; 0 is off.")
    ] = DEFAULT.mirostat,
    mirostat_lr: Annotated[
        float, sampling_option("--mirostat-lr", help="Mirostat's learning rate, eta.")
    ] = DEFAULT.mirostat_lr,
    mirostat_ent: Annotated[
        float, sampling_option("--mirostat-ent", help="Mirostat's target entropy, tau.")
    ] = DEFAULT.mirostat_ent,
    logit_bias: Annotated[
        list[str] | None,
        text_option(
            *spellings("logit_bias"),
            metavar="ID(+/-)BIAS",
            help="Add to a token's logit: 15043+1, 15043-1, 2-inf; repeatable.",
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, sampling_option("--ignore-eos", help="Never end by an end token: only -n or the context ends it.")
    ] = DEFAULT.ignore_eos,
    grammar: Annotated[str | None, text_option("--grammar", help="GBNF grammar that the answer must follow.")] = None,
    grammar_file: Annotated[str | None, text_option("--grammar-file", help="The same from a file.")] = None,
    json_schema: Annotated[
        str | None,
        text_option(*spellings("json_schema"), help="JSON schema of the answer; '{}' is any object."),
    ] = None,
    json_schema_file: Annotated[
        str | None, text_option(*spellings("json_schema_file"), help="The same from a file.")
    ] = None,
    verify: Annotated[
        sampling.Verify,
        sampling_option(
            "--verify",
            metavar="HOW",
            help="How guesses are verified when sampling: match (the same text as plain decoding with this seed) or "
            "rejection (the same distribution).",
        ),
    ] = DEFAULT.verify,
) -> SamplingSettings:
    arguments = locals()
    # Most flags are settings of the same name; these few are read in their own way.
    given: dict[str, Any] = {name: arguments[name] for name in sampling.DEFAULT}
    given["logit_bias"] = tuple(token_bias(each) for each in logit_bias or ())
    given["grammar"] = _one_text(grammar, "--grammar", grammar_file)
    given["json_schema"] = _one_text(json_schema, "--json-schema", json_schema_file)
    breakers = [check_text(each, "--dry-sequence-breaker") for each in dry_sequence_breaker or () if each != "none"]
    given["dry_sequence_breaker"] = tuple(breakers) if dry_sequence_breaker else DEFAULT.dry_sequence_breaker
    return SamplingSettings(**given)


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
