"""One step of the paper for all sequences that take it: grow trees, decode them in one batch, verify, commit, learn.

Token ids in, steps out. It knows a context, modes and verifiers, but neither llama.cpp nor text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from lacli.batch import Batch, BatchPart
from lacli.context import Context, Floats
from lacli.engine.cells import Cells
from lacli.errors import SamplingError
from lacli.modes import Growing, Mode, Outcome
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.tree import Origin, Tree
from lacli.verify import Path, Verifier, verify_tree

Score = Callable[[int, int, Floats], None]
"""Takes the index of a prompt's token, the token, and the logits before it."""


@dataclass(eq=False)
class TokenSequence:
    """A sequence in progress: its tokens, and the objects that draft, choose and store them.

    `tokens`: the prompt's and the accepted ones. The last is the next step's input; the cache has the others, except
    tokens that have to be decoded again. `prefill`: tokens that the cache needs before the first step. `verifier`:
    draws tokens, None for greedy decoding. `remaining`: tokens it may still get, None for no limit. `has_cells`: False
    while it waits for them. `reused`: prompt tokens in the cache when it first got cells, None before. `prompt_s`:
    seconds from `added`, a time of `perf_counter`, to its first step. `finish`: why it has ended, None while it goes
    on. `is_suspect`: it shared the cache in a step without numbers. `score`: of a prompt to be scored, None for others.
    """

    tokens: list[int]
    mode: Mode
    cells: Cells
    prefill: int
    verifier: Verifier | None = None
    remaining: int | None = None
    has_cells: bool = False
    reused: int | None = None
    prompt_s: float = 0.0
    finish: Finish | None = None
    added: float = 0.0
    is_suspect: bool = False
    score: Score | None = None

    @property
    def missing(self) -> int:
        """Tokens before the input that the cache lacks."""
        return len(self.tokens) - 1 - self.cells.past

    @property
    def is_prefilled(self) -> bool:
        """Whether the cache has enough tokens for the next step."""
        return self.cells.past >= self.prefill


class Chunk(NamedTuple):
    """The next `rows` tokens of a sequence's prompt that a step decodes."""

    sequence: TokenSequence
    rows: int


