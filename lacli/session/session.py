"""A loaded model that answers prompts: weights, context, samplers, template and decoder together.

The command line and other programs (through `api.py`) come through here; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from weakref import WeakSet

from lacli.auto.past_texts import PastTexts
from lacli.auto.step_cost import Cost
from lacli.batch import Ints
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.errors import LacliError, PromptError, UsageError
from lacli.llamacpp.context import Context, most_back
from lacli.llamacpp.gguf import weight_types
from lacli.llamacpp.library import schema_grammar
from lacli.llamacpp.model import offloads
from lacli.llamacpp.probe import proven
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings, new_seed
from lacli.llamacpp.settings import (
    ModelSettings,
    ReplicaSettings,
    check_draws,
    check_rows,
    fitted,
    strict_settings,
)
from lacli.replicas.copies import Copies
from lacli.session.generation import Generation, as_stops
from lacli.session.notes import (
    asked_sources,
    context_notes,
    idle_notes,
    source_notes,
)
from lacli.settings import DecodeSettings, SourceName, possible
from lacli.stats import Step
from lacli.text.files import Closing
from lacli.text.json_schema import grammar_of
from lacli.text.reasoning import mark_reasoning, marker_tokens
from lacli.text.stream import Piece
from lacli.text.template import (
    MARK,
    VARIABLES,
    ChatTemplate,
    ControlNames,
    as_messages,
    chatml,
    check_variables,
    choose_template,
    with_one_bos,
)
from lacli.verify import Verifier, verifier


class Session(Closing):
    """A model ready to answer; use it in `with`, or close it: what is asked of it afterwards raises LacliError.

    It gives one answer at a time: while one is on its way, what would decode raises LacliError, in every thread.
    notes: sentences about choices made for the user (a shorter context, a mode that the model cannot run). warnings:
    those of them that say what the answer does not keep to. sampler: what tokens are drawn with, or None where the most
    probable ones are taken. template: the chat template, or None where questions go in as they stand.
    """

    def __init__(
        self,
        path: Path,
        model_settings: ModelSettings,
        decode_settings: DecodeSettings,
        sampling: SamplingSettings,
        *,
        template: str | None = "",
        template_variables: Mapping[str, object] | None = None,
        cost: Cost | None = None,
        kept: Sequence[Ints] = (),
        replicas: ReplicaSettings | None = None,
        verbose: bool = False,
    ) -> None:
        """template_variables: what the template gets beside a conversation, such as `enable_thinking`.

        cost: what steps cost here, where it was measured before. kept: the token ids of texts of earlier runs.

        replicas: how many copies of the model answer together, and where; None for one.
        """
        model_settings, fault = proven(model_settings)
        self.notes = [fault] if fault else []
        self.warnings: list[str] = []
        self._cost = cost
        self._kept = PastTexts(kept) if kept else None
        self._schema = ("", "")
        self._busy = Lock()
        self._generations: WeakSet[Generation] = WeakSet()
        check_rows(fitted(decode_settings, model_settings), model_settings)
        if decode_settings.strict:
            if replicas and replicas.rpc:
                raise UsageError("--strict is about this machine's processor, and --rpc computes on others", "drop one")
            model_settings, decode_settings = self._strict(path, model_settings, decode_settings, sampling)
        with ExitStack() as stack:
            self.copies = stack.enter_context(Copies(path, model_settings, replicas, verbose=verbose))
            self.model = self.copies.model
            model_settings = self.model_settings = self.copies.loading
            chosen, notes = choose_template(template, self.model) if template is not None else (None, [])
            self.notes += notes
            variables = check_variables(template_variables or {})
            if variables and not chosen:
                self.notes.append(f"{VARIABLES} has no effect: the model has no chat template")
            self.use_template(chosen and replace(chosen, variables=variables))
            decode_settings = fitted(self._possible(decode_settings), model_settings)
            check_rows(decode_settings, model_settings)
            self.notes += source_notes(decode_settings, texts=self._kept is not None)
            self.notes += idle_notes(sampling)
            self.sampling = self._completed(sampling)
            self.sampler = self._new_sampler(self.sampling)
            stack.callback(self._close_sampler)
            self.engine = self._new_engine(decode_settings)
            stack.pop_all()
        self.notes += context_notes(self.model_settings.context, self.engine.cells, self.model)
        self.decoder = self.decoder_in(self.copies.contexts, decode_settings)

    @property
    def settings(self) -> DecodeSettings:
        """How this session decodes, after what the model made impossible."""
        return self.decoder.settings

    @property
    def sources(self) -> tuple[SourceName, ...]:
        """Where mode auto can take guesses from, of the sources that were chosen."""
        return asked_sources(self.settings, texts=self._kept is not None)

    @property
    def turn_ends(self) -> tuple[str, ...]:
        """Texts that end an answer in the chat template's format, where the model's end tokens may be others."""
        return self.template.stops if self.template else ()

    def use_template(self, template: ChatTemplate | None) -> None:
        """Write conversations as this template does."""
        self.template = template
        tokenize = partial(self.model.tokenize, add_special=False)
        self._markers = marker_tokens(template.source, tokenize) if template else frozenset()
        self._thought_names = {self.text([token], special=True) for token in self._markers}

    def prompt(
        self, question: str, system: str = "", *, raw: bool = False, history: Sequence[tuple[str, str]] = ()
    ) -> list[int]:
        """The tokens of a question: through the chat template where there is one, or as it stands.

        history: the questions before it, each with its answer.
        """
        if not question.strip():
            raise PromptError("the prompt is empty", "give some text with -p or -f")
        if raw or self.template is None:
            before = [part for exchange in history for part in exchange]
            return self.model.tokenize("\n\n".join([*([system] if system else []), *before, question]))
        return self.conversation_prompt(as_messages(question, system, history))

    def conversation_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of `conversation_text`."""
        return self.tokenize(self.conversation_text(messages))

    def conversation_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation up to where its next answer begins, as the template writes it; ChatML where there is none.

        messages: role and content of each, answers as they were generated. Names of control tokens in them are marked
        for `tokenize`. Raises PromptError when the template fails.
        """
        marked = [{**message, "content": self.as_text(message["content"], message["role"])} for message in messages]
        rendered = (self.template or chatml(self.model)).render(marked)
        return with_one_bos(rendered, self.model.bos(), adds_bos=self.model.adds_bos)

    def as_text(self, text: str, role: str) -> str:
        """A message's content for a template: marked, but for what begins and ends the thoughts of an answer."""
        if role != "assistant" or not self._thought_names:
            return self._control_names.marked(text)
        pieces = mark_reasoning([Piece(text)])
        names = self._thought_names
        return "".join(self._control_names.marked(piece.text, names if piece.reasoning else ()) for piece in pieces)

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """The tokens of a conversation's text, or of its later part."""
        tokens: list[int] = []
        for place, (span, is_marked) in enumerate(self._control_names.spans(text)):
            begins = add_special and not place
            if is_marked:
                tokens += [*(self.model.tokenize("") if begins else ()), *self._text_tokens(span)]
            else:
                tokens += self.model.tokenize(span, add_special=begins)
        return tokens

    def _text_tokens(self, span: str) -> list[int]:
        """The tokens of marked text, none of which is a control token."""
        cut = partial(self.model.tokenize, add_special=False, special=False)
        tokens = cut(span.replace(MARK, ""))
        if all(map(self.model.piece, tokens)):
            return tokens
        # The pieces of a name may be joined to its control token all the same: they are read apart.
        return [token for part in span.split(MARK) for token in cut(part)]

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """What tokens say; end tokens and others of their kind only when `special` ones are asked for."""
        pieces = (self.model.piece(token, special=True) if special else self.piece(token) for token in tokens)
        return b"".join(pieces).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """The bytes of a token's text; what marks thoughts has one too."""
        return self.model.piece(token, special=token in self._markers)

    def use_cost(self, cost: Cost) -> None:
        """Decode from now on with what steps cost one copy here; what is decoded is decoded anew."""
        if self.copies.elsewhere:
            # A server's name says nothing about what it computes with.
            return
        with self._alone():
            self._cost = cost.among(len(self.copies.names))
            self.decoder = self.decoder_in(self.copies.contexts or self.engine, self.settings)

    def decoder_in(
        self, engine: Engine | Mapping[str, Engine], settings: DecodeSettings, kind: type[Decoder] = Decoder
    ) -> Decoder:
        """A decoder that draws as this session does, in a context of the same model or in those of several copies."""
        (name, first), *others = engine.items() if isinstance(engine, Mapping) else [("", engine)]
        return kind(first, settings, self._verifier(), cost=self._cost, kept=self._kept, name=name, others=dict(others))

    def adapt(self, decode_settings: DecodeSettings, sampling: SamplingSettings) -> bool:
        """Decode and sample otherwise from now on; True when that took a new context, where nothing is decoded yet.

        What --strict has decided about the model stays. Raises UsageError for settings that cannot be, ModelLoadError
        when the context does not fit into memory; then all is as before, but nothing is decoded.
        """
        with self._alone():
            return self._adapt(decode_settings, sampling)

    def _adapt(self, decode_settings: DecodeSettings, sampling: SamplingSettings) -> bool:
        strict = self.settings
        decode_settings = self._possible(
            replace(decode_settings, strict=strict.strict, ordered=strict.ordered, least_outputs=strict.least_outputs)
        )
        decode_settings = fitted(decode_settings, self.model_settings)
        check_rows(decode_settings, self.model_settings)
        if (decode_settings.mode, decode_settings.sources) != (self.settings.mode, self.settings.sources):
            self.notes += source_notes(decode_settings, texts=self._kept is not None)
        if decode_settings.strict:
            check_draws(sampling)
        sampling = self._completed(sampling)
        before = self.settings, self.sampling, self.sampler
        self.sampling, self.sampler = sampling, self._new_sampler(sampling)
        suits = self.copies.suits(decode_settings, raw_logits=self.sampler is not None)
        if suits:
            self.decoder.change(decode_settings, self._verifier())
        else:
            self._change_context(decode_settings, before)
        if before[-1]:
            before[-1].close()
        return not suits

    def generate(
        self,
        prompt: Sequence[int],
        limit: int = -1,
        stops: str | Sequence[str] = (),
        *,
        reuse: bool = False,
        keep: int | None = None,
        watch: Callable[[Step, str], None] | None = None,
    ) -> Generation:
        """Begin an answer to prompt tokens; iterate it for the text as it is accepted.

        stops: a text that ends it, or several. reuse: decode only what differs from the text before. keep: shift a
        full context, but not its first tokens. watch: gets every step with its text.
        """
        stops = as_stops(stops)
        with self._alone():
            if self.copies.gone:
                # What has ended may be back; the notes about it are said with the answer.
                self.engine = self.copies.open(self.settings, backend_greedy=False if self.sampler else None)
                self.decoder = self.decoder_in(self.copies.contexts, self.settings)
        generation = Generation(
            self.decoder,
            self.piece,
            prompt,
            limit,
            stops,
            controls=self._controls(stops),
            reuse=reuse,
            keep=keep,
            watch=watch,
            alone=self._alone,
        )
        self._generations.add(generation)
        return generation

    def losses(self) -> list[str]:
        """Sentences about copies that have failed or are back since this was last asked; others go on without them."""
        sentences = self.copies.take_notes() + self.copies.lose(self.decoder.replicas.lost)
        self.engine = next(iter(self.copies.contexts.values()), self.engine)
        return sentences

    def plain_tokens_per_second(self) -> float:
        """The speed of plain decoding at the end of the last answer, from a few timed one-row steps.

        0 where none can be timed: before the first answer, and where the model cannot take a step back.
        """
        with self._alone():
            seconds = self.decoder.time_plain_step()
        return 1 / seconds if seconds else 0.0

    def close(self) -> None:
        """Give the memory back. Raises LacliError, and changes nothing, while another thread decodes."""
        if self.model.closed:
            return
        for generation in list(self._generations):
            generation.close()
        with self._alone():
            self._close_sampler()
            self.copies.close()

    @contextmanager
    def _alone(self) -> Iterator[Decoder]:
        """Keep the decoder for one answer, or for one change. Raises LacliError where it is taken or closed."""
        self.model.check_open()
        if not self._busy.acquire(blocking=False):
            raise LacliError(
                "the session is generating an answer already",
                "iterate that one to its end or close it first, or load the model once more",
            )
        try:
            yield self.decoder
        finally:
            self._busy.release()

    def _controls(self, stops: Sequence[str]) -> dict[int, str]:
        """The control tokens that texts name, each with its name; they have no other text."""
        tokens = {token for stop in stops for token in self.model.tokenize(stop, add_special=False)}
        return {token: name for token in tokens if not self.piece(token) and (name := self.text([token], special=True))}

    def _new_sampler(self, sampling: SamplingSettings) -> LlamaSampler | None:
        return None if sampling.greedy and not self.model.suppressed else LlamaSampler(self.model, sampling)

    def _close_sampler(self) -> None:
        if self.sampler:
            self.sampler.close()

    def _verifier(self) -> Verifier | None:
        return verifier(self.sampler, self.sampling) if self.sampler else None

    def _new_engine(self, decode_settings: DecodeSettings) -> Context:
        # A sampler reads raw logits, which are not there where the backend chooses.
        try:
            return self.copies.open(decode_settings, backend_greedy=False if self.sampler else None)
        finally:
            self.model_settings = self.copies.loading
            self.notes += self.copies.take_notes()

    def _change_context(
        self, settings: DecodeSettings, before: tuple[DecodeSettings, SamplingSettings, LlamaSampler | None]
    ) -> None:
        """Close the context before another one is made, since both may not fit into memory; what was comes back.

        Where even that does not fit any more, the closed one stays and every answer says so until one can be made.
        """
        try:
            self.engine = self._new_engine(settings)
        except LacliError:
            self._close_sampler()
            settings, self.sampling, self.sampler = before
            self.engine = self._new_engine(settings)
            raise
        finally:
            self.decoder = self.decoder_in(self.copies.contexts or self.engine, settings)

    def _strict(
        self, path: Path, loading: ModelSettings, decoding: DecodeSettings, sampling: SamplingSettings
    ) -> tuple[ModelSettings, DecodeSettings]:
        """What --strict takes with this model."""
        check_draws(sampling)
        loading, decoding = strict_settings(loading, decoding, weight_types(path), on_gpu=offloads(loading))
        self.notes.append(f"--strict decodes with -fa on -ctk {loading.cache_type_k} -ctv {loading.cache_type_v}")
        return loading, decoding

    def _possible(self, settings: DecodeSettings) -> DecodeSettings:
        if self.model.chain_only:
            self.copies.keep_first(self.model.chain_only)
        settings, notes = possible(settings, self.model.chain_only, lambda: self.most_back)
        self.notes += notes
        return settings

    @cached_property
    def _control_names(self) -> ControlNames:
        return ControlNames(self.model.control_tokens)

    @cached_property
    def most_back(self) -> int:
        """Guesses that the model can take back after a step: -1 for any number and trees."""
        return most_back(self.model, self.model_settings)

    def _completed(self, sampling: SamplingSettings) -> SamplingSettings:
        """The settings with what was left open decided: the seed, and a JSON schema's grammar."""
        if sampling.seed < 0:
            sampling = replace(sampling, seed=new_seed())
        if sampling.json_schema:
            if sampling.json_schema != self._schema[0]:
                grammar, warnings = grammar_of(sampling.json_schema, schema_grammar)
                self._schema = sampling.json_schema, grammar
                self.notes += warnings
                self.warnings += warnings
            sampling = replace(sampling, grammar=self._schema[1], json_schema="")
        return sampling
