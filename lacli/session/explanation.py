"""--explain: a line for each step of an answer, with what was guessed, why, and what came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lacli.stats import Plan, Step
from lacli.text.format import counted

SHOWN_CHARACTERS = 48
"""Characters of a step's text that its line shows."""


class Explanation:
    """A line a step of an answer; equal steps without guesses that follow each other share a line."""

    def __init__(self, say: Callable[[str], None], *, planned: bool, wait: bool = False) -> None:
        """`say`: takes a line. `planned`: whether the mode plans its steps, as auto does.

        `wait`: keep all lines until `end`, since the answer appears in the same place.
        """
        self._say = say
        self._planned = planned
        self._wait = wait
        self._lines: list[str] = []
        self._steps: list[Step] = []
        self._text = ""
        self._told = 0
        self._plain = 0.0

    def add(self, step: Step, text: str) -> None:
        """Take in a step and the text of its tokens."""
        if self._steps and _kind(step) != _kind(self._steps[0]):
            self._tell()
        self._steps.append(step)
        self._text += text
        if step.guesses:
            self._tell()

    def end(self) -> None:
        """Say what is left: the answer is complete, or was broken off."""
        self._tell()
        for line in self._lines:
            self._say(line)
        self._lines.clear()

    def _tell(self) -> None:
        """Say the line of the steps that have none yet."""
        if not self._steps:
            return
        if not self._told:
            unit = " (1x: plain)" if self._planned else ""
            self._line("step", "rows", "expected", "came", f"accepted/guessed{unit}")
        first, last = self._told + 1, self._told + len(self._steps)
        step = self._steps[0]
        self._line(
            str(first) if first == last else f"{first}-{last}",
            str(step.rows),
            _expected(step.plan) if step.plan and step.rows > 1 else "",
            self._came(),
            f"{_guessed(self._steps)}  {_shortened(self._text)}",
        )
        self._told = last
        self._steps, self._text = [], ""

    def _came(self) -> str:
        """The tokens of the waiting steps and their time, in plain steps once known, else in milliseconds."""
        tokens = sum(len(step.tokens) for step in self._steps)
        seconds = sum(step.seconds for step in self._steps)
        plan = self._steps[0].plan
        self._plain = plan.plain if plan and plan.plain > 0 else self._plain
        return f"{tokens} in {seconds / self._plain:.2f}x" if self._plain else f"{tokens} in {seconds * 1e3:.1f} ms"

    def _line(self, step: str, rows: str, expected: str, came: str, words: str) -> None:
        middle = f"{expected:12}  {came:12}" if self._planned else f"{came:12}"
        line = f"{step:>7}  {rows:>4}  {middle}  {words}"
        if self._wait:
            self._lines.append(line)
        else:
            self._say(line)


def _kind(step: Step) -> tuple[bool, int, str]:
    """What two steps without guesses must have in common to share a line."""
    return bool(step.guesses), step.rows, step.plan.reason if step.plan else ""


def _expected(plan: Plan) -> str:
    return f"{plan.tokens:.1f} in {plan.seconds / plan.plain:.2f}x" if plan.plain > 0 else f"{plan.tokens:.1f}"


def _guessed(steps: list[Step]) -> str:
    """The accepted and all guesses of each source, and the reason for the number of rows."""
    step = steps[0]
    accepted = Counter(step.origins)
    sources = [f"{origin.value} {accepted[origin]}/{count}" for origin, count in Counter(step.guesses).most_common()]
    if not sources:
        sources = [counted(len(steps), "plain step") if step.rows == 1 else "none"]
    reason = f": {step.plan.reason}" if step.plan and step.plan.reason else ""
    return ", ".join(sources) + reason


def _shortened(text: str) -> str:
    """A text in quotes, in one line and without control codes."""
    shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."
    return repr(shown)


def watching(
    explanation: Explanation | None, tell: Callable[[], None] | None, count: Callable[[int], None] | None = None
) -> Callable[[Step, str], None] | None:
    """Combine the per-step callbacks; None if there are none, as a step's text is made anew for each of them.

    `count`: gets the number of a step's tokens.
    """
    if not (explanation or tell or count):
        return None

    def watch(step: Step, text: str) -> None:
        if explanation:
            explanation.add(step, text)
        if tell:
            tell()
        if count:
            count(len(step.tokens))

    return watch
