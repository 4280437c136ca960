"""One step of several sequences: grow trees, decode them in one batch, verify them, commit the tokens, learn from them.

This module uses a context, modes and verifiers. It imports neither llama.cpp nor anything that makes text.
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
"""Takes a prompt token's index, the token, and the logits after the token before it."""


@dataclass(eq=False)
class TokenSequence:
    """A sequence in progress: its tokens, and the objects that draft, choose and store them.

    `tokens`: of the prompt, and the accepted tokens. The last is the next step's input. The cache has the tokens before
    it, except tokens that have to be decoded again. `prefill`: how many tokens the cache needs before the next step.
    `verifier`: chooses tokens, None for greedy decoding. `remaining`: how many tokens may still be added, None for no
    limit. `has_cells`: False until enough cells are free. `reused`: how many prompt tokens the cache had when the
    sequence first got cells, None before. `prompt_s`: seconds from `added` (by `perf_counter`) to the prefill's end.
    `finish`: why the sequence has ended, None before. `is_suspect`: whether it was in a step with a NumbersError.
    `score`: called for each prompt token but the first, None if there is nothing to score.
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
        """The number of tokens before the input that the cache lacks."""
        return len(self.tokens) - 1 - self.cells.past

    @property
    def is_prefilled(self) -> bool:
        """Whether the cache has enough tokens for the next step."""
        return self.cells.past >= self.prefill


class Chunk(NamedTuple):
    """A prompt chunk of a step: the next `rows` tokens of the sequence's prompt."""

    sequence: TokenSequence
    rows: int


class Stepper:
    """Takes the steps of a context's sequences, with the limits of `settings.constraints`."""

    def __init__(self, context: Context, settings: DecodeSettings) -> None:
        self.settings = settings
        self._context = context
        self._batch = Batch(context.batch_rows)
        self._decode_s = self._choose_s = 0.0
        # When a step began, the seconds of sequence calls before it, and the seconds that only this step takes.
        self._begin = self._cache_before = self._shared_s = 0.0
        self._choices: list[int] = []  # the most probable token after each output row of the last batch

    def room(self, sequence: TokenSequence) -> int:
        """Return the most rows of a sequence's next tree, without the rows that pad it to `min_outputs`."""
        return sequence.cells.room(sequence.tokens) - (self.settings.constraints.min_outputs - 1)

    def take(self, ready: Sequence[TokenSequence], chunks: Sequence[Chunk] = ()) -> list[Step | SamplingError] | None:
        """Take one step of all `ready` sequences, with prompt `chunks` of other sequences, in one batch.

        Returns a step for each `ready` sequence, or an error if its sampler has no token left to choose; this sequence
        does not change. Returns None if there are too few cells even without drafts.
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
        # The first tree with an id copies the whole sequence to the id; no later step does.
        self._shared_s = sum([each.cells.seconds for each in ready]) - self._cache_before
        for sequence, tree in zip(ready, trees, strict=True):
            taken.append(self._accept(sequence, tree, first, ready))
            first += sum(tree.verified)
        return taken

    def _decode(self, ready: Sequence[TokenSequence], chunks: Sequence[BatchPart]) -> list[Tree] | None:
        """Grow and decode trees, and return them; halve them while cells are too few. None if single rows fail too."""
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
            # Rows that pad a tree do not count.
            sizes = [min(len(tree), room) for tree, room in zip(trees, rooms, strict=True)]
            if max(sizes) == 1:
                return None
            rooms = [max(size // 2, 1) for size in sizes]
        return None

    def _run(self, parts: Sequence[BatchPart]) -> bool:
        """Decode a batch and read its choices; if too few cells are free, change nothing and return False."""
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
        """Verify a decoded tree, commit the accepted tokens, and return the step, or the error of its sampler.

        `first`: which output row of the batch is the tree's input. `ready`: all sequences of the step, for its times.
        """
        begin, cells = perf_counter(), sequence.cells
        outputs = [node for node, wanted in enumerate(tree.verified) if wanted]
        choices = dict(zip(outputs, self._choices[first : first + len(outputs)], strict=True))
        try:
            path = self._verify(sequence, tree, choices, first)
        except SamplingError as error:
            cells.cut(cells.past)
            # The frames of its traceback would keep the context alive as long as the error.
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
