"""Where the end of a text has occurred before: an index of short runs of tokens that grows and shrinks with the text.

Token ids only. What is drafted from an earlier occurrence is the mode's affair (`modes.py`). Mode auto has an index of
its own (`auto/suffix.py`): it follows one match of any length in the same small time a token. This one is mode
lookup's, whose fixed rule is the paper's baseline and transformers' prompt lookup, and is exact about its longest match
up to a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

Run = tuple[int, ...]


class SuffixIndex:
    """For each run of at most `longest` tokens the end of its most recent occurrence before the text's last token.

    The last token's own runs stay out: they would match themselves. Cutting the text back gives the very index that
    the shorter text has, since what each entry replaced is kept.

    >>> index = SuffixIndex(longest=2)
    >>> index.extend([7, 1, 2, 7, 1])
    >>> index.continuation([7, 1, 2, 7, 1])
    2
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._end: dict[Run, int] = {}
        # What the entries of the runs that end at 1, 2, .. were before.
        self._replaced: list[list[tuple[Run, int | None]]] = []

    def extend(self, text: Sequence[int]) -> None:
        """Take in the tokens that came since the last call."""
        for end in range(len(self._replaced) + 1, len(text)):
            replaced: list[tuple[Run, int | None]] = []
            self._replaced.append(replaced)
            for length in range(1, min(self._longest, end) + 1):
                run = tuple(text[end - length : end])
                replaced.append((run, self._end.get(run)))
                self._end[run] = end

    def truncate(self, length: int) -> None:
        """Forget the tokens of the text after its first `length`."""
        while len(self._replaced) >= max(length, 1):
            for run, end in self._replaced.pop():
                if end is None:
                    # An interrupt may have come before it was entered.
                    self._end.pop(run, None)
                else:
                    self._end[run] = end

    def continuation(self, text: Sequence[int]) -> int | None:
        """The index in the text just after the most recent occurrence of its longest known end, None without one."""
        for length in range(min(self._longest, len(text)), 0, -1):
            found = self._end.get(tuple(text[-length:]))
            if found is not None:
                return found
        return None
