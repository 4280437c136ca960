"""`python -m benchmarks.pictures sweep|cost|mask PICTURE`: what lacli has measured or would decode, as a picture."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from benchmarks.commands import Picture, Rows, read_json, run
from benchmarks.insight.law import fit, sweep_points, tied
from benchmarks.pictures.figure import save
from benchmarks.pictures.mask import MOST_DRAWN, mask_picture
from benchmarks.pictures.panels import Staircase, compression, stairs
from lacli.cli.lookahead_options import Guesses, Ngram, Window
from lacli.cli.mask import Order, mask_of, sizes
from lacli.errors import LacliError, UsageError
from lacli.settings import decode_settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Json = Annotated[str, typer.Argument(metavar="FILE", help="What `lacli cost --json` has printed; - is stdin.")]


@app.command()
def sweep(picture: Picture, file: Rows = "-") -> None:
    """Draw S against the rows of a step, a line per N, with the paper's law (its Figure 4)."""
    rows = read_json(file)
    points = sweep_points(rows)
    panel = partial(compression, points=points, law=fit(tied(points)))
    save(picture, [panel], title=f"Sweep: {rows[0]['model_type']}", caption=rows[0]["gpu_info"] or rows[0]["cpu_info"])


@app.command()
def cost(picture: Picture, file: Json = "-") -> None:
    """Draw what a step of b rows costs in plain steps, a line for each length of context."""
    found = read_json(file)
    try:
        lines = [
            Staircase(f"{each['context']} tokens of context", list(zip(each["rows"], each["relative"], strict=True)))
            for each in found["staircases"]
        ]
        title, devices = f"Cost of rows: {found['description']}", found["devices"]
    except (KeyError, TypeError, ValueError) as error:
        raise LacliError("these are no costs of rows", "lacli cost --json prints them") from error
    if not lines:
        raise LacliError("nothing was measured, so there is nothing to draw", "lacli cost says why")
    save(picture, [partial(stairs, staircases=lines)], title=title, caption=devices)


@app.command()
def mask(
    picture: Picture,
    window: Window = None,
    ngram: Ngram = None,
    guesses: Guesses = None,
    order: Order = "batch",
) -> None:
    """Draw which rows of one full lookahead step see which, as `lacli mask` prints it (the paper's Figure 2 (b))."""
    drawn = mask_of(decode_settings(mode="lookahead", window=window, ngram=ngram, guesses=guesses), order)
    if len(drawn.rows) > MOST_DRAWN:
        raise UsageError(f"a picture of {len(drawn.rows)} rows cannot be read", f"{MOST_DRAWN} rows can be drawn")
    save(picture, [partial(mask_picture, mask=drawn)], caption=sizes(drawn))


if __name__ == "__main__":
    run(app)
