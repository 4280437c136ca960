"""The one registry of options, and the settings of answers and of decoding with their presets.

A field of a settings class declares its flags, help, range and names, once. The command line, /set, saved chats, rows
of prompts and requests are made of these declarations.
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
"""Answers that are decoded at a time by default: an editor or an agent seldom has more, and each takes memory."""

MAX_SEQUENCES = 256
"""Sequence ids that llama.cpp 0.3.36 allows in one context (`llama_max_parallel_sequences`)."""

KINDS: dict[object, tuple[str, tuple[type[object], ...]]] = {
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    bool: ("True or False", (bool,)),
    tuple: ("a tuple", (tuple,)),
}
"""The types of fields that are checked, in words, and the types that they take."""

NOTHING = ("none", "off")
"""Words for an empty list of names."""


@dataclass(frozen=True)
class Option:
    """How users name a setting, and which values it takes.

    `kind`: the type of the field `name`. `flags`: its spellings; the first, without dashes, names it in /set. `help`:
    "" for a field without a flag. `least`, `most`: the range of a number. `request`: its name in requests if not
    `name`. `metavar`, `shown`: its value and its default in help. `read`: makes a value of a text, of a `repeated`
    option one of its values. `variable`: whether the environment sets a default.
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
        """The words that the value can be; empty if it can be others."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def check(self, value: Any, name: str) -> None:
        """Raise UsageError about `name` for another type, an unknown word, or a number out of range."""
        if get_origin(self.kind) is Literal and value not in self.words:
            raise UsageError(f"{name} cannot be {value!r}", f"one of {', '.join(self.words)}")
        kind = get_origin(self.kind) or self.kind
        if kind in KINDS and not isinstance(value, KINDS[kind][1]):
            raise UsageError(f"{name} is {value!r}", f"it must be {KINDS[kind][0]}")
        form = "g" if self.kind is float else ""
        # Written so that "not a number" is out of range.
        if self.least is not None and not value >= self.least:
            raise UsageError(f"{name} is {value:{form}}", f"{name} must be at least {self.least:{form}}")
        if self.most is not None and not value <= self.most:
            raise UsageError(f"{name} is {value:{form}}", f"{name} must be at most {self.most:{form}}")


def option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    """Return the dataclass field of an option. `flags`: without any, the field's name is its flag."""
    return field(default=default, metadata={"option": Option(flags, help, **more)})


@cache
def options_of(settings: Any) -> Mapping[str, Option]:
    """Return the options of a settings class by their fields' names, fields without a flag among them."""
    hints = get_type_hints(settings)
    found = {}
    for each in fields(settings):
        declared: Option = each.metadata.get("option", Option())
        flags = declared.flags or ("--" + each.name.replace("_", "-"),)
        found[each.name] = replace(declared, flags=flags, name=each.name, default=each.default, kind=hints[each.name])
    return found


def check_options(settings: object) -> None:
    """Raise UsageError for a field of `settings` that is out of its range or of another type than declared."""
    for each in options_of(type(settings)).values():  # type: ignore[arg-type]  # mypy doubts that classes have hashes
        each.check(getattr(settings, each.name), each.name)


@dataclass(frozen=True)
class AnswerSettings:
    """How an answer ends. `max_tokens`: -1 for no limit; `stops`: texts before which it ends."""

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
            raise UsageError("a stop text is empty", "give the text that an answer is to end before")


@dataclass(frozen=True)
class Constraints:
    """What a model demands of steps, by itself or if the text is to be exact (`strict_settings`).

    `max_rollback`: drafted tokens that the model can take back after a step, -1 for any number and trees; otherwise one
    chain of at most this length is drafted. `ordered`: cells lie in the order of their sequence. `min_outputs`: rows of
    a step whose logits are computed, at least.
    """

    max_rollback: int = -1
    ordered: bool = False
    min_outputs: int = 1


