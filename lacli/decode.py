"""The loop that all modes share: grow a tree, decode it, verify, keep what was accepted, learn.

Token ids in, steps out. It knows an Engine and a Verifier, not llama.cpp, and no text.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from statistics import median
from time import perf_counter

from lacli.batch import Batch
from lacli.cache import Cache
from lacli.engine import Engine
from lacli.errors import PromptError
from lacli.modes import Jacobi, Lookahead, Lookup, Mode, Plain
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.tree import Origin, Tree
from lacli.verify import Choose, Verifier, walk


class Decoder:
    """Generates with one engine in one mode; the pool lives as long as the decoder.

    text: the prompt's and the accepted tokens. The cache holds all of them but the last, which is the next step's
    input, and but those before it that have to be decoded again (strict.py).
    """

    def __init__(self, engine: Engine, settings: DecodeSettings, verifier: Verifier | None = None) -> None:
        """verifier: how tokens are sampled, or None to take the most probable ones."""
        assert settings.sequences <= engine.sequences, "the context was made for fewer sequences"
        self.settings = settings
        self._verifier = verifier
        self.pool = NgramPool(settings.ngram, settings.guesses, settings.pool_keys)
        self.text: list[int] = []
        self.prompt_s = 0.0
        self._engine = engine
        self._cache = Cache(engine)
        self._batch = Batch(engine.batch_rows)

    def generate(self, prompt: Sequence[int], limit: int = -1) -> Generator[Step]:
        """Decode what follows a prompt: at most `limit` tokens (-1: no limit), to an end token or a full context.

        Closing the iterator early leaves exactly the accepted tokens in `text` and in the cache. Raises PromptError
        when the prompt is empty or has more tokens than the context has cells, SamplingError when a sampler has
        nothing left to choose from.
        """
        self._start(prompt)
        mode = self._mode(prompt)
        made = 0
        try:
            while made != limit and self._room > 0:
                step = self._step(mode, limit - made if limit >= 0 else None)
                if step is None:
                    return
                made += len(step.tokens)
                yield step
                if step.finish:
                    return
        finally:
            # The text is the truth: an interrupt may have come between any two calls of a step.
            self._cache.truncate(len(self.text) - 1)

    @property
    def _room(self) -> int:
        """Rows that the next step's tree may have: what the cache has less those decoded again and a padding row."""
        again = len(self.text) - 1 - self._cache.past
        return self._cache.room - again - (self.settings.least_outputs - 1)

    def truncate(self, length: int) -> None:
        """Forget the text after its first `length` tokens, in the cache too where the model can."""
        del self.text[length:]
        self._cache.truncate(max(length - 1, 0))

    def time_plain_step(self, repeats: int = 5) -> float:
        """Median seconds of a one-row step at the end of the text: its last tokens are decoded again, one by one."""
        start = max(self._cache.past - repeats, 0)
        if not self._cache.truncate(start):
            return 0.0
        times = []
        try:
            for token in self.text[start:-1]:
                begin = perf_counter()
                tree = self._padded(Tree(token))
                self._engine.decode(self._batch.set_tree(tree, self._cache.past))
                self._engine.greedy()
                self._cache.keep(tree, ())
                times.append(perf_counter() - begin)
        finally:
            self._cache.truncate(self._cache.past)
            del self.text[self._cache.past + 1 :]
        return median(times) if times else 0.0

    def _start(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise PromptError("the prompt has no tokens", "give some text with -p or -f")
        if len(prompt) > self._engine.cells:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens and the context {self._engine.cells} cells",
                f"a larger context, -c {len(prompt) + 512} for example, or a shorter prompt",
            )
        begin = perf_counter()
        self.text = []
        self._cache.clear()
        self._cache.prefill(prompt[:-1])
        self.text = list(prompt)
        if self._verifier:
            self._verifier.begin(prompt)
        self.prompt_s = perf_counter() - begin

    def _mode(self, prompt: Sequence[int]) -> Mode:
        match self.settings.mode:
            case "plain":
                return Plain()
            case "lookup":
                return Lookup(self.settings)
            case "jacobi":
                return Jacobi(self.settings, prompt)
            case "lookahead":
                engine = self._engine
                return Lookahead(self.settings, prompt, self.pool, engine.vocabulary, engine.is_end)

    def _step(self, mode: Mode, remaining: int | None) -> Step | None:
        """One step of the paper; None when not even one row finds a cell."""
        begin = perf_counter()
        cache_before = self._cache.seconds
        decoded = self._decode(mode)
        if decoded is None:
            return None
        tree, again, decode_s = decoded

        chosen_at = perf_counter()
        choices = dict(zip(tree.outputs(), self._engine.greedy().tolist(), strict=True))
        choose = self._sampled(self._verifier, tree) if self._verifier else choices.__getitem__
        path = walk(tree, choose, lambda token, count: self._finish(token, count == remaining))
        choose_s = perf_counter() - chosen_at

        self._cache.keep(tree, self._kept(path.nodes), again)
        self.text += path.tokens
        mode.observe(tree, choices, len(path.tokens))

        cache_s = self._cache.seconds - cache_before
        return Step(
            tokens=tuple(path.tokens),
            origins=(*(tree.origins[node] for node in path.nodes), Origin.MODEL),
            rows=again + len(tree),
            drafted=tree.reachable(),
            decode_s=decode_s,
            choose_s=choose_s,
            cache_s=cache_s,
            python_s=perf_counter() - begin - decode_s - choose_s - cache_s,
            finish=path.finish or (None if self._room > 0 else "length"),
        )

    def _decode(self, mode: Mode) -> tuple[Tree, int, float] | None:
        """Grow and decode, with half the rows again and again while the cache finds no place for them.

        The tree, how many tokens before it were decoded again, and the seconds.
        """
        again = self.text[self._cache.past : -1]
        room = self._room
        while room > 0:
            tree = self._padded(mode.grow(self.text, room))
            self._cache.share(tree)
            rows = self._batch.set_tree(tree, self._cache.past, again)
            begin = perf_counter()
            if self._engine.decode(rows):
                return tree, len(again), perf_counter() - begin
            room = len(tree) // 2
        return None

    def _padded(self, tree: Tree) -> Tree:
        """A second row where a step would have one, and single rows have a kernel of their own."""
        if len(tree.tokens) < self.settings.least_outputs:
            tree.pad()
        return tree

    def _kept(self, nodes: list[int]) -> list[int]:
        """The accepted nodes whose cells stay; the others' tokens are decoded again with the next step.

        Where cells must lie in the order of the text, those behind other guesses do not.
        """
        if not self.settings.ordered:
            return nodes
        return [node for place, node in enumerate(nodes, start=1) if node == place]

    def _sampled(self, verifier: Verifier, tree: Tree) -> Choose:
        """The verifier's choice after a node of the tree that was just decoded."""
        logits = self._engine.logits()
        row_of = {node: row for row, node in enumerate(tree.outputs())}
        return lambda node: verifier.choose(logits[row_of[node]], tree.guesses(node))

    def _finish(self, token: int, last: bool) -> Finish | None:
        """Why a text ends with a token; last: it is the one that the limit allows last."""
        if self._engine.is_end(token):
            return "eog"
        return "length" if last else None
