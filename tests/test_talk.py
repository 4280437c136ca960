"""A conversation on a real model: every turn is a fresh run of the same tokens, and only what is new is decoded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path

import pytest

from lacli.chat.adjust import Adjusted
from lacli.chat.conversation import Conversation
from lacli.chat.talk import Chat
from lacli.context import LlamaEngine
from lacli.decode import Decoder, common_prefix
from lacli.errors import ModelLoadError, PromptError, UsageError
from lacli.judge import PLAIN, Difference, largest_difference, parting, plain_logits
from lacli.replay import Recorder, Rows, accepted_rows
from lacli.resolve import demo_model
from lacli.sampling import SamplingSettings
from lacli.session import Session
from lacli.settings import DecodeSettings, ModelSettings
from lacli.stats import Step
from lacli.thoughts import answer_of
from tests.tiny_models import write_gemma_swa, write_hybrid, write_mamba

SMALL = DecodeSettings(window=4, ngram=4, guesses=4)
LOADING = ModelSettings(threads=1, gpu_layers=0)
QUESTION = "Write a Python function is_empty: Return true if the queue is empty."
NAMES = ("json.dumps", "os.path.join", "shutil.copy", "random.choice", "textwrap.fill")
TASKS = ("Explain {}.", "Show me the source code of {}.", "Write a function like {}.", "What does {} return?")
TURNS = [task.format(name) for task in TASKS for name in NAMES] * 2


def opened(decoding: DecodeSettings = SMALL, sampling: SamplingSettings | None = None, context: int = 0) -> Session:
    return Session(demo_model(), replace(LOADING, context=context), decoding, sampling or SamplingSettings())


def chat_on(session: Session, limit: int = 12, sampling: SamplingSettings | None = None, **more: bool) -> Chat:
    adjusted = Adjusted(session.settings, sampling or SamplingSettings(), limit)
    return Chat(session, adjusted, Conversation(), **more)


def said(pieces: Generator[object]) -> str:
    return "".join(piece.text for piece in pieces)  # type: ignore[attr-defined]


@pytest.fixture
def chat() -> Iterator[Chat]:
    with opened() as session:
        yield chat_on(session)


class Watched:
    """A session's decoder, on a recorded engine, whose steps of the last turn and prompts are kept."""

    def __init__(self, session: Session) -> None:
        self.engine = Recorder(session.engine)
        self.decoder = session.decoder = session.decoder_in(self.engine, session.settings)
        self.steps: list[Step] = []
        self.prompt: list[int] = []
        self._generate = self.decoder.generate
        self.decoder.generate = self._noting  # type: ignore[method-assign]

    def _noting(
        self, prompt: Sequence[int], limit: int = -1, *, reuse: bool = False, keep: int | None = None
    ) -> Generator[Step]:
        self.prompt, self.steps, self.engine.decoded = list(prompt), [], []
        for step in self._generate(prompt, limit, reuse=reuse, keep=keep):
            self.steps.append(step)
            yield step

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.tokens]

    def logits_after(self, text: Sequence[int]) -> object:
        """The logits after the first generated tokens, in the shape of the step that chose the next one."""
        recorded = [rows for rows in self.engine.decoded if any(rows.outputs)]
        ends = list(accumulate(len(step.tokens) for step in self.steps))
        place = next(place for place, end in enumerate(ends) if len(text) < end)
        begin, rows = [0, *ends][place], recorded[place]
        self.decoder._cache.truncate(rows.positions[0])
        self._share(rows)
        assert self.engine.decode(rows.batch())
        row = accepted_rows(rows, text[begin:])[-1]
        return self.engine.logits()[sum(rows.outputs[:row])].copy()

    def _share(self, rows: Rows) -> None:
        for sequence in {sequence for ids in rows.sequences for sequence in ids if sequence}:
            self.engine.remove(sequence, 0, -1)
            self.engine.copy(0, sequence, 0, rows.positions[0])


def judged(watched: Watched, plain_engine: LlamaEngine, expected: Sequence[int]) -> Difference | None:
    """Where the turn parts from a fresh plain run of the same prompt, by the rule of `lacli check`."""
    at = parting(expected, watched.tokens)
    if at is None:
        return None
    plain, other = expected[at], watched.tokens[at]
    replayed = watched.logits_after(expected[:at])
    logits = plain_logits(plain_engine, watched.prompt, expected[:at])
    margin = float(logits[plain]) - float(logits[other])
    return Difference(at, plain, other, margin, largest_difference(logits, replayed))  # type: ignore[arg-type]


@pytest.mark.parametrize("decoding", [SMALL, DecodeSettings(mode="lookup"), PLAIN], ids=lambda each: each.mode)
def test_each_of_forty_turns_is_a_fresh_run_of_the_same_tokens(decoding: DecodeSettings) -> None:
    with opened(decoding) as session, LlamaEngine(session.model, LOADING, PLAIN) as plain_engine:
        watched, chat = Watched(session), chat_on(session)
        fresh = Decoder(plain_engine, PLAIN)
        differences = []
        for question in TURNS:
            held = watched.decoder.text[: watched.decoder._cache.past]
            said(chat.ask(question))
            prompt = watched.prompt
            assert watched.decoder.reused == min(common_prefix(held, prompt), len(prompt) - 1)
            expected = [token for step in fresh.generate(prompt, 12) for token in step.tokens]
            if difference := judged(watched, plain_engine, expected):
                differences.append(difference)
                chat.clear()
        assert len(chat.turns) == 40
        assert not [each for each in differences if each.bug]


