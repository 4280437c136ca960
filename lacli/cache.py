"""Which tokens the cache holds for which sequences, and the engine that decodes a text's steps into it.

All sequence calls of a decode go through `Cache`, each limited to the positions it is about: an unlimited one walks
the cache's per-sequence bookkeeping and costs milliseconds at a few thousand tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter

from lacli.batch import Batch, BatchPart, from_tokens
from lacli.context import Context, EngineGroup, Floats, Read, Successors, unread
from lacli.tree import ROOT, Branches

ALL = -1
"""As a sequence: every one. As an end: to the end."""


class Cache:
    """The tokens 0 .. past-1 of a text in its own sequence, and how far its other sequences share them.

    `past`: tokens held; the next input goes to this position. `cells`: tokens that the text may have. `first`: the id
    of the text's own sequence. `seconds`: time spent in sequence calls. After the prefill a sequence is brought up to
    date when a tree next uses it, not before: idle ones cost nothing.
    """

    def __init__(self, engine: Context, sequences: range | None = None, cells: int | None = None) -> None:
        """`sequences`: the ids that belong to the text, its own first; all of the engine's by default.

        Trees count them from 0, and only the calls of the engine know where they begin. `cells`: tokens that the text
        may have, by default as many as the engine has cells.
        """
        self._engine = engine
        self.cells = engine.cells if cells is None else cells
        self._sequences = sequences or range(engine.sequences)
        self.first = self._sequences.start
        self._owns_all = self._sequences == range(engine.sequences)
        self.past = 0
        self.seconds = 0.0
        self._shared = [0] * len(self._sequences)

    @property
    def room(self) -> int:
        """Rows that the next step may have."""
        return min(self.cells - self.past, self._engine.batch_rows)

    def prefill(self, tokens: Sequence[int], read: Read = unread) -> None:
        """Decode tokens in batches, without logits. `read`: gets the number of those decoded, after each batch."""
        rows = min(self._engine.batch_rows, self._engine.prefill_rows)
        for begin in range(0, len(tokens), rows):
            piece = tokens[begin : begin + rows]
            fits = self._engine.decode(from_tokens(piece, self.past, self.first))
            assert fits, "the caller checks the prompt against the context"
            self.past += len(piece)
            read(begin + len(piece))

    def share(self, tree: Branches) -> None:
        """Give every sequence of a tree what the text's own holds, before the tree is decoded."""
        if len(tree.sequences[ROOT]) > 1:
            begin = perf_counter()
            self._share(tree.sequences[ROOT][1:])
            self.seconds += perf_counter() - begin

    def commit(self, tree: Branches, nodes: Sequence[int], again: int = 0) -> None:
        """After a decode, hold the input and the accepted `nodes`, and nothing else of the tree.

        `again`: tokens that were decoded before the input, to be held as well.
        """
        start = self.past + again + 1
        self.past = end = start + len(nodes)
        others = tree.sequences[ROOT][1:]
        if len(tree.tokens) == 1 + len(nodes) and not others:
            return
        begin = perf_counter()
        owner = tree.sequences[nodes[-1]][0] if nodes else 0
        if owner:
            self._engine.copy(self.first + owner, self.first, start, end)
            for sequence in others:
                self._engine.remove(self.first + sequence, start, ALL)
        else:
            # The path is a chain in the text's own sequence, or there is none: what follows it goes.
            gone = self._remove_from(end, [0, *others])
            assert gone, "a step has no more guesses than the model can take back"
        for sequence in others:
            self._shared[sequence] = start
        self.seconds += perf_counter() - begin

    def truncate(self, length: int) -> bool:
        """Cut all sequences back to the first `length` tokens; False where the model cannot forget a part."""
        # First what is believed, then the cells: an interrupt in between is mended by cutting again.
        before = self.past
        length = self.past = min(length, before)
        self._shared = [min(shared, length) for shared in self._shared]
        if not self._remove_from(length):
            self.past = before
            return False
        return True

    def grow(self, past: int) -> None:
        """Hold on to the tokens up to `past`, which are decoded."""
        self.past = past

    def share_with(self, other: Cache, length: int) -> None:
        """Share the cells of the first `length` tokens of another text of the engine; nothing is held before."""
        self._engine.copy(other.first, self.first, 0, length)
        self.past = length

    def unshare(self) -> None:
        """Take everything from the sequences but the first; each gets it again when it is next used."""
        self._shared = [0] * len(self._sequences)
        for sequence in self._sequences[1:]:
            self._engine.remove(sequence, 0, ALL)

    def clear(self) -> None:
        """Forget everything."""
        self.past = 0
        self._shared = [0] * len(self._sequences)
        if self._owns_all:
            self._engine.clear()
        else:
            self._remove_from(0)

    def _remove_from(self, position: int, used: Iterable[int] | None = None) -> bool:
        """Take the positions from `position` on from all sequences; False where the model cannot.

        `used`: the sequences that may hold any, all by default. Among other texts each one costs a walk over all cells.
        """
        # A recurrent model has one sequence a text and does not know -1.
        if self._owns_all and len(self._sequences) > 1:
            return self._engine.remove(ALL, position, ALL)
        sequences = self._sequences if used is None else [self.first + each for each in used]
        return all([self._engine.remove(sequence, position, ALL) for sequence in sequences])

    def _share(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            if self._shared[sequence] < self.past:
                self._engine.copy(self.first, self.first + sequence, self._shared[sequence], self.past)
                self._shared[sequence] = self.past


class EngineStep:
    """One batch of an engine at a time, for the texts whose rows it holds, and what the model chose after each row.

    `decode_s`, `choose_s`: seconds that decoding the last batch and reading its choices took.
    """

    def __init__(self, engine: Context) -> None:
        self.engine = engine
        self.batch = Batch(engine.batch_rows)
        self.decode_s = self.choose_s = 0.0
        self._successors: dict[int, Successors] = {}

    def run(self, texts: Sequence[SingleEngine]) -> bool:
        """Decode what the `texts` have prepared, and read its choices; False, with nothing changed, for want of cells.

        Raises what the engine raises.
        """
        begin = perf_counter()
        if not self.engine.decode(self.batch.set_parts([text.part for text in texts])):
            return False
        decoded = perf_counter()
        choices = self.engine.greedy().tolist() if self.batch.wanted else []
        place = 0
        for text in texts:
            text.first_output = place
            # A text alone has them all.
            text.output_choices = choices[place : place + text.outputs] if len(texts) > 1 else choices
            place += len(text.output_choices)
        self._successors = {}
        self.choose_s = perf_counter() - decoded
        self.decode_s = decoded - begin
        return True

    def successors(self, count: int) -> Successors:
        """The `count` most probable tokens after each output row of the batch; ranked once for all its texts."""
        if count not in self._successors:
            self._successors[count] = self.engine.successors(count)
        return self._successors[count]


class SingleEngine(EngineGroup):
    """One engine as a text sees it: the text's cells, its rows of a step, and what came of them.

    `part`: the rows that the text has prepared. `first_output`: where their output rows begin in the last batch.
    `output_choices`: the most probable token after each of them.
    """

    def __init__(
        self, engine: Context, sequences: range | None = None, step: EngineStep | None = None, cells: int | None = None
    ) -> None:
        """`sequences`, `cells`: as `Cache` takes them. `step`: shared by the texts of one engine, or one of its own."""
        self._engine = engine
        self.cache = Cache(engine, sequences, cells)
        self.step = step or EngineStep(engine)
        self.part = BatchPart(None, 0)
        self.first_output = 0
        self.output_choices: list[int] = []

    @property
    def engine(self) -> Context:
        return self._engine

    @property
    def past(self) -> int:
        return self.cache.past

    @property
    def cells(self) -> int:
        return self.cache.cells

    @property
    def cache_s(self) -> float:
        return self.cache.seconds

    @property
    def rows(self) -> int:
        return self.step.batch.rows

    @property
    def times(self) -> tuple[float, float]:
        return self.step.decode_s, self.step.choose_s

    @property
    def outputs(self) -> int:
        """Rows of the text in the batch whose choice is read."""
        return sum(self.part.tree.verified) if self.part.tree else 0

    def rows_beside(self, tokens: Sequence[int]) -> int:
        """Rows that the next batch has left beside the tokens that the cache lacks."""
        cache = self.cache
        return cache.room - (len(tokens) - 1 - cache.past)

    def room(self, tokens: Sequence[int]) -> int:
        rows = self.rows_beside(tokens)
        # What fills a batch alone is decoded before the step.
        return rows if rows > 0 else min(self._engine.batch_rows, self.cache.cells - (len(tokens) - 1))

    def prefill(self, tokens: Sequence[int], read: Read = unread, *, all_replicas: bool = True) -> float:
        begin = perf_counter()
        self.cache.prefill(tokens[self.cache.past :], read)
        return perf_counter() - begin

    def decode(self, tokens: Sequence[int], tree: Branches) -> bool:
        rows = len(tree.tokens)
        if self.rows_beside(tokens) < rows:
            self.prefill(tokens[:-1])
            if self.rows_beside(tokens) < rows:
                return False
        self.prepare(tokens, tree)
        return self.step.run([self])

    def prepare(self, tokens: Sequence[int], branches: Branches) -> None:
        """Make rows of what the cache lacks of a text and of its step."""
        cache = self.cache
        cache.share(branches)
        self.part = BatchPart(branches, cache.past, tokens[cache.past : -1], cache.first)

    def prepare_prompt(self, tokens: Sequence[int], rows: int) -> None:
        """Make rows of the next `rows` tokens that the cache lacks, without logits."""
        past = self.cache.past
        self.part = BatchPart(None, past, tokens[past : past + rows], self.cache.first)

    def commit_prompt(self) -> None:
        """Hold on to the tokens of a prompt that were decoded."""
        self.cache.grow(self.cache.past + len(self.part.again))

    def choices(self) -> Mapping[int, int]:
        return dict(zip(self._outputs(), self.output_choices, strict=True))

    def logits(self) -> Callable[[int], Floats]:
        rows = {node: row for row, node in enumerate(self._outputs(), start=self.first_output)}
        return lambda node: self._engine.row_logits(rows[node])

    def successors(self, count: int) -> Successors:
        found, end = self.step.successors(count), self.first_output + len(self.output_choices)
        return Successors(found.tokens[self.first_output : end], found.logits[self.first_output : end])

    def commit(self, nodes: Sequence[int], *, ordered: bool) -> None:
        if ordered:
            nodes = [row for place, row in enumerate(nodes, start=1) if row == place]
        tree, _, again, _ = self.part
        assert tree is not None, "a step was decoded"
        self.cache.commit(tree, nodes, len(again))

    def cut(self, length: int) -> None:
        if not self.cache.truncate(length):
            self.cache.clear()

    def clear(self) -> None:
        self.cache.clear()

    def unshare(self) -> None:
        self.cache.unshare()

    def _outputs(self) -> list[int]:
        assert self.part.tree is not None, "a step was decoded"
        return [node for node, wanted in enumerate(self.part.tree.verified) if wanted]
