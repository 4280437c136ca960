"""The loop that all modes share: grow a tree, decode it, verify, keep what was accepted, learn.

Token ids in, steps out. It knows replicas of an Engine and a Verifier, not llama.cpp, and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from time import perf_counter

from lacli.auto.mode import Experience
from lacli.auto.past_texts import PastTexts
from lacli.auto.step_cost import Cost
from lacli.engine import Engine
from lacli.errors import PromptError, ReplicaLost
from lacli.modes import Mode, Outcome, common_prefix, new_mode
from lacli.pool import NgramPool
from lacli.replicas.group import Replicas
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.tree import Origin, Tree
from lacli.verify import Choose, Verifier, verify_tree


class Decoder:
    """Generates in one mode at a time; the pool lives as long as the decoder.

    text: the prompt's and the accepted tokens. A cache holds all of them but the last, which is the next step's
    input, and but those before it that have to be decoded again (strict.py, parallel/, an interrupt). reused: tokens
    of the last prompt that a cache held already. prompt_s: seconds that the others took. replicas: what decodes.
    """

    def __init__(
        self,
        engine: Engine,
        settings: DecodeSettings,
        verifier: Verifier | None = None,
        *,
        cost: Cost | None = None,
        kept: PastTexts | None = None,
        mode: Callable[[], Mode] | None = None,
        name: str = "1",
        others: Mapping[str, Engine] | None = None,
    ) -> None:
        """verifier: how tokens are sampled, or None to take the most probable ones.

        cost: what steps cost here, where it was measured before. kept: texts of earlier runs, for mode auto. mode:
        makes a mode that is none of the settings'. name: what messages call the engine, where there are others, by
        their names: of the same model and size, to share the work.
        """
        assert settings.sequences <= engine.sequences, "the context was made for fewer sequences"
        self.settings = settings
        self._verifier = verifier
        self.text: list[int] = []
        self.reused = 0
        self.prompt_s = 0.0
        self._keep: int | None = None
        self._known = cost, kept
        self._other_mode = mode
        self.replicas = Replicas({name: engine, **(others or {})})
        self._learn_anew()

    def change(self, settings: DecodeSettings, verifier: Verifier | None) -> None:
        """Go on in another mode or with another way of sampling; what is decoded stays."""
        assert settings.sequences <= self._engine.sequences, "the context was made for fewer sequences"
        self._verifier = verifier
        if settings != self.settings:
            self.settings = settings
            self._learn_anew()

    def generate(
        self, prompt: Sequence[int], limit: int = -1, *, reuse: bool = False, keep: int | None = None
    ) -> Generator[Step]:
        """Decode what follows a prompt: at most `limit` tokens (-1: no limit), to an end token or a full context.

        reuse: what the prompt has in common with the text so far is not decoded again, and what was learned of it is
        known still. keep: a full context does not end the text but loses half of its tokens after the first `keep`,
        where the engine can shift what is left.
        Closing the iterator early leaves exactly the accepted tokens in `text` and in the cache. Raises PromptError
        when the prompt is empty or has more tokens than the context has cells, SamplingError when a sampler has
        nothing left to choose from.
        """
        made = 0
        # Freed cells in the middle would not lie in the order of the text.
        self._keep = keep if self._engine.can_shift and not self.settings.ordered else None
        try:
            self._start(prompt, reuse)
            while made != limit and self._has_room():
                step = self._step(limit - made if limit >= 0 else None)
                if step is None:
                    return
                made += len(step.tokens)
                yield step
                if step.finish:
                    return
        except KeyboardInterrupt:
            # It may have come between a copy and its note, and a second copy of the same cells would count twice.
            self.replicas.unshare()
            raise
        finally:
            # The text is the truth: an interrupt may have come between any two calls of a step.
            self.replicas.cut(max(len(self.text) - 1, 0))

    @property
    def _engine(self) -> Engine:
        """What speaks for all: they are of one model and size."""
        return self.replicas.leader.engine

    @property
    def _room(self) -> int:
        """Rows that the next step's tree may have: what the cache has less those decoded again and a padding row."""
        return self.replicas.room(self.text) - (self.settings.min_outputs - 1)

    def _has_room(self) -> bool:
        """Whether the next step finds a cell; a full context is shifted first where that was asked for."""
        if self._room <= 0 and self._keep is not None:
            self._shift(self._keep)
        return self._room > 0

    def truncate(self, length: int) -> None:
        """Forget the text after its first `length` tokens: in the cache, and what was learned of it."""
        self._forget_after(length)
        self.replicas.cut(max(length - 1, 0))

    def cut_back(self, prompt: Sequence[int]) -> None:
        """Keep of the text what it has in common with a prompt, whose last token is still to be decoded."""
        same = common_prefix(self.text, prompt)
        self._forget_after(same)
        self.replicas.cut(min(same, len(prompt) - 1))

    def _forget_after(self, length: int) -> None:
        if length < len(self.text):
            self._mode.truncate(self.text, length)
            del self.text[length:]

    def _shift(self, keep: int) -> None:
        """Drop half of the cached tokens after the first `keep`, as llama.cpp's programs do when a context is full."""
        past = self.replicas.past
        count = (past - keep) // 2
        if count > 0:
            self._mode.truncate(self.text, keep)
            self.replicas.shift(self.text, keep, count)
            del self.text[keep : keep + count]
            self.replicas.grow(past - count)
            self._mode.begin(self.text)

    def time_plain_step(self, repeats: int = 5) -> float:
        """Median seconds of a one-row step at the end of the text: its last tokens are decoded again, one by one.

        After an interrupt the caches lack some of them, which the next step decodes.
        """
        if not self.replicas.past:
            return 0.0
        return self.replicas.time_plain_step(self.text, repeats, self.settings.min_outputs)

    def _start(self, prompt: Sequence[int], reuse: bool) -> None:
        if not prompt:
            raise PromptError("the prompt has no tokens", "give some text with -p or -f")
        if len(prompt) > self.replicas.cells:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens and the context {self.replicas.cells} cells",
                f"a larger context, -c {len(prompt) + 512} for example, or a shorter prompt",
            )
        begin = perf_counter()
        self.replicas.crew.begin()
        if reuse:
            self.cut_back(prompt)
        else:
            self._forget()
        self.reused = self.replicas.past
        self.text = list(prompt)
        shared_s = self.replicas.prefill(prompt[:-1], everybody=self.settings.sequences > 1)
        self._mode.prefilled(self.replicas.past - self.reused, shared_s)
        self._mode.begin(self.text)
        if self._verifier:
            self._verifier.begin(prompt)
        self.prompt_s = perf_counter() - begin

    def _forget(self) -> None:
        self.replicas.clear()
        self._mode = self._new_mode()

    def _learn_anew(self) -> None:
        self.pool = NgramPool(self.settings.ngram, self.settings.guesses, self.settings.pool_keys)
        sampled = self._verifier is not None
        auto = self.settings.mode == "auto"
        self._experience = Experience(self.settings, *self._known, sampled=sampled) if auto else None
        self._mode = self._new_mode()

    def _new_mode(self) -> Mode:
        if self._other_mode:
            return self._other_mode()
        return new_mode(self.settings, self.pool, self._engine, self._experience)

    def _step(self, remaining: int | None) -> Step | None:
        """One step of the paper; None when not even one row finds a cell."""
        begin = perf_counter()
        replicas, cache_before = self.replicas, self.replicas.cache_s
        tree = self._decode()
        if tree is None:
            return None
        # Sequences that catch up with a long text do so once: no step costs that again.
        shared_s = replicas.cache_s - cache_before
        decode_s, choose_s = replicas.times

        chosen_at = perf_counter()
        choices = replicas.choices()
        choose = self._sampled(self._verifier, tree) if self._verifier else choices.__getitem__
        try:
            path = verify_tree(tree, choose, lambda token, count: self._finish(token, count == remaining))
        except ReplicaLost:
            # It was to say what follows the input, so nothing is drawn yet; the others do the step again.
            replicas.cut(replicas.past)
            return self._step(remaining)
        choose_s += perf_counter() - chosen_at

        again = len(self.text) - 1 - replicas.past
        replicas.keep(path.nodes, ordered=self.settings.ordered)
        self.text += path.tokens
        seconds = perf_counter() - begin - shared_s
        outcome = Outcome(choices, path.nodes, again + len(tree), seconds, replicas.successors, perf_counter)
        with suppress(ReplicaLost):
            self._mode.observe(tree, outcome)

        cache_s = replicas.cache_s - cache_before
        guesses = tree.reachable()
        return Step(
            tokens=tuple(path.tokens),
            origins=(*(tree.origins[node] for node in path.nodes), Origin.MODEL),
            rows=replicas.rows,
            drafted=len(guesses),
            decode_s=decode_s,
            choose_s=choose_s,
            cache_s=cache_s,
            python_s=perf_counter() - begin - decode_s - choose_s - cache_s,
            finish=path.finish or (None if self._room > 0 or self._keep is not None else "length"),
            guesses=guesses,
            plan=self._mode.plan,
        )

    def _decode(self) -> Tree | None:
        """Grow and decode a tree, with half the rows again and again while the cache finds no place for them."""
        room = self._room
        while room > 0:
            tree = self._mode.grow(self.text, room)
            if len(tree) < self.settings.min_outputs:
                # A second row where a step would have one, and single rows have a kernel of their own.
                tree.pad()
            if self.replicas.decode(self.text, tree):
                return tree
            room = len(tree) // 2
        return None

    def _sampled(self, verifier: Verifier, tree: Tree) -> Choose:
        """The verifier's choice after a node of the tree that was just decoded."""
        logits = self.replicas.logits()
        return lambda node: verifier.choose(logits(node), tree.guesses(node))

    def _finish(self, token: int, last: bool) -> Finish | None:
        """Why a text ends with a token; last: it is the one that the limit allows last."""
        if self._engine.is_end(token):
            return "eog"
        return "length" if last else None