def test_with_strict_forty_turns_are_fresh_runs_to_the_last_bit() -> None:
    with opened(replace(SMALL, strict=True)) as session:
        watched, chat = Watched(session), chat_on(session)
        plain = replace(session.settings, mode="plain")
        with LlamaEngine(session.model, session.model_settings, plain) as engine:
            fresh = Decoder(engine, plain)
            for question in TURNS:
                said(chat.ask(question))
                prompt = watched.prompt
                assert watched.tokens == [token for step in fresh.generate(prompt, 12) for token in step.tokens]
        assert watched.decoder.reused > 1000


def test_undo_and_clear_forget_what_was_taken_back(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    one = chat.used
    text = list(chat.session.decoder.text)
    said(chat.ask("Explain json.dumps."))
    assert chat.used > one
    assert chat.undo() == "Explain json.dumps."
    assert one - 1 <= chat.used <= one + 6
    assert chat.session.decoder.text[: one - 1] == text[: one - 1]
    chat.clear()
    assert chat.used < 5 and chat.conversation.questions == 0
    assert chat.undo() is None


def test_a_question_answered_anew_is_decoded_from_its_end(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    first = chat.conversation.messages[-1].content
    asked = chat.turns[0].statistics.prompt_tokens
    assert said(chat.again()) == first
    assert chat.turns[1].statistics.reused_tokens == asked - 1
    assert chat.conversation.questions == 1
    assert "temperature 0" in chat.notes[0]


def test_another_answer_has_another_seed_unless_the_user_has_fixed_one() -> None:
    sampling = SamplingSettings(temp=1.5, seed=7)
    with opened(PLAIN, sampling) as session:
        chat = chat_on(session, 20, sampling)
        first = said(chat.ask(QUESTION))
        assert said(chat.again()) == first
        assert "seed" in chat.notes[0]
        chat.change(Adjusted(PLAIN, replace(sampling, seed=-1), 20))
        others = {said(chat.again()) for _ in range(4)}
        assert len(others - {first}) > 1 and chat.notes == []


def test_stopping_keeps_what_came(chat: Chat) -> None:
    chat.limit = 40
    with closing(chat.ask(QUESTION)) as pieces:
        came = "".join(piece.text for piece in islice(pieces, 6))
    assert chat.conversation.messages[-1].content.startswith(came)
    assert chat.last and chat.last.tokens and len(chat.last.tokens) < 40
    said(chat.ask("Explain json.dumps."))
    assert chat.turns[1].statistics.reused_tokens >= chat.turns[0].statistics.prompt_tokens


def test_stopping_before_anything_came_leaves_the_question_open(chat: Chat) -> None:
    chat.ask(QUESTION).close()
    assert [message.role for message in chat.conversation.messages] == ["user"]
    assert said(chat.again())
    assert [message.role for message in chat.conversation.messages] == ["user", "assistant"]


def test_more_sequences_take_a_new_context_and_give_the_same_text(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    more = replace(SMALL, window=12, guesses=9)
    assert "22 sequences" in chat.change(Adjusted(more, limit=12))
    assert chat.session.engine.sequences == 22 and chat.used == 0
    answer = said(chat.ask("Explain json.dumps."))
    assert chat.turns[1].statistics.reused_tokens == 0
    messages = chat.conversation.as_messages()[:-1]
    with opened(more) as session:
        generation = session.generate(session.conversation_prompt(messages), 12)
        assert "".join(piece.text for piece in generation) == answer


def test_what_fits_into_the_context_keeps_it(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    used = chat.used
    for decoding in (DecodeSettings(mode="lookup"), replace(SMALL, window=2), PLAIN):
        assert chat.change(Adjusted(decoding, limit=12)) == ""
        assert chat.used == used and chat.settings == decoding
    said(chat.ask("Explain json.dumps."))
    assert chat.turns[1].statistics.reused_tokens == used - 1


def test_settings_that_cannot_be_change_nothing(chat: Chat) -> None:
    said(chat.ask(QUESTION))
    before = (chat.settings, chat.sampling, chat.session.sampler)
    with pytest.raises(UsageError, match="grammar"):
        chat.change(Adjusted(SMALL, SamplingSettings(grammar="root ::= (")))
    with pytest.raises(UsageError, match="rows"):
        chat.change(Adjusted(replace(SMALL, window=200, ngram=20)))
    assert (chat.settings, chat.sampling, chat.session.sampler) == before
    assert said(chat.ask("Explain json.dumps."))


def test_a_context_that_does_not_fit_leaves_the_old_one(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    said(chat.ask(QUESTION))
    make, left = chat.session._new_engine, [1]

    def full(settings: DecodeSettings) -> LlamaEngine:
        if left:
            left.pop()
            raise ModelLoadError("cannot make a context: not enough memory")
        return make(settings)

    monkeypatch.setattr(chat.session, "_new_engine", full)
    with pytest.raises(ModelLoadError):
        chat.change(Adjusted(replace(SMALL, window=30)))
    assert chat.settings == SMALL
    assert said(chat.ask("Explain json.dumps."))


def test_a_full_context_says_what_can_be_done() -> None:
    with opened(PLAIN, context=256) as session:
        chat = chat_on(session, 300)
        said(chat.ask(QUESTION))
        chat.session.adapt(PLAIN, SamplingSettings(ignore_eos=True))
        said(chat.ask("Explain json.dumps."))
        assert all(word in chat.notes[0] for word in ("/compact", "/clear", "-c 512"))
        with pytest.raises(PromptError, match="the context 256") as found:
            said(chat.ask("And os.path?"))
        assert all(word in found.value.hint for word in ("/compact", "/clear", "-c 512"))
        assert chat.conversation.questions == 2, "the question that had no room is taken back"
        assert chat.compact() == 1
        assert chat.conversation.questions == 1


def test_a_compacted_chat_leaves_half_of_the_context_free() -> None:
    with opened(PLAIN, context=512) as session:
        chat = chat_on(session, 8)
        for question in TURNS[:12]:
            said(chat.ask(question))
        assert chat.used > 256
        dropped = chat.compact()
        assert dropped and chat.conversation.questions == 12 - dropped
        assert len(session.conversation_prompt(chat.conversation.as_messages())) <= 256
        assert said(chat.ask(QUESTION))
        assert len(chat.conversation.messages) == 2 * (13 - dropped)


def test_a_message_larger_than_the_context_is_refused_and_the_chat_goes_on() -> None:
    with opened(PLAIN, context=256) as session:
        chat = chat_on(session)
        with pytest.raises(PromptError, match="shorter one"):
            said(chat.ask("word " * 400))
        assert chat.conversation.questions == 0
        assert said(chat.ask(QUESTION))


@pytest.mark.parametrize("decoding", [SMALL, PLAIN], ids=lambda each: each.mode)
def test_a_shifted_context_goes_on_and_keeps_the_system_prompt(decoding: DecodeSettings) -> None:
    endless = SamplingSettings(ignore_eos=True)
    with opened(decoding, endless, context=256) as session:
        adjusted = Adjusted(decoding, endless, 300)
        chat = Chat(session, adjusted, Conversation("You are a careful programmer."), context_shift=True)
        said(chat.ask(QUESTION))
        assert chat.last and chat.last.statistics.tokens == 300
        kept = session.text(session.decoder.text, special=True)
        assert "careful programmer." in kept and "is_empty: Return" not in kept
        chat.limit = 10
        said(chat.ask("Explain json.dumps."))
        assert "forgotten" in chat.notes[0]
        assert chat.conversation.questions == 1


def test_a_chat_that_shifts_cannot_be_strict() -> None:
    with opened(replace(SMALL, strict=True)) as session:
        assert "--strict" in chat_on(session, context_shift=True).notes[0]


def test_a_cache_with_quantised_keys_is_not_shifted() -> None:
    loading = replace(LOADING, cache_type_k="q8_0")
    with Session(demo_model(), loading, PLAIN, SamplingSettings()) as session:
        assert "-ctk" in chat_on(session, context_shift=True).notes[0]


@pytest.mark.parametrize("write", [write_mamba, write_hybrid, write_gemma_swa], ids=lambda write: write.__name__)
def test_turns_on_other_kinds_of_models_are_fresh_runs(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    with Session(tmp_path / "model.gguf", LOADING, SMALL, SamplingSettings()) as session:
        watched, chat = Watched(session), chat_on(session, 10)
        with LlamaEngine(session.model, LOADING, PLAIN) as engine:
            for question in ("one two", "three", "", "four", "five"):
                if question:
                    said(chat.ask(question))
                    fresh = Decoder(engine, PLAIN).generate(watched.prompt, 10)
                    assert watched.tokens == [token for step in fresh for token in step.tokens]
                else:
                    chat.undo()


def test_a_model_without_a_template_talks_in_chatml() -> None:
    with opened() as session:
        session.use_template(None)
        chat = chat_on(session)
        assert "ChatML" in chat.notes[0]
        said(chat.ask(QUESTION))
        assert "<|im_start|>user" in session.text(session.decoder.text, special=True)


def test_a_thought_that_the_prompt_opened_and_ctrl_c_cut_off_leaves_the_history() -> None:
    with opened() as session:
        own = session.template
        assert own
        thinking = own.source + "{% if add_generation_prompt %}<think>\n{% endif %}{# split('</think>') #}"
        session.use_template(replace(own, source=thinking, formatter=session.model.compile_template(thinking)))
        chat = chat_on(session)
        with closing(chat.ask(QUESTION)) as pieces:
            first = next(pieces)
        assert first.thought
        content = chat.conversation.messages[-1].content
        assert content == f"<think>\n{chat.turns[-1].text}\n</think>\n\n" and answer_of(content) == ""
