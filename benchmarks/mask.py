"""Draw one full lookahead step: the part of each row, and the rows that it sees.

    python -m benchmarks.mask -W 5 -N 4 -G 2

The drawing uses the decoding code and needs no model. I: the input, V: candidates to verify, L: the window.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass, replace

from lacli.modes import Lookahead
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.text.format import align_columns, counted
from lacli.tree import Tree

INPUT = 2**30
"""The input token. The window's tokens are below it, the candidates' tokens above."""


@dataclass(frozen=True)
class Row:
    """One row of the batch: I, V or L. `position`: relative to the input. `logits`: whether its choice is read."""

    kind: str
    part: str
    position: int
    logits: bool
    ids: tuple[int, ...]

    def sees(self, other: Row) -> bool:
        """Whether this row sees another row, by llama.cpp's mask for a unified cache."""
        return other.position <= self.position and not set(self.ids).isdisjoint(other.ids)


def rows_of(settings: DecodeSettings) -> list[Row]:
    """Return the rows of a step with a full window and G candidates.

    Id 0 belongs to the sequence, ids 1 to W to the window's columns, and the next G ids to the candidates.
    """
    tree, rows = full_step(settings), list[Row]()
    for position, logits, ids in zip(tree.depths, tree.verified, tree.ids, strict=True):
        candidates, column = sorted(each - settings.window for each in ids if each > settings.window), min(ids) - 1
        if 0 in ids:
            kind, part = "I", "input"
        elif candidates:
            kind, part = "V", f"candidate{'s' if candidates[1:] else ''} {', '.join(map(str, candidates))}"
        else:
            kind, part = "L", f"window row {position - column}, column {column}"
        rows.append(Row(kind, part, position, logits, tuple(sorted(ids))))
    return rows


def full_step(settings: DecodeSettings) -> Tree:
    """Return mode lookahead's tree with G n-grams for the input in its pool. The token ids are arbitrary."""
    settings = replace(settings, mode="lookahead", pool_prompt=False)
    pool = NgramPool(settings.ngram, settings.guesses)
    mode = Lookahead(settings, pool, lambda token: False)
    mode.begin(range(INPUT + 1))
    for candidate in reversed(range(settings.guesses)):
        first = INPUT + 1 + candidate * settings.ngram
        pool.insert(INPUT, tuple(range(first, first + settings.ngram - 1)))
    return mode.grow([INPUT], settings.max_rows)


def drawn(rows: list[Row], settings: DecodeSettings) -> list[str]:
    """Return the rows, the mask and the sizes, as lines."""
    header, cells = ["row", "kind", "part", "position", "logits", "sequences"], []
    picture = [f"{'':6}{''.join(row.kind for row in rows)}"]
    for index, row in enumerate(rows):
        sequences = ", ".join(map(str, row.ids))
        cells.append([str(index), row.kind, row.part, str(row.position), "yes" if row.logits else "no", sequences])
        picture.append(f"{index:>3} {row.kind} {''.join('■' if row.sees(other) else '·' for other in rows)}")
    sizes = f"W={settings.window} N={settings.ngram} G={settings.guesses}: {counted(len(rows), 'row')}"
    last = f"{sizes}, {counted(sum(row.logits for row in rows), 'output')}, {settings.ids} sequences (W + G + 1)."
    past = "Every row also sees all tokens before the input."
    return [*align_columns(header, cells), "", *picture, "", last, past]


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    for flag, size in (("-W", 5), ("-N", 4), ("-G", 2)):
        parser.add_argument(flag, type=int, default=size)
    sizes = parser.parse_args()
    settings = DecodeSettings(mode="lookahead", window=sizes.W, ngram=sizes.N, guesses=sizes.G)
    print("\n".join(drawn(rows_of(settings), settings)))


if __name__ == "__main__":
    main()
