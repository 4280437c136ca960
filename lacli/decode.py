"""The loop that all modes share: grow a tree, decode it, verify, commit what was accepted, learn.

Token ids in, steps out. It knows a group of engines, modes and a verifier, but neither llama.cpp nor text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from time import perf_counter

from lacli.cache import SingleEngine
from lacli.engine import Engine, EngineGroup, Read, unread
from lacli.errors import PromptError, ReplicaLost
from lacli.modes import MakeMode, Mode, Outcome, common_prefix, new_mode
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.tree import Origin, Tree
from lacli.verify import Choose, Path, Verifier, verify_tree

Reading = Callable[[int], AbstractContextManager[Read]]
"""Shows how a prompt is read: is entered with the tokens to read, and gets their number after each part."""


def unseen(tokens: int) -> AbstractContextManager[Read]:
    """Show nothing while a prompt is read."""
    return nullcontext(unread)


@dataclass
class TextState:
    """One text on its way: its tokens, and what guesses, chooses and drops them.

    `tokens`: the prompt's and the accepted ones. A cache holds all of them but the last, which is the next step's
    input, and but those before it that have to be decoded again (ordered cells, slow replicas, an interrupt).
    `verifier`: draws tokens; None takes the most probable ones. `n_keep`: tokens at the beginning that a shift of a
    full context leaves; None where a full context ends the text.
    """

    tokens: list[int]
    mode: Mode
    verifier: Verifier | None = None
    n_keep: int | None = None

    def truncate(self, length: int) -> None:
        """Forget the tokens after the first `length`, and what the mode learned of them."""
        if length < len(self.tokens):
            self.mode.truncate(self.tokens, length)
            del self.tokens[length:]


class Decoder:
    """Decodes one text after another; the pool and what the mode learned of the machine live as long as its settings.

    `group`: the engines that decode. `reused`: tokens of the last prompt that the cache held already. `prompt_s`:
    seconds that the others took.
    """

    def __init__(
        self,
        engine: Engine | EngineGroup,
        settings: DecodeSettings,
        verifier: Verifier | None = None,
        *,
        make_mode: MakeMode = new_mode,
        reading: Reading = unseen,
    ) -> None:
        """`engine`: one engine, or replicas that share the work. `make_mode`: makes the mode of each new text.

        `reading`: entered while a prompt is read.
        """
        self.group = engine if isinstance(engine, EngineGroup) else SingleEngine(engine)
        assert settings.sequences <= self.group.engine.sequences, "the context was made for fewer sequences"
        self.settings = settings
        self.reused = 0
        self.prompt_s = 0.0
        self._mode_s = 0.0
        self._make_mode, self._reading = make_mode, reading
        self._text = TextState([], Mode(), verifier)
        self._learn_anew()

    @property
    def tokens(self) -> list[int]:
        """The prompt's and the accepted tokens."""
        return self._text.tokens

    def change(self, settings: DecodeSettings, verifier: Verifier | None) -> None:
        """Go on in another mode or with another way of sampling; what is decoded stays."""
        assert settings.sequences <= self.group.engine.sequences, "the context was made for fewer sequences"
        self._text.verifier = verifier
        if settings != self.settings:
            self.settings = settings
            self._learn_anew()

    def generate(
        self, prompt: Sequence[int], max_tokens: int = -1, *, reuse: bool = False, n_keep: int | None = None
    ) -> Generator[Step]:
        """Decode what follows a prompt: at most `max_tokens` (-1: no limit), to an end token or a full context.

        `reuse`: do not decode again what the prompt has in common with the text so far, and still know what was learned
        of it. `n_keep`: a full context does not end the text but loses half of its tokens after the first `n_keep`,
        where the engine can shift what is left.
        Closing the iterator early leaves exactly the accepted tokens in `tokens` and in the cache. Raises PromptError
        when the prompt is empty or has more tokens than the context has cells, SamplingError when a sampler has
        nothing left to choose from.
        """
        made = 0
        # Freed cells in the middle would not lie in the order of the text.
        self._text.n_keep = n_keep if self.group.engine.can_shift and not self.settings.ordered else None
        try:
            self._start(prompt, reuse)
            while made != max_tokens and self._has_room():
                step = self._step(max_tokens - made if max_tokens >= 0 else None)
                if step is None:
                    return
                made += len(step.tokens)
                yield step
                if step.finish:
                    return
        except KeyboardInterrupt:
            # It may have come between a copy and its note, and a second copy of the same cells would count twice.
            self.group.unshare()
            raise
        finally:
            # The tokens are the truth: an interrupt may have come between any two calls of a step.
            self.group.cut(max(len(self.tokens) - 1, 0))

    def truncate(self, length: int) -> None:
        """Forget the text after its first `length` tokens: in the cache, and what was learned of it."""
        self._text.truncate(length)
        self.group.cut(max(length - 1, 0))

    def cut_back(self, prompt: Sequence[int]) -> None:
        """Keep of the text what it has in common with a prompt, whose last token is still to be decoded."""
        same = common_prefix(self.tokens, prompt)
        self._text.truncate(same)
        self.group.cut(min(same, len(prompt) - 1))

    def time_plain_steps(self, repeats: int = 9) -> list[float]:
        """Seconds of one-row steps at the end of the text, empty where none can be timed.

        The last `repeats` tokens are decoded again, one by one; what an interrupt leaves of them the next step decodes.
        """
        if not self.group.past:
            return []
        return self.group.time_plain_steps(self.tokens, repeats, self.settings.min_outputs)

    @property
    def _room(self) -> int:
        """Rows that the next step's tree may have, without a padding row."""
        return self.group.room(self._text.tokens) - (self.settings.min_outputs - 1)

    def _has_room(self) -> bool:
        """True if the next step finds a cell; a full context is shifted first where that was asked for."""
        if self._room <= 0 and self._text.n_keep is not None:
            self._shift(self._text.n_keep)
        return self._room > 0

    def _shift(self, n_keep: int) -> None:
        """Drop half of the cached tokens after the first `n_keep`, as llama.cpp's programs do in a full context."""
        mode, tokens, past = self._text.mode, self.tokens, self.group.past
        count = (past - n_keep) // 2
        if count > 0:
            mode.truncate(tokens, n_keep)
            self.group.shift(tokens, n_keep, count)
            del tokens[n_keep : n_keep + count]
            self.group.grow(past - count)
            mode.begin(tokens)

    def _start(self, prompt: Sequence[int], reuse: bool) -> None:
        if not prompt:
            raise PromptError("the prompt has no tokens", "give some text with -p or -f")
        if len(prompt) > self.group.cells:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens and the context {self.group.cells} cells",
                f"a larger context, -c {len(prompt) + 512} for example, or a shorter prompt",
            )
        begin, text = perf_counter(), self._text
        self.group.begin()
        if reuse:
            self.cut_back(prompt)
        else:
            self.group.clear()
            text.mode = self._new_mode(text.mode)
        self.reused = self.group.past
        text.tokens = list(prompt)
        with self._reading(len(prompt) - 1 - self.reused) as read:
            prefill_s = self.group.prefill(prompt[:-1], read, all_replicas=self.settings.sequences > 1)
        text.mode.prefilled(self.group.past - self.reused, prefill_s)
        text.mode.begin(text.tokens)
        if text.verifier:
            text.verifier.begin(prompt)
        self.prompt_s = perf_counter() - begin

    def _learn_anew(self) -> None:
        self.pool = NgramPool(self.settings.ngram, self.settings.guesses, self.settings.pool_keys)
        self._text.mode = self._new_mode()

    def _new_mode(self, before: Mode | None = None) -> Mode:
        sampled = self._text.verifier is not None
        return self._make_mode(self.settings, self.pool, self.group.engine, sampled=sampled, before=before)

    def _step(self, remaining: int | None) -> Step | None:
        """Take one step of the paper; None when not even one row finds a cell."""
        while True:
            clock, self._mode_s = StepClock(self.group), 0.0
            tree = self._decode()
            if tree is None:
                return None
            clock.decoded()
            choices = self.group.choices()
            try:
                path = self._verify(tree, choices, remaining)
                break
            except ReplicaLost:
                # It was to say what follows the input, so nothing is drawn yet; the others do the step again.
                self.group.cut(self.group.past)
        clock.verified()
        self._commit(tree, path, choices, clock)
        finish = path.finish or (None if self._room > 0 or self._text.n_keep is not None else "length")
        guesses = tree.reachable()
        decode_s, choose_s, cache_s, python_s = clock.parts()
        return Step(
            tokens=tuple(path.tokens),
            origins=(*(tree.origins[node] for node in path.nodes), Origin.MODEL),
            rows=self.group.rows,
            drafted=len(guesses),
            decode_s=decode_s,
            choose_s=choose_s,
            cache_s=cache_s,
            python_s=python_s,
            finish=finish,
            guesses=guesses,
            plan=self._text.mode.plan,
            mode_s=self._mode_s,
        )

    def _decode(self) -> Tree | None:
        """Grow and decode a tree, with half the rows again and again while the cache finds no place for them."""
        text, room = self._text, self._room
        while room > 0:
            begin = perf_counter()
            tree = text.mode.grow(text.tokens, room)
            self._mode_s += perf_counter() - begin
            if len(tree) < self.settings.min_outputs:
                # A second row where a step would have one, and single rows have a kernel of their own.
                tree.pad()
            if self.group.decode(text.tokens, tree):
                return tree
            room = len(tree) // 2
        return None

    def _verify(self, tree: Tree, choices: Mapping[int, int], remaining: int | None) -> Path:
        """The accepted way down the tree that was just decoded. Raises ReplicaLost where nothing follows its input."""
        verifier = self._text.verifier
        choose = self._drawn(verifier, tree) if verifier else choices.__getitem__
        is_end = self.group.engine.is_end

        def ends(token: int, count: int) -> Finish | None:
            if is_end(token):
                return "eog"
            return "length" if count == remaining else None

        return verify_tree(tree, choose, ends)

    def _drawn(self, verifier: Verifier, tree: Tree) -> Choose:
        """The verifier's choice after a node of the tree that was just decoded."""
        logits = self.group.logits()
        return lambda node: verifier.choose(logits(node), tree.guesses(node))

    def _commit(self, tree: Tree, path: Path, choices: Mapping[int, int], clock: StepClock) -> None:
        """Hold on to an accepted path, in the cache and in the text, and let the mode learn from the step."""
        text, group = self._text, self.group
        rows = len(text.tokens) - 1 - group.past + len(tree)
        group.commit(path.nodes, ordered=self.settings.ordered)
        text.tokens += path.tokens
        outcome = Outcome(choices, path.nodes, rows, clock.step_s(), group.successors, perf_counter)
        begin = perf_counter()
        with suppress(ReplicaLost):
            text.mode.observe(tree, outcome)
        self._mode_s += perf_counter() - begin


class StepClock:
    """What the parts of one step take, in seconds, counted from its making on."""

    def __init__(self, group: EngineGroup) -> None:
        self._group = group
        self._begin, self._cache_before = perf_counter(), group.cache_s

    def decoded(self) -> None:
        """The batch is decoded, and the most probable tokens are read."""
        # Sequences that catch up with a long text do so once: no step costs that again.
        self._shared_s = self._group.cache_s - self._cache_before
        self._decode_s, self._choose_s = self._group.times
        self._verify_begin = perf_counter()

    def verified(self) -> None:
        """All tokens of the step are chosen."""
        self._choose_s += perf_counter() - self._verify_begin

    def step_s(self) -> float:
        """The time so far, which another step like this one takes too."""
        return perf_counter() - self._begin - self._shared_s

    def parts(self) -> tuple[float, float, float, float]:
        """The time so far: decoding, choosing, sequence calls, and Python for all the rest."""
        cache_s = self._group.cache_s - self._cache_before
        known = self._decode_s + self._choose_s + cache_s
        return self._decode_s, self._choose_s, cache_s, perf_counter() - self._begin - known
