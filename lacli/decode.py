"""The loop that all modes share: grow a tree, decode it, verify, commit what was accepted, learn.

Token ids in, steps out. It knows a group of engines, modes and a verifier, but neither llama.cpp nor text.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from lacli.cache import SingleEngine
from lacli.context import Context, EngineGroup, Reading, StepClock, unseen
from lacli.errors import PromptError, SamplingError
from lacli.modes import Growing, MakeMode, Mode, Outcome, common_prefix, new_mode
from lacli.pool import NgramPool
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.tree import Origin, Tree
from lacli.verify import Choose, Path, Verifier, verify_tree

ROOM = 512
"""Tokens for an answer in the context that is advised for a prompt."""


@dataclass(eq=False)
class TextState:
    """One text on its way: its tokens, and what guesses, chooses, holds and drops them.

    `tokens`: the prompt's and the accepted ones. A cache holds all of them but the last, which is the next step's
    input, and but those before it that have to be decoded again (ordered cells, other replicas, an interrupt).
    `group`: the engines that decode it, with the text's cells. `verifier`: draws tokens; None takes the most probable
    ones. `remaining`: tokens it may still get, None for no limit.
    """

    tokens: list[int]
    mode: Mode
    group: EngineGroup
    verifier: Verifier | None = None
    remaining: int | None = None

    def room(self, min_outputs: int) -> int:
        """Rows that the next step's tree may have, without the rows that pad it to `min_outputs`."""
        return self.group.room(self.tokens) - (min_outputs - 1)


