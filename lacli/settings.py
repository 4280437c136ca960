"""The one registry of options, and the settings of answers and of decoding with their presets.

A field of a settings class declares its flags, help, range and names, once. The command line, /set, saved chats, rows
of prompt files and requests are derived from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lacli.errors import UsageError

ModeName = Literal["plain", "jacobi", "lookup", "lookahead", "auto"]

Switch = Literal["on", "off", "auto"]
Detail = Literal["", "short", "full"]

MODES: tuple[ModeName, ...] = get_args(ModeName)

PARALLEL = 4
"""Answers decoded at a time by default: an editor or an agent seldom asks for more, and each needs memory."""

MAX_SEQUENCES = 256
"""Sequence ids that llama.cpp 0.3.36 allows in one context (`llama_max_parallel_sequences`)."""

KINDS: dict[object, tuple[str, tuple[type[object], ...]]] = {
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    bool: ("True or False", (bool,)),
    tuple: ("a tuple", (tuple,)),
}
"""The types of fields that are checked: their names in messages, and the types of values that they accept."""

NOTHING = ("none", "off")
"""Words for an empty list of names."""


@dataclass(frozen=True)
class Option:
    """The names of a setting for users, and the values that it accepts.

    `name`, `kind`: name and type of the field. `flags`: the first, without dashes, is its name in /set. `help`: "" for
    a field without a flag. `least`, `most`: the range of a number. `request`: its name in requests if not `name`.
    `metavar`, `shown`: how help texts show its value and its default. `read`: converts a text to a value, or to one of
    the values of a `repeated` option. `variable`: whether an environment variable sets a default.
    """

    flags: tuple[str, ...] = ()
    help: str = ""
    name: str = ""
    default: Any = None
    kind: Any = None
    least: float | None = None
    most: float | None = None
    request: str = ""
    metavar: str | None = None
    shown: str = ""
    read: Callable[[str], Any] | None = None
    repeated: bool = False
    variable: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        """The only accepted values, if the type is a Literal; otherwise empty."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def check(self, value: Any, name: str) -> None:
        """Raise UsageError if `value` has a wrong type, is an unknown word or out of range. `name`: for the message."""
        if get_origin(self.kind) is Literal and value not in self.words:
            raise UsageError(f"{name} cannot be {value!r}", f"one of {', '.join(self.words)}")
        kind = get_origin(self.kind) or self.kind
        if kind in KINDS and not isinstance(value, KINDS[kind][1]):
            raise UsageError(f"{name} is {value!r}", f"it must be {KINDS[kind][0]}")
        form = "g" if self.kind is float else ""
        # NaN fails both comparisons, so it is out of range too.
        if self.least is not None and not value >= self.least:
            raise UsageError(f"{name} is {value:{form}}", f"{name} must be at least {self.least:{form}}")
        if self.most is not None and not value <= self.most:
            raise UsageError(f"{name} is {value:{form}}", f"{name} must be at most {self.most:{form}}")


def option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    """Return a dataclass field with an Option. `flags`: by default from the field's name. `more`: fields of Option."""
    return field(default=default, metadata={"option": Option(flags, help, **more)})


@cache
def options_of(settings: Any) -> Mapping[str, Option]:
    """Return the Option of each field of a settings class, by the field's name. Fields without a flag are included."""
    hints = get_type_hints(settings)
    found = {}
    for each in fields(settings):
        declared: Option = each.metadata.get("option", Option())
        flags = declared.flags or ("--" + each.name.replace("_", "-"),)
        found[each.name] = replace(declared, flags=flags, name=each.name, default=each.default, kind=hints[each.name])
    return found


def check_options(settings: object) -> None:
    """Raise UsageError if a field of `settings` is out of its range or has another type than declared."""
    for each in options_of(type(settings)).values():  # type: ignore[arg-type]  # mypy doubts that classes have hashes
        each.check(getattr(settings, each.name), each.name)


@dataclass(frozen=True)
class AnswerSettings:
    """When an answer ends: after `max_tokens` tokens (-1: no limit), or before one of the texts `stops`."""

    max_tokens: int = option(
        -1,
        "Limit the answer to N tokens.",
        *("-n", "--predict", "--n-predict", "--max-tokens"),
        least=-1,
        shown="no limit",
    )
    stops: tuple[str, ...] = option(
        (), "End the answer before this text. Repeatable.", "--stop", repeated=True, variable=False
    )

    def __post_init__(self) -> None:
        check_options(self)
        if "" in self.stops:
            raise UsageError("a stop text is empty", "give the text before which an answer is to end")