class Stepper:
    """Takes the steps of a context's sequences.

    Settings of --strict: `ordered`, for cells in the order of the sequence, and `min_outputs`, the least rows of logits
    of a step.
    """

    def __init__(self, context: Context, settings: DecodeSettings) -> None:
        self.settings = settings
        self._context = context
        self._batch = Batch(context.batch_rows)
        self._decode_s = self._choose_s = 0.0
        # When a step began, seconds of sequence calls before it, and seconds that no later step takes.
        self._begin = self._cache_before = self._shared_s = 0.0
        # The most probable token after each output row of the last batch.
        self._choices: list[int] = []

    def room(self, sequence: TokenSequence) -> int:
        """Most rows of the next step's tree, without the rows that pad it to `min_outputs`."""
        return sequence.cells.room(sequence.tokens) - (self.settings.constraints.min_outputs - 1)

    def take(self, ready: Sequence[TokenSequence], chunks: Sequence[Chunk] = ()) -> list[Step | SamplingError] | None:
        """Take one step of all `ready` sequences, with prompt chunks of others, in one batch.

        Returns None if not even one row of each finds a cell. If a sampler has nothing left to choose from, its
        sequence gets the error and keeps its earlier tokens.
        """
        parts = [each.cells.lay_out_prompt(each.tokens, rows, scored=bool(each.score)) for each, rows in chunks]
        self._begin, self._cache_before = perf_counter(), sum([each.cells.seconds for each in ready])
        trees = self._decode(ready, parts) if ready else [] if self._run(parts) else None
        if trees is None:
            return None
        first, taken = 0, list[Step | SamplingError]()
        for each, rows in chunks:
            if score := each.score:
                for index in range(each.cells.past + 1, each.cells.past + 1 + rows):
                    score(index, each.tokens[index], self._context.row_logits(first))
                    first += 1
            each.cells.commit_prompt()
        # Ids that catch up with a long sequence do so once: no step costs that again.
        self._shared_s = sum([each.cells.seconds for each in ready]) - self._cache_before
        for sequence, tree in zip(ready, trees, strict=True):
            taken.append(self._accept(sequence, tree, first, ready))
            first += sum(tree.verified)
        return taken

    def _decode(self, ready: Sequence[TokenSequence], chunks: Sequence[BatchPart]) -> list[Tree] | None:
        """Grow and decode a tree of each sequence, half as large each time too few cells are free."""
        least, is_alone = self.settings.constraints.min_outputs, len(ready) == 1 and not chunks
        rooms, left, other_rows = [self.room(each) for each in ready], 0, 0
        if not is_alone:
            other_rows = sum([each.missing for each in ready]) + sum([len(chunk.uncached) for chunk in chunks])
            left = self._context.batch_rows - other_rows
            if left < len(ready):
                return None
        while min(rooms) > 0:
            first = ready[0]
            if is_alone:
                trees = [first.mode.grow(first.tokens, rooms[0])]
            else:
                growing = [Growing(each.mode, each.tokens, room) for each, room in zip(ready, rooms, strict=True)]
                trees = first.mode.grow_all(growing, left, other_rows)
            if len(trees) < least and sum(map(len, trees)) < least:
                # A second row, since single rows have a kernel of their own.
                trees[0].pad()
            parts = [*chunks]
            for sequence, tree in zip(ready, trees, strict=True):
                parts.append(sequence.cells.lay_out_step(sequence.tokens, tree))
            if self._run(parts):
                return trees
            # A row that pads a tree is outside the room.
            sizes = [min(len(tree), room) for tree, room in zip(trees, rooms, strict=True)]
            if max(sizes) == 1:
                return None
            rooms = [max(size // 2, 1) for size in sizes]
        return None

    def _run(self, parts: Sequence[BatchPart]) -> bool:
        """Decode a batch and read its choices; False, with nothing changed, if too few cells are free."""
        begin = perf_counter()
        if not self._context.decode(self._batch.set_parts(parts)):
            return False
        decoded = perf_counter()
        self._choices = self._context.greedy().tolist() if self._batch.wanted else []
        self._decode_s, self._choose_s = decoded - begin, perf_counter() - decoded
        return True

    def _accept(
        self, sequence: TokenSequence, tree: Tree, first: int, ready: Sequence[TokenSequence]
    ) -> Step | SamplingError:
        """Verify a decoded tree, commit the accepted tokens, and return the step.

        `first`: the batch's output row of the tree's input. `ready`: all sequences of the step; the time of each lasts
        until it is verified. A sampler without candidates gives an error instead of a step.
        """
        begin, cells = perf_counter(), sequence.cells
        outputs = [node for node, wanted in enumerate(tree.verified) if wanted]
        choices = dict(zip(outputs, self._choices[first : first + len(outputs)], strict=True))
        try:
            path = self._verify(sequence, tree, choices, first)
        except SamplingError as error:
            cells.cut(cells.past)
            # Its frames would keep the context as long as somebody keeps the error.
            return error.with_traceback(None)
        self._choose_s += perf_counter() - begin
        rows = sequence.missing + len(tree) if len(ready) == 1 else self._batch.rows
        cells.commit(path.nodes, ordered=self.settings.constraints.ordered)
        sequence.tokens += path.tokens
        if sequence.remaining is not None:
            sequence.remaining -= len(path.tokens)
        # Without the seconds that no later step takes.
        step_s = perf_counter() - self._begin - self._shared_s
        sequence.mode.observe(tree, Outcome(choices, path.nodes, rows, step_s))
        finish = path.finish
        if finish is None and self.room(sequence) <= 0:
            finish = "length"
        drafted = tree.reachable()
        cache_s = sum([each.cells.seconds for each in ready]) - self._cache_before
        known = self._decode_s + self._choose_s + cache_s
        return Step(
            tokens=tuple(path.tokens),
            origins=(*[tree.origins[node] for node in path.nodes], Origin.MODEL),
            rows=self._batch.rows,
            drafted=len(drafted),
            decode_s=self._decode_s,
            choose_s=self._choose_s,
            cache_s=cache_s,
            python_s=perf_counter() - self._begin - known,
            finish=finish,
            guesses=drafted,
        )

    def _verify(self, sequence: TokenSequence, tree: Tree, choices: Mapping[int, int], first: int) -> Path:
        """The accepted way down a tree that was just decoded. Raises SamplingError as `verify_tree`."""
        verifier, is_end, remaining = sequence.verifier, self._context.is_end, sequence.remaining

        def ends(token: int, count: int) -> Finish | None:
            if is_end(token):
                return "eog"
            return "length" if count == remaining else None

        if not verifier:
            return verify_tree(tree, choices.__getitem__, ends)
        rows = {node: row for row, node in enumerate(choices, start=first)}
        logits_of = self._context.row_logits
        return verify_tree(tree, lambda node: verifier.choose(logits_of(rows[node]), tree.guesses(node)), ends)