class Decoder:
    """Decodes one text after another; the pool and what the mode learned of the machine live as long as its settings.

    `group`: the engines that decode. `reused`: tokens of the last prompt that the cache held already. `prompt_s`:
    seconds that the others took.
    """

    def __init__(
        self,
        engine: Context | EngineGroup,
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
        self._make_mode, self._reading = make_mode, reading
        self._text = TextState([], Mode(), self.group, verifier)
        self._learn_anew()

    @property
    def tokens(self) -> list[int]:
        """The prompt's and the accepted tokens."""
        return self._text.tokens

    @property
    def mode(self) -> Mode:
        """What guesses the text's next tokens."""
        return self._text.mode

    def change(self, settings: DecodeSettings, verifier: Verifier | None) -> None:
        """Go on in another mode or with another way of sampling; what is decoded stays."""
        assert settings.sequences <= self.group.engine.sequences, "the context was made for fewer sequences"
        was_sampled, self._text.verifier = self._text.verifier is not None, verifier
        if settings != self.settings:
            self.settings = settings
            self._learn_anew()
        elif was_sampled != (verifier is not None):
            # Drawn tokens say nothing about how often guesses of the others come true.
            self._text.mode = self._new_mode(self._text.mode)

    def generate(self, prompt: Sequence[int], max_tokens: int = -1, *, reuse: bool = False) -> Generator[Step]:
        """Decode what follows a prompt: at most `max_tokens` (-1: no limit), to an end token or a full context.

        `reuse`: do not decode again what the prompt has in common with the text so far.
        Closing the iterator early leaves exactly the accepted tokens in `tokens` and in the cache. Raises PromptError
        when the prompt is empty or has more tokens than the context has cells, SamplingError when a sampler has
        nothing left to choose from.
        """
        text = self._text
        text.remaining = max_tokens if max_tokens >= 0 else None
        try:
            self._start(prompt, reuse)
            while text.remaining != 0:
                if (taken := self.step([text])) is None:
                    return
                if isinstance(step := taken[0], SamplingError):
                    raise step
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
        """Cut the text and its cells back to the first `length` tokens."""
        del self.tokens[length:]
        self.group.cut(max(length - 1, 0))

    def cut_back(self, prompt: Sequence[int]) -> None:
        """Keep of the text what it has in common with a prompt, whose last token is still to be decoded."""
        same = common_prefix(self.tokens, prompt)
        del self.tokens[same:]
        self.group.cut(min(same, len(prompt) - 1))

    def check_prompt(self, prompt: Sequence[int], cells: int | None = None) -> None:
        """Raise PromptError for a prompt without tokens, or with more than `cells`, by default all of the context."""
        cells = self.group.cells if cells is None else cells
        if not prompt:
            raise PromptError("the prompt has no tokens", "give some text")
        if len(prompt) > cells:
            what = f"the prompt has {len(prompt):,} tokens and the context {cells:,}"
            raise PromptError(what, f"{self.context_hint(len(prompt) + 1)}; a shorter prompt fits")

    def context_hint(self, tokens: int) -> str:
        """What -c there is for a text of `tokens` and an answer, as far as the model was trained for it."""
        longest = self.group.engine.trained_context
        if tokens > longest:
            return f"the model was trained for {longest:,} at most"
        whole = -(-(tokens + ROOM) // ROOM) * ROOM
        return f"a larger context has room, -c {min(whole, longest)} for example"

    def new_mode(
        self,
        before: Mode | None = None,
        *,
        sampled: bool,
        settings: DecodeSettings | None = None,
        pool: NgramPool | None = None,
    ) -> Mode:
        """Make the mode of a text. `sampled`: its tokens are drawn. `before`: the mode of the text before it.

        `settings`: its own, which need no more than the decoder's. `pool`: another one than the decoder's.
        """
        return self._make_mode(
            settings or self.settings, pool or self.pool, self.group.engine, sampled=sampled, before=before
        )

    def new_pool(self) -> NgramPool:
        """An empty pool of the size that the settings ask for."""
        return NgramPool(self.settings.ngram, self.settings.guesses, self.settings.pool_keys)

    def _start(self, prompt: Sequence[int], reuse: bool) -> None:
        self.check_prompt(prompt)
        begin, text = perf_counter(), self._text
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
        self.pool = self.new_pool()
        self._text.mode = self._new_mode()

    def _new_mode(self, before: Mode | None = None) -> Mode:
        return self.new_mode(before, sampled=self._text.verifier is not None)

    def step(
        self, texts: Sequence[TextState], prompts: Sequence[SingleEngine] = ()
    ) -> list[Step | SamplingError] | None:
        """Take one step of the paper for all `texts` in one batch; None where not even one row of each finds a cell.

        `prompts`: other texts of the same engine, whose prepared pieces of prompt are decoded beside. A text whose
        sampler has nothing left to choose from gets its error, and holds what it held before the step.
        """
        if not texts:
            return [] if self._run((), (), prompts) else None
        clock = StepClock([text.group for text in texts])
        trees = self._decode(texts, prompts)
        if trees is None:
            return None
        clock.decoded()
        return [self._take(text, tree, clock) for text, tree in zip(texts, trees, strict=True)]

    def _decode(self, texts: Sequence[TextState], prompts: Sequence[SingleEngine] = ()) -> list[Tree] | None:
        """Grow and decode a tree of each text, half as large each time the cache finds no place for them."""
        least, is_alone = self.settings.min_outputs, len(texts) == 1 and not prompts
        rooms, left, behind, beside = [text.room(least) for text in texts], 0, 0, 0
        if not is_alone:
            behind = sum([len(text.tokens) - 1 - text.group.past for text in texts])
            beside = sum([len(prompt.part.again) for prompt in prompts])
            left = self.group.engine.batch_rows - behind - beside
            if left < len(texts):
                return None
        while min(rooms) > 0:
            first = texts[0]
            if is_alone:
                trees = [first.mode.grow(first.tokens, rooms[0])]
            else:
                growing = [Growing(text.mode, text.tokens, room) for text, room in zip(texts, rooms, strict=True)]
                trees = first.mode.grow_all(growing, left, behind + beside)
            if len(trees) < least and sum(map(len, trees)) < least:
                # A second row where a step would have one, and single rows have a kernel of their own.
                trees[0].pad()
            if first.group.decode(first.tokens, trees[0]) if is_alone else self._run(texts, trees, prompts):
                return trees
            # A row that pads a tree stands in no room.
            sizes = [min(len(tree), room) for tree, room in zip(trees, rooms, strict=True)]
            if max(sizes) == 1:
                return None
            rooms = [max(size // 2, 1) for size in sizes]
        return None

    def _run(self, texts: Sequence[TextState], trees: Sequence[Tree], prompts: Sequence[SingleEngine]) -> bool:
        """Decode the trees and the pieces of prompt in one batch; False, with nothing changed, for want of cells."""
        parts = [*prompts]
        for text, tree in zip(texts, trees, strict=True):
            assert isinstance(text.group, SingleEngine), "replicas decode one text"
            text.group.prepare(text.tokens, tree)
            parts.append(text.group)
        return parts[0].step.run(parts)

    def _take(self, text: TextState, tree: Tree, clock: StepClock) -> Step | SamplingError:
        """Verify a text's decoded tree, hold on to what is accepted, and say what the step was."""
        begin, group = perf_counter(), text.group
        choices = group.choices()
        try:
            path = self._verify(text, tree, choices)
        except SamplingError as error:
            group.cut(group.past)
            # Its frames would keep the engine as long as somebody keeps the error.
            return error.with_traceback(None)
        clock.choose_s += perf_counter() - begin
        rows = len(text.tokens) - 1 - group.past + len(tree) if len(clock.groups) == 1 else group.rows
        group.commit(path.nodes, ordered=self.settings.ordered)
        text.tokens += path.tokens
        if text.remaining is not None:
            text.remaining -= len(path.tokens)
        outcome = Outcome(choices, path.nodes, rows, clock.step_s(), group.successors, perf_counter)
        text.mode.observe(tree, outcome)
        finish = path.finish
        if finish is None and text.room(self.settings.min_outputs) <= 0:
            finish = "length"
        guesses = tree.reachable()
        decode_s, choose_s, cache_s, python_s = clock.parts()
        return Step(
            tokens=tuple(path.tokens),
            origins=(*[tree.origins[node] for node in path.nodes], Origin.MODEL),
            rows=group.rows,
            drafted=len(guesses),
            decode_s=decode_s,
            choose_s=choose_s,
            cache_s=cache_s,
            python_s=python_s,
            finish=finish,
            guesses=guesses,
        )

    def _verify(self, text: TextState, tree: Tree, choices: Mapping[int, int]) -> Path:
        """The accepted way down a tree that was just decoded. Raises SamplingError as `verify_tree`."""
        choose = self._drawn(text.verifier, text.group, tree) if text.verifier else choices.__getitem__
        is_end, remaining = text.group.engine.is_end, text.remaining

        def ends(token: int, count: int) -> Finish | None:
            if is_end(token):
                return "eog"
            return "length" if count == remaining else None

        return verify_tree(tree, choose, ends)

    def _drawn(self, verifier: Verifier, group: EngineGroup, tree: Tree) -> Choose:
        """The verifier's choice after a node of the tree that was just decoded."""
        logits = group.logits()
        return lambda node: verifier.choose(logits(node), tree.guesses(node))
