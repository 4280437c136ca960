"""The chat's status line: how fast the last answer came and how full the context is, cut to the terminal's width.

Numbers in, one line out.
"""

from __future__ import annotations

SEPARATOR = " · "


def status_line(tokens_per_second: float | None, S: float | None, used: int, cells: int, mode: str, width: int) -> str:
    """One line of at most `width` columns; where they are few, what matters most stays.

    tokens_per_second and S (tokens a step) are the last answer's, None before the first one. used and cells: tokens.
    """
    percent = f"{100 * used // max(cells, 1)}%"
    speed = (
        [] if tokens_per_second is None else [f"{tokens_per_second:,.{0 if tokens_per_second >= 10 else 1}f} tokens/s"]
    )
    gain = [] if S is None else [f"S {S:.1f}"]
    context = f"context {percent}"
    forms = (
        [mode, *speed, *gain, f"context {used:,} of {cells:,} ({percent})"],
        [mode, *speed, *gain, context],
        [*speed, *gain, context],
        [*gain, context],
        [context],
        [percent],
    )
    lines = (SEPARATOR.join(form) for form in forms)
    return next((line for line in lines if len(line) <= width), "")
