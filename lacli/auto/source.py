"""What a source of guesses is: the interface that mode auto asks, and nothing of how one finds them.

Token ids and probabilities only. Which guesses become rows of a step is `planner.py`'s affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lacli.tree import Origin


class Guess(NamedTuple):
    """A token that may come next.

    probability: that the model chooses it, where everything above it was accepted. place: the source's own note of
    where it stands, which `after` gets back.
    """

    token: int
    probability: float
    place: int


class Source:
    """Guesses for one text after another, of which each may go on from the one before.

    everywhere: whether it has guesses behind those of other sources too.
    """

    origin: Origin
    everywhere = False

    def begin(self, text: Sequence[int]) -> None:
        """A generation begins behind a prompt; what is known of its beginning is known still."""
        self.extend(text)

    def truncate(self, text: Sequence[int], length: int) -> None:
        """The text, still whole here, is cut back to its first `length` tokens: forget what it taught behind them."""

    def extend(self, text: Sequence[int]) -> None:
        """Learn the tokens that were accepted since the last call, and how good the source's guess for each was."""

    def first(self, text: Sequence[int]) -> Sequence[Guess]:
        """Guesses for the token behind the text, best first."""
        raise NotImplementedError

    def after(self, guess: Guess) -> Sequence[Guess]:
        """What may follow one of the source's own guesses, best first."""
        raise NotImplementedError

    def anywhere(self, previous: int, token: int) -> Sequence[Guess]:
        """What may follow a token and the one before it, whoever guessed them, best first."""
        return ()
