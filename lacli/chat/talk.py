"""A conversation with a model: each turn decodes only what is new, and a full context is a choice and no crash.

No terminal and no commands: pieces of text come out of a turn, sentences about it are in `notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace

from lacli.auto.store import TextStore
from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Conversation, Message
from lacli.chat.prompts import Prompts, Spelled
from lacli.errors import PromptError, ReplicaLost
from lacli.llamacpp.sampling import SamplingSettings, new_seed
from lacli.modes import common_prefix
from lacli.session.generation import Answer
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.stats import Finish, Step
from lacli.terminal.interrupts import without_ctrl_c
from lacli.text.reasoning import begun_thought, closed, with_thoughts
from lacli.text.stream import Piece
from lacli.text.template import chatml

ENDED_BY: dict[Finish, str] = {"eog": "an end token", "stop": "a stop text", "length": "the limit"}

COMPACT = 0.5
"""Share of the context that a compacted conversation may take."""


class Chat:
    """Turns of a conversation on one session, whose cache holds the last of them.

    conversation: what was said. limit: tokens of an answer, -1 for none. stops: texts that end one. sampling: as the
    user asked for it. turns: the answers so far. notes: sentences about the last turn or change.
    dropped: the oldest questions that had no room in it. watch: gets every step. store: keeps the turns, or None.
    """

    def __init__(
        self, session: Session, adjusted: Adjusted, conversation: Conversation, *, context_shift: bool = False
    ) -> None:
        """context_shift: a full context loses its oldest tokens instead of ending the answer.

        Where the user has set no seed, the session's is the one in use.
        """
        self.session = session
        self.conversation = conversation
        self.sampling = adjusted.sampling
        self.limit, self.stops = adjusted.limit, adjusted.stops
        self.turns: list[Answer] = []
        self.notes: list[str] = []
        self.dropped = 0
        self.watch: Callable[[Step, str], None] | None = None
        self.store: TextStore | None = None
        self._used = 0
        self._seed = session.sampling.seed
        self._prompts = Prompts(session)
        if session.prompts.template is None:
            session.prompts.use(chatml(session.model))
            self.notes.append("the model has no chat template, so ChatML is used; --chat-template takes another one")
        self._shifts = context_shift and self._can_shift()
        self.recall()

    @property
    def settings(self) -> DecodeSettings:
        """How tokens are guessed."""
        return self.session.settings

    @property
    def seed(self) -> int:
        """The seed in use where the user has set none; -1 where he has, or where nothing is drawn."""
        return -1 if self.session.sampling.greedy or self.sampling.seed >= 0 else self._seed

    @property
    def last(self) -> Answer | None:
        """The latest answer."""
        return self.turns[-1] if self.turns else None

    @property
    def used(self) -> int:
        """Tokens of the context that the conversation takes, decoded already or not."""
        return min(self._used, self.cells)

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
        before = self.conversation.messages.copy()
        self.notes = []
        if self.conversation.is_open:
            self.notes.append("the question before it had no answer, and is left out")
        self.conversation.ask(question)
        return self._turn(before)

    def again(self) -> Generator[Piece]:
        """Answer the last question anew, with another seed where none was asked for.

        The answer that there is goes when the new one comes.
        """
        before, turns = self.conversation.messages.copy(), len(self.turns)
        try:
            self.notes = []
            self.conversation.take_back_answer()
            if self.sampling.seed < 0 and not self.session.sampling.greedy:
                self._seed = new_seed()
                self._adapt(self.settings, self.sampling)
            yield from self._turn(before)
            if before == self.conversation.messages:
                self.notes.append(self._why_the_same())
        finally:
            if len(self.turns) == turns:
                self._restore(before)

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
        rest = Conversation(self.conversation.system, self.conversation.messages)
        dropped = 0
        while not dropped or len(self._spelled(rest).tokens) > COMPACT * self.cells:
            if not rest.drop_oldest():
                break
            dropped += 1
        if dropped:
            self.conversation.messages[:] = rest.messages
            self.recall()
        return dropped

    def recall(self) -> None:
        """Take in a conversation whose beginning is another; its answers keep the tokens they were generated with."""
        with suppress(PromptError):  # the next turn says it
            self._prompts.recall(self.conversation)
        self._cut_back()

    def change(self, adjusted: Adjusted, seed: int = -1) -> str:
        """Take new settings; what to know about them, empty where there is nothing. seed: where they set none.

        Raises UsageError for settings that cannot be, ModelLoadError for a context that does not fit into memory; then
        the old ones stay.
        """
        known = len(self.session.notes)
        if seed >= 0:
            self._seed = seed
        elif adjusted.sampling.seed < 0 <= self.sampling.seed:
            self._seed = new_seed()
        anew = self._adapt(adjusted.decoding, adjusted.sampling)
        self.sampling = adjusted.sampling
        self.limit, self.stops = adjusted.limit, adjusted.stops
        sentences = self.session.notes[known:]
        if anew:
            sequences = self.session.engine.sequences
            sentences.append(
                f"the context was made anew, for {sequences} sequences: the conversation is decoded again with the "
                "next message"
            )
        return "; ".join(sentences)

    def _why_the_same(self) -> str:
        if self.session.sampling.greedy:
            return "at temperature 0 the answer comes out the same; /set temp 0.8 for another one"
        if self.sampling.seed >= 0:
            return "one seed gives one answer; /set seed -1 for another one each time"
        return "another seed gave the same answer"

    def _restore(self, messages: list[Message]) -> None:
        self.conversation.messages[:] = messages
        self.dropped = 0

    def _turn(self, before: list[Message]) -> Generator[Piece]:
        """The answer to the last question; before: the messages that come back where it has no room."""
        try:
            prompt = self._fitting_prompt()
        except PromptError:
            self._restore(before)
            raise
        generation = self.session.generate(
            prompt.tokens,
            self.limit,
            (*self.stops, *self.session.prompts.turn_ends),
            reuse=True,
            n_keep=self._kept() if self._shifts else None,
            watch=self.watch,
        )
        begun = begun_thought(prompt.text)
        try:
            yield from with_thoughts(generation, begun)
        finally:
            with without_ctrl_c():
                if generation.statistics.steps:
                    self._finish(prompt, generation.answer(), begun)
        if not generation.statistics.steps:
            self.notes.append("-n is 0, so nothing was answered; /set n -1 takes the limit away")

    def _finish(self, prompt: Spelled, answer: Answer, begun: str) -> None:
        """What came is the answer."""
        # Whoever reads the answer later does not see what its prompt ended with.
        self.conversation.answer(closed(begun + answer.text) if begun else answer.text, answer.tokens)
        self._prompts.answered(prompt, answer.tokens)
        self.turns.append(answer)
        held = len(self.session.decoder.text)
        shifted = len(prompt.tokens) + len(answer.tokens) - held
        self._used = held
        if self.store and (trouble := self.store.add([*prompt.tokens, *answer.tokens])):
            self.notes.append(trouble)
        self.notes += self.session.losses()
        if shifted > 0:
            self.notes.append(f"the context was full: {shifted} tokens behind the system prompt are forgotten")
        if answer.finish_reason == "length" and answer.statistics.tokens != self.limit:
            self.notes.append(f"the context of {self.cells} tokens is full and the answer ends here: {self._choice()}")
        if not answer.text and answer.finish_reason != "interrupt":
            self.notes.append(f"the answer is empty: it ended at once, by {ENDED_BY[answer.finish_reason]}")

    def _spelled(self, conversation: Conversation) -> Spelled:
        """A conversation as the beginning of the next prompt; some templates want a question at the end."""
        messages = conversation.as_messages()
        return self._prompts.spell(messages if conversation.is_open else [*messages, {"role": "user", "content": "?"}])

    def _fitting_prompt(self) -> Spelled:
        """The conversation as a prompt with room for an answer behind it."""
        self.dropped = 0
        prompt = self._spelled(self.conversation)
        while len(prompt.tokens) >= self.cells:
            if not (self._shifts and self.conversation.drop_oldest()):
                raise self._too_long(len(prompt.tokens))
            self.dropped += 1
            self._prompts.recall(self.conversation)
            prompt = self._spelled(self.conversation)
        return prompt

    def _too_long(self, tokens: int) -> PromptError:
        if self.conversation.questions == 1:
            system = ", shorten the system prompt with /system" if self.conversation.system else ""
            return PromptError(
                f"the message needs {tokens} tokens and the context has {self.cells}",
                f"send a shorter one{system}, or start again with -c {tokens + self.cells}",
            )
        what = f"with this message the conversation has {tokens} tokens, and the context {self.cells}"
        return PromptError(what, self._choice())

    def _choice(self) -> str:
        """What a user can do about a full context."""
        more = "" if self.cells >= self.session.model.context else f", or start again with -c {2 * self.cells}"
        if self.conversation.questions < 2:
            return f"/undo takes the question back, /clear forgets all{more}"
        return f"/compact drops the oldest questions, /clear forgets all{more}"

    def _kept(self) -> int:
        """Tokens that stay when the context is shifted: those before the first question, the system prompt's."""
        system = [message for message in self.conversation.as_messages() if message["role"] == "system"]
        spelled = [
            self.session.prompts.conversation([*system, {"role": "user", "content": probe}]) for probe in ("a", "b")
        ]
        return common_prefix(*spelled)

    def _cut_back(self) -> None:
        """Forget, in the cache and in what was learned, what the conversation does not have any more."""
        with suppress(PromptError, ReplicaLost):  # the next turn says it
            spelled = self._spelled(self.conversation)
            self.session.decoder.cut_back(spelled.tokens)
            self._used = len(spelled.tokens) if self.conversation.messages else 0

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
