"""A conversation with a model: each turn decodes only what is new, and a full context is a choice and no crash.

No terminal and no commands: pieces of text come out of a turn, sentences about it are in `notes`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from secrets import randbelow

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Conversation
from lacli.chat.prompts import Prompts, Spelled
from lacli.chat.shown import oldest
from lacli.decode import common_prefix
from lacli.errors import PromptError
from lacli.generation import Answer
from lacli.interrupts import without_ctrl_c
from lacli.sampling import MOST_SEED, SamplingSettings
from lacli.session import Session
from lacli.settings import DecodeSettings
from lacli.template import chatml
from lacli.text import Piece
from lacli.thoughts import begun_thought, closed, with_thoughts

COMPACT = 0.5
"""Share of the context that a compacted conversation may take."""


class Chat:
    """Turns of a conversation on one session, whose cache holds the last of them.

    conversation: what was said. limit: tokens of an answer, -1 for none. stops: texts that end one. sampling: as the
    user asked for it. turns: the answers so far; last: the latest. notes: sentences about the last turn or change.
    dropped: the oldest questions that the last turn had no room for.
    """

    def __init__(
        self, session: Session, adjusted: Adjusted, conversation: Conversation, *, context_shift: bool = False
    ) -> None:
        """context_shift: a full context loses its oldest tokens instead of ending the answer."""
        self.session = session
        self.conversation = conversation
        self.sampling = adjusted.sampling
        self.limit, self.stops = adjusted.limit, adjusted.stops
        self.turns: list[Answer] = []
        self.last: Answer | None = None
        self.notes: list[str] = []
        self.dropped = 0
        self._seed = session.sampling.seed
        self._prompts = Prompts(session)
        if session.template is None:
            session.use_template(chatml(session.model))
            self.notes.append("the model has no chat template, so ChatML is used; --chat-template takes another one")
        self._shifts = context_shift and self._can_shift()

    @property
    def settings(self) -> DecodeSettings:
        """How tokens are guessed."""
        return self.session.settings

    @property
    def repeatable(self) -> Adjusted:
        """All settings, with the seed in use: a chat that has them goes on alike."""
        sampling = self.sampling if self.session.sampling.greedy else self._seeded(self.sampling)
        return Adjusted(self.settings, sampling, self.limit, self.stops)

    @property
    def used(self) -> int:
        """Tokens in the context."""
        return len(self.session.decoder.text)

    @property
    def cells(self) -> int:
        """Tokens that the context has room for."""
        return self.session.engine.cells

    def ask(self, question: str) -> Generator[Piece]:
        """Ask, and give the answer as it comes; close it to stop, and what came so far is the answer.

        Raises PromptError where the context has no room for the question, which is taken back then, and SamplingError
        where no token can follow.
        """
        if not question.strip():
            raise PromptError("the message is empty", "write one")
        self.conversation.ask(question)
        return self._turn()

    def again(self) -> Generator[Piece]:
        """Answer the last question anew, with another seed where none was asked for."""
        self.conversation.take_back_answer()
        self.notes = []
        if self.session.sampling.greedy:
            self.notes.append("at temperature 0 the answer comes out the same; /set temp 0.8 for another one")
        elif self.sampling.seed >= 0:
            self.notes.append("one seed gives one answer; /set seed -1 for another one each time")
        else:
            self._seed = randbelow(MOST_SEED + 1)
            self._adapt(self.settings, self.sampling)
        return self._turn(self.notes)

    def undo(self) -> str | None:
        """Take the last question and its answer back; the question, or None where nothing was asked."""
        question = self.conversation.undo()
        self._cut_back()
        return question

    def clear(self) -> None:
        """Forget all questions and answers; the system prompt stays."""
        self.conversation.clear()
        self._cut_back()

    def compact(self) -> int:
        """Drop the oldest questions with their answers until half the context is free, but at least one; how many."""
        dropped = 0
        while not dropped or len(self._prompt().tokens) > COMPACT * self.cells:
            if not self.conversation.drop_oldest():
                break
            dropped += 1
        if dropped:
            self._cut_back()
        return dropped

    def change(self, adjusted: Adjusted) -> str:
        """Take new settings; what to know about them, empty where there is nothing.

        Raises UsageError for settings that cannot be, ModelLoadError for a context that does not fit into memory; then
        the old ones stay.
        """
        known = set(self.session.notes)
        if adjusted.sampling.seed < 0 <= self.sampling.seed:
            self._seed = randbelow(MOST_SEED + 1)
        anew = self._adapt(adjusted.decoding, adjusted.sampling)
        self.sampling = adjusted.sampling
        self.limit, self.stops = adjusted.limit, adjusted.stops
        sentences = [note for note in self.session.notes if note not in known]
        if anew:
            sequences = self.session.engine.sequences
            sentences.append(
                f"the context was made anew, for {sequences} sequences: the conversation is decoded again with the "
                "next message"
            )
        return "; ".join(sentences)

    def _turn(self, notes: list[str] | None = None) -> Generator[Piece]:
        self.notes = notes or []
        try:
            prompt = self._fitting_prompt()
        except PromptError:
            # The chat goes on without the question.
            self.conversation.undo()
            raise
        generation = self.session.generate(
            prompt.tokens,
            self.limit,
            (*self.stops, *self.session.turn_ends),
            reuse=True,
            keep=self._kept() if self._shifts else None,
        )
        begun = begun_thought(prompt.text)
        try:
            yield from with_thoughts(generation, begun)
            self._note_full(generation.answer())
        finally:
            self._finish(prompt, generation.answer(), begun)

    def _finish(self, prompt: Spelled, answer: Answer, begun: str) -> None:
        """What came is the answer; where nothing came, the question stays open."""
        if not answer.tokens:
            return
        # Whoever reads the answer later does not see what its prompt ended with.
        self.conversation.answer(closed(begun + answer.text) if begun else answer.text)
        self._prompts.answered(prompt, answer.tokens)
        self.turns.append(answer)
        self.last = answer
        shifted = len(prompt.tokens) + len(answer.tokens) - self.used
        if shifted > 0:
            self.notes.append(f"the context was full: its oldest {shifted} tokens are forgotten")

    def _note_full(self, answer: Answer) -> None:
        if answer.finish_reason == "length" and answer.statistics.tokens != self.limit:
            self.notes.append(f"the context of {self.cells} tokens is full and the answer ends here: {self._choice()}")

    def _prompt(self) -> Spelled:
        return self._prompts.spell(self.conversation.as_messages())

    def _fitting_prompt(self) -> Spelled:
        """The conversation as a prompt with room for an answer behind it."""
        before = self.conversation.messages.copy()
        self.dropped = 0
        prompt = self._prompt()
        while len(prompt.tokens) >= self.cells:
            if not (self._shifts and self.conversation.drop_oldest()):
                refusal = self._too_long(len(prompt.tokens))
                self.conversation.messages[:] = before
                self.dropped = 0
                raise refusal
            self.dropped += 1
            prompt = self._prompt()
        if self.dropped:
            self.notes.append(f"the context was full: {oldest(self.dropped)} are forgotten")
        return prompt

    def _too_long(self, tokens: int) -> PromptError:
        if self.conversation.questions == 1:
            return PromptError(
                f"the message needs {tokens} tokens and the context has {self.cells}",
                f"send a shorter one, or start again with -c {tokens + self.cells}",
            )
        what = f"with this message the conversation has {tokens} tokens, and the context {self.cells}"
        return PromptError(what, self._choice())

    def _choice(self) -> str:
        """What a user can do about a full context."""
        more = "" if self.cells >= self.session.model.context else f", or start again with -c {2 * self.cells}"
        return f"/compact drops the oldest questions, /clear forgets all{more}"

    def _kept(self) -> int:
        """Tokens that stay when the context is shifted: those before the first question, the system prompt's."""
        system = [message for message in self.conversation.as_messages() if message["role"] == "system"]
        spelled = [
            self.session.conversation_prompt([*system, {"role": "user", "content": probe}]) for probe in ("a", "b")
        ]
        return common_prefix(*spelled)

    def _cut_back(self) -> None:
        """Forget, in the cache and in what was learned, what the conversation does not have any more."""
        messages = self.conversation.as_messages()
        if not messages or messages[-1]["role"] != "user":
            messages.append({"role": "user", "content": "?"})
        self.session.decoder.cut_back(self._prompts.spell(messages).tokens)

    def _can_shift(self) -> bool:
        if self.settings.strict:
            why = "--strict does not allow it"
        elif not self.session.engine.can_shift or self.session.model.chain_only:
            why = "this model's cache cannot, or not with this -ctk"
        else:
            return True
        self.notes.append(f"the context is not shifted when it is full: {why}")
        return False

    def _adapt(self, decoding: DecodeSettings, sampling: SamplingSettings) -> bool:
        """Change the session; half changed it could not go on."""
        with without_ctrl_c():
            return self.session.adapt(decoding, self._seeded(sampling))

    def _seeded(self, sampling: SamplingSettings) -> SamplingSettings:
        """The settings with this chat's seed where the user leaves it open."""
        return replace(sampling, seed=self._seed) if sampling.seed < 0 else sampling