@dataclass(frozen=True)
class DecodeSettings:
    """How tokens are drafted and verified; the defaults are the paper's for a 7B model.

    `window`, `ngram`, `guesses`: the paper's W, N and G. `pool_prompt`: n-grams of the text enter the pool too. Mode
    jacobi (Algorithm 1) has a block of `window` drafted tokens and starts a new one after `jacobi_iterations`. Mode
    lookup (Table 3, row 2) matches the sequence's last `lookup_match` tokens and drafts `lookup_draft`. Mode auto
    takes steps of at most `auto_rows` rows, and a sequence has at most `leaves` branches in a step.
    `strict`: the text does not depend on the rows of the steps. `constraints`: no user's choice, but the model's.
    """

    mode: ModeName = option("auto", "How to draft: " + ", ".join(MODES) + ".", metavar="MODE")
    window: int = option(15, "Columns of the window, for cheap rows.", "-W", "--window", least=0)
    ngram: int = option(5, "Tokens of an n-gram.", "-N", "--ngram", least=2)
    guesses: int = option(15, "Limit a step to this many n-grams.", "-G", "--guesses", least=0)
    pool_prompt: bool = True
    jacobi_iterations: int = option(16, "Limit a block of mode jacobi to this many steps.", least=1)
    lookup_match: int = option(2, "Limit the match of mode lookup to this many tokens.", least=1)
    lookup_draft: int = option(10, "Tokens that mode lookup drafts in a step.", least=1)
    auto_rows: int = option(64, "Limit a step of mode auto to this many rows.", least=1, most=MAX_SEQUENCES)
    leaves: int = option(48, "", least=1)  # each takes an id, and llama.cpp's buffers grow with ids
    strict: bool = option(False, "Give exactly the same text in every mode: slower, CPU only.")
    constraints: Constraints = Constraints()

    def __post_init__(self) -> None:
        check_options(self)
        if self.ids > MAX_SEQUENCES:
            fits = MAX_SEQUENCES - 1
            hint = f"W + G of at most {fits} fits, for example -W {fits // 2} -G {fits - fits // 2}"
            raise UsageError(f"W + G + 1 = {self.ids} sequences, and llama.cpp has {MAX_SEQUENCES}", hint)

    @property
    def ids(self) -> int:
        """Sequence ids a context needs for this mode: W + G + 1 in lookahead, one for chains."""
        if self.mode == "lookahead":
            return self.window + self.guesses + 1
        return self.leaves + 1 if self.mode == "auto" and self.constraints.max_rollback < 0 else 1

    def constrained(self, **constraints: Any) -> DecodeSettings:
        """Return the settings with other `constraints`, fields of Constraints."""
        return replace(self, constraints=replace(self.constraints, **constraints))

    def for_slots(self, count: int) -> DecodeSettings:
        """Return the settings of each of `count` sequences that share a context.

        In mode auto they share its sequence ids. Raises UsageError if they need more than llama.cpp has.
        """
        if count == 1:
            return self
        chosen, others = self, ", and so does mode auto"
        if self.mode == "auto":
            # One id a sequence is left for an idle slot.
            leaves = max(min(self.leaves, MAX_SEQUENCES // count - 2), 1)
            chosen, others = replace(self, leaves=leaves), ""
        if (needed := count * chosen.ids) > MAX_SEQUENCES:
            what = f"{count} texts at a time with {chosen.ids} sequences each are {needed}"
            hint = f"--parallel {MAX_SEQUENCES // chosen.ids} fits{others}"
            raise UsageError(f"{what}, and llama.cpp has {MAX_SEQUENCES}", hint)
        return chosen

    @property
    def deepest(self) -> int:
        """Most drafted tokens that a lookahead step can accept: a candidate's, or the window's last column's.

        A column's tokens count if other paths through them have their choices read.
        """
        return max(self.ngram - 1, self.window + self.ngram - 3)

    @property
    def linear_draft(self) -> int:
        """Most drafted tokens of a step in the modes of one chain; a mode without an entry drafts none."""
        most = {"jacobi": self.window, "lookup": self.lookup_draft}.get(self.mode, 0)
        return most if self.constraints.max_rollback < 0 else min(most, self.constraints.max_rollback)

    @property
    def _auto_rows(self) -> int:
        back = self.constraints.max_rollback
        return self.auto_rows if back < 0 else min(self.auto_rows, 1 + back)

    @property
    def max_step_tokens(self) -> int:
        """Most tokens that a step can bring: the drafted ones that can be accepted, and the model's own."""
        if self.mode == "auto":
            return self._auto_rows
        return 1 + (self.deepest if self.mode == "lookahead" else self.linear_draft)

    @property
    def max_rows(self) -> int:
        """Rows of the largest step, before prefixes are shared."""
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
        """Rows of the largest step whose choice is read."""
        if self.mode == "auto":
            return max(self._auto_rows, self.constraints.min_outputs)
        if self.mode != "lookahead":
            return self.max_rows
        return 1 + max(self.window + self.guesses * (self.ngram - 1), self.constraints.min_outputs - 1)


def window_rows(columns: int, ngram: int) -> int:
    """Rows that a window of `columns` adds to a step, the input not counted: (N-1) columns - 1."""
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
    """Make settings from a preset and from what was chosen besides, which wins; None was not chosen.

    W, N or G, or a preset of them, without a mode means lookahead.
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
    """Return the settings that a model can decode with, and notes on what that changes.

    `chain_only`: why the model takes no trees, or ''. `max_rollback`: drafted tokens that it can take back.
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
    # One mode is the same as itself, so nothing has to be done for it, and a second row could not be forgotten.
    return replace(settings, mode="plain").constrained(ordered=False, min_outputs=1), notes
