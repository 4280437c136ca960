"""How tokens that were accepted in parallel are marked: a colour for each place that guesses come from.

Numbers of the 16 colours that every terminal has. What is written with them is `ui.py`'s affair.
"""

from __future__ import annotations

from lacli.tree import Origin

COLORS: dict[Origin, int] = {
    Origin.SUFFIX: 2,
    Origin.RECYCLING: 5,
    Origin.POOL: 6,
    Origin.WINDOW: 3,
    Origin.STORE: 1,
    Origin.CHAIN: 12,
}
"""Green, magenta, cyan, yellow, red and bright blue; the model's own tokens have none.

Terminals choose 1 to 6 to be read on their own background, but blue is too dark on a black one.
"""


def code(origin: Origin) -> str:
    """The terminal's code for a token that was guessed there, "" for the model's own."""
    number = COLORS.get(origin)
    if number is None:
        return ""
    return str(30 + number if number < 8 else 82 + number)