@dataclass(frozen=True)
class Constraints:
    """Restrictions of steps that the model (`restrict_to_chain`) or `--strict` (`strict_settings`) needs.

    `max_rollback`: drafted tokens that the model can take back after a step. -1: any number, and trees of drafts.
    Otherwise each step drafts one chain of at most this length. `ordered`: a sequence's cells must lie in the order of
    its tokens. `min_outputs`: the least number of rows of a step whose logits are computed.
    """

    max_rollback: int = -1
    ordered: bool = False
    min_outputs: int = 1


@dataclass(frozen=True)
class DecodeSettings:
    """How tokens are drafted and verified; the defaults are the paper's for a 7B model.

    `window`, `ngram`, `guesses`: the paper's W, N and G. `pool_prompt`: n-grams of prompt and answer enter the pool
    too. Mode jacobi (Algorithm 1) drafts a block of `window` tokens and starts a new block after `jacobi_iterations`
    steps. Mode lookup (Table 3, row 2) matches the sequence's last `lookup_match` tokens and drafts `lookup_draft`.
    Mode auto takes steps of at most `auto_rows` rows; a sequence has at most `leaves` branches in a step. `strict`: the
    text is exactly the same in every mode, whatever rows its steps have. `constraints`: set by lacli.
    """

    mode: ModeName = option("auto", "How to draft: " + ", ".join(MODES) + ".", metavar="MODE")
    window: int = option(15, "Columns of the window, if rows are cheap.", "-W", "--window", least=0)
    ngram: int = option(5, "Tokens of an n-gram.", "-N", "--ngram", least=2)
    guesses: int = option(15, "Limit a step to this many n-grams.", "-G", "--guesses", least=0)
    pool_prompt: bool = True
    jacobi_iterations: int = option(16, "Limit a block of mode jacobi to this many steps.", least=1)
    lookup_match: int = option(2, "Limit the match of mode lookup to this many tokens.", least=1)
    lookup_draft: int = option(10, "Tokens that mode lookup drafts in a step.", least=1)
    auto_rows: int = option(64, "Limit a step of mode auto to this many rows.", least=1, most=MAX_SEQUENCES)
    leaves: int = option(48, "", least=1)  # each needs an id, and llama.cpp's buffers grow with ids
    strict: bool = option(False, "Give exactly the same text in every mode: slower, CPU only.")
    constraints: Constraints = Constraints()

    def __post_init__(self) -> None:
        check_options(self)
        if self.ids > MAX_SEQUENCES:
            fits = MAX_SEQUENCES - 1
            hint = f"W + G of at most {fits} fits, for example -W {fits // 2} -G {fits - fits // 2}"
            raise UsageError(f"W + G + 1 = {self.ids} sequence ids, and llama.cpp has {MAX_SEQUENCES}", hint)

    @property
    def ids(self) -> int:
        """Number of ids that a sequence needs: W + G + 1 in lookahead, `leaves` + 1 for trees in auto, otherwise 1."""
        if self.mode == "lookahead":
            return self.window + self.guesses + 1
        return self.leaves + 1 if self.mode == "auto" and self.constraints.max_rollback < 0 else 1

    def constrained(self, **constraints: Any) -> DecodeSettings:
        """Return a copy with other constraints. `constraints`: fields of Constraints with their new values."""
        return replace(self, constraints=replace(self.constraints, **constraints))

    def for_slots(self, count: int) -> DecodeSettings:
        """Return the settings for each of `count` slots of one context.

        In mode auto, `leaves` shrinks to fit llama.cpp's ids. Raises UsageError if the slots need more ids than exist.
        """
        if count == 1:
            return self
        chosen, others = self, ", and so does mode auto"
        if self.mode == "auto":
            # Each slot leaves one of its share of llama.cpp's ids unused.
            leaves = max(min(self.leaves, MAX_SEQUENCES // count - 2), 1)
            chosen, others = replace(self, leaves=leaves), ""
        if (needed := count * chosen.ids) > MAX_SEQUENCES:
            what = f"{count} texts at a time with {chosen.ids} sequence ids each need {needed}"
            hint = f"--parallel {MAX_SEQUENCES // chosen.ids} fits{others}"
            raise UsageError(f"{what}, and llama.cpp has {MAX_SEQUENCES}", hint)
        return chosen

    @property
    def deepest(self) -> int:
        """Most drafted tokens that a lookahead step can accept: the larger of N-1 (n-gram) and W+N-3 (window).

        A window's path has logits only at its end, so it is accepted only if other paths share its earlier tokens.
        """
        return max(self.ngram - 1, self.window + self.ngram - 3)

    @property
    def linear_draft(self) -> int:
        """Most drafted tokens of a step in modes jacobi and lookup, which draft one chain; 0 in other modes."""
        most = {"jacobi": self.window, "lookup": self.lookup_draft}.get(self.mode, 0)
        return most if self.constraints.max_rollback < 0 else min(most, self.constraints.max_rollback)

    @property
    def _auto_rows(self) -> int:
        back = self.constraints.max_rollback
        return self.auto_rows if back < 0 else min(self.auto_rows, 1 + back)

    @property
    def max_step_tokens(self) -> int:
        """Most tokens that a step can add to a sequence: the accepted drafted tokens, and the model's own token."""
        if self.mode == "auto":
            return self._auto_rows
        return 1 + (self.deepest if self.mode == "lookahead" else self.linear_draft)

    @property
    def max_rows(self) -> int:
        """Rows of the largest step of a sequence, if its drafts share no prefixes."""
        if self.mode == "lookahead":
            again = self.deepest if self.constraints.ordered else 0
            guesses = window_rows(self.window, self.ngram) + self.guesses * (self.ngram - 1)
            return 1 + again + max(guesses, self.constraints.min_outputs - 1)
        if self.mode == "auto":
            again = self._auto_rows - 1 if self.constraints.ordered else 0
            return again + max(self._auto_rows, self.constraints.min_outputs)
        return max(1 + self.linear_draft, self.constraints.min_outputs)

    @property
    def max_outputs(self) -> int:
        """Most rows with computed logits in a step of a sequence."""
        if self.mode == "auto":
            return max(self._auto_rows, self.constraints.min_outputs)
        if self.mode != "lookahead":
            return self.max_rows
        return 1 + max(self.window + self.guesses * (self.ngram - 1), self.constraints.min_outputs - 1)


def window_rows(columns: int, ngram: int) -> int:
    """Return how many rows a window adds to a step, without the input's row: (N-1) * `columns` - 1, at least 0."""
    return columns * (ngram - 1) - 1 if columns else 0


PRESETS: dict[str, dict[str, int]] = {
    "code": {"window": 8, "ngram": 6, "guesses": 15, "jacobi_iterations": 12},
    "text": {"window": 7, "ngram": 5, "guesses": 10, "jacobi_iterations": 16},
    "creative": {"window": 5, "ngram": 4, "guesses": 8, "jacobi_iterations": 20},
    "7b": {"window": 15, "ngram": 5, "guesses": 15},
    "13b": {"window": 10, "ngram": 5, "guesses": 10},
    "34b": {"window": 7, "ngram": 5, "guesses": 7},
}
"""Settings by kind of text and by model size; the sizes are Table 4 of the paper, with G = W."""


def decode_settings(preset: str | None = None, **chosen: Any) -> DecodeSettings:
    """Return the settings of a preset (None: the defaults), changed by the fields in `chosen` that are not None.

    If a preset, W, N or G is given but no mode, the mode is lookahead. Raises UsageError for a bad preset or value.
    """
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}", "one of " + ", ".join(PRESETS))
    given = {name: value for name, value in chosen.items() if value is not None}
    if preset or given.keys() & {"window", "ngram", "guesses"}:
        given.setdefault("mode", "lookahead")
    return DecodeSettings(**{**PRESETS.get(preset or "", {}), **given})


def restrict_to_chain(
    settings: DecodeSettings, chain_only: str, max_rollback: Callable[[], int]
) -> tuple[DecodeSettings, list[str]]:
    """Return the settings with which a model can decode, and a sentence about each restriction.

    `chain_only`: why the model cannot decode trees. "": it can, and the settings stay as they are. `max_rollback`:
    gives the number of drafted tokens that the model can take back. Mode lookahead becomes auto. If this number is 0,
    or with `strict`, every mode becomes plain.
    """
    if not chain_only:
        return settings, []
    drafts = settings.mode != "plain"
    if drafts and not settings.strict and (most := max_rollback()):
        chained = settings.constrained(max_rollback=most)
        if settings.mode == "lookahead":
            why = "mode auto instead of lookahead: a recurrent state goes back along one chain of drafted tokens"
            return replace(chained, mode="auto"), [why]
        note = f"at most {most} drafted tokens a step: a recurrent state goes back no further"
        return chained, [note] if chained.linear_draft < settings.linear_draft else []
    why = "--strict has no rule for a recurrent state" if settings.strict else chain_only
    notes = [f"decoding plainly: {why}"] if drafts else []
    # Plain decoding alone needs no rules for equal texts, and the model could not take back a second row.
    return replace(settings, mode="plain").constrained(ordered=False, min_outputs=1), notes
