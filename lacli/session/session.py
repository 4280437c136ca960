"""A loaded model that answers prompts: weights, contexts, sampler, prompts and decoder together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from weakref import WeakSet

from lacli.auto.measure import MeasurePlan
from lacli.auto.mode import AutoModes
from lacli.auto.model_cost import cost_beside, is_put_off, known_cost, put_off
from lacli.auto.step_cost import Cost
from lacli.context import Context, Read, unseen
from lacli.decode import Decoder
from lacli.errors import LacliError, UsageError
from lacli.ik.choice import with_engine
from lacli.llamacpp.context import max_rollback
from lacli.llamacpp.decoding import CONTEXT_PAD, DecodingContext
from lacli.llamacpp.gguf import weight_types
from lacli.llamacpp.model import LlamaModel, offloads
from lacli.llamacpp.probe import proven
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings, new_seed
from lacli.llamacpp.settings import (
    ModelSettings,
    ReplicaSettings,
    check_draws,
    check_rows,
    fitted,
    shared_settings,
    strict_settings,
)
from lacli.replicas.copies import Copies
from lacli.replicas.group import ReplicaGroup
from lacli.session.generation import Generation, as_stops
from lacli.session.prompt import PromptWriter
from lacli.settings import DecodeSettings, SourceName, restrict_to_chain
from lacli.stats import RunStatistics, Step
from lacli.text.files import Closing
from lacli.text.json_schema import grammar_of
from lacli.text.template import VARIABLES, check_variables, choose_template
from lacli.verify import Verifier, verifier

CHAIN_SOURCES: tuple[SourceName, ...] = ("suffix",)
"""The sources of mode auto that guess chains; a model with a recurrent state takes nothing else back."""


class Session(Closing):
    """A model ready to answer; use it in `with`, or close it. A closed session raises LacliError.

    It gives one answer at a time; what would decode beside it raises LacliError, in every thread.
    `notes`: sentences about choices made for the user (a shorter context, a mode that the model cannot run).
    `warnings`: those of them that say what the answer does not keep to. `prompts`: writes prompts as the chat template
    does. `sampler`: what tokens are drawn with, or None where the most probable ones are taken.
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
        replicas: ReplicaSettings | None = None,
        texts: int | None = None,
        often_alone: bool = False,
        verbose: bool = False,
        loading: Callable[[float], None] | None = None,
        reading: Callable[..., AbstractContextManager[Read]] = unseen,
    ) -> None:
        """`template_variables`: what the template gets beside a conversation, such as `enable_thinking`.

        `cost`: what steps cost here, where it was measured before. `replicas`: how many copies of the model answer
        together, and where; None for one. `texts`: answers that a Model decodes at a time in this session's context;
        None where it decodes its own. `often_alone`: mostly one of them decodes. `loading`: as LlamaModel takes it.
        `reading`: as Decoder takes it.
        """
        model_settings, fault = proven(model_settings)
        self.notes = [fault] if fault else []
        self.warnings: list[str] = []
        self._reading = reading
        self.texts, self._is_shared = texts or 1, texts is not None
        self._cost = cost
        self._state: Path | None = None
        self._schema: tuple[str, str, list[str]] = ("", "", [])
        self._busy = Lock()
        self._generations: WeakSet[Generation] = WeakSet()
        if not often_alone:
            model_settings = shared_settings(model_settings, self.texts, on_gpu=offloads(model_settings))
        check_rows(fitted(decode_settings, model_settings), model_settings)
        if decode_settings.strict:
            if replicas and replicas.rpc:
                raise UsageError("--strict is about this machine's processor, and --rpc computes on others", "drop one")
            if self.texts > 1:
                what = "--strict decodes one text at a time: among others its cells lie in another order"
                raise UsageError(what, "--parallel 1")
            check_draws(sampling)
            model_settings, decode_settings = strict_settings(
                model_settings, decode_settings, weight_types(path), on_gpu=offloads(model_settings)
            )
            types = f"-ctk {model_settings.cache_type_k} -ctv {model_settings.cache_type_v}"
            self.notes.append(f"--strict decodes with -fa on {types}")
        copies = replicas is not None and replicas != ReplicaSettings()
        model_settings = with_engine(path, model_settings, strict=decode_settings.strict, copies=copies)
        with ExitStack() as stack:
            self.copies = stack.enter_context(Copies(path, model_settings, replicas, verbose=verbose, loading=loading))
            self.model = self.copies.model
            self.model_settings = self.copies.model_settings
            self.prompts = self._prompts(template, template_variables or {})
            decode_settings = self._restricted(decode_settings)
            self.notes += source_notes(decode_settings)
            self.sampling = self._own_sampling(sampling)
            self.sampler = self._new_sampler(self.sampling)
            stack.callback(self._close_sampler)
            self.engine = self._open_contexts(decode_settings)
            stack.pop_all()
        self.notes += context_notes(self.model_settings.context, self.engine.cells, self.model, alone=self.texts == 1)
        self.decoder = self.decoder_in(self.copies.contexts, decode_settings)

    @property
    def settings(self) -> DecodeSettings:
        """How this session decodes, after what the model made impossible."""
        return self.decoder.settings

    @property
    def sources(self) -> tuple[SourceName, ...]:
        """Where mode auto can take guesses from, of the sources that were chosen."""
        return asked_sources(self.settings)

    @cached_property
    def max_rollback(self) -> int:
        """Guesses that the model can take back after a step: -1 for any number and trees."""
        return max_rollback(self.model, self.model_settings)

    def prompt(
        self, question: str, system: str = "", *, raw: bool = False, history: Sequence[tuple[str, str]] = ()
    ) -> list[int]:
        """The tokens of a question: through the chat template where there is one, or as it stands.

        `history`: the questions before it, each with its answer. Raises PromptError when the question is empty.
        """
        return self.prompts.question(question, system, history, raw=raw)

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """What tokens say; end tokens and other control tokens only with `special`."""
        return self.prompts.text(tokens, special=special)

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int = -1,
        stops: str | Sequence[str] = (),
        *,
        reuse: bool = False,
        watch: Callable[[Step], None] | None = None,
    ) -> Generation:
        """Begin an answer to prompt tokens; iterate it for the text as it is accepted.

        `stops`: a text that ends it, or several. `reuse`: decode only what differs from the text before. `watch`:
        gets every step.
        """
        stops = as_stops(stops)
        with self.alone():
            pass  # one that is closed or decodes another answer says so now
        generation = Generation(
            self.decoder,
            self.prompts.piece,
            prompt,
            max_tokens,
            stops,
            controls=self.prompts.control_tokens(stops),
            reuse=reuse,
            watch=watch,
            seed=self.sampling.drawn_seed,
            alone=self.alone,
        )
        self._generations.add(generation)
        return generation

    def times_plain(self, run: RunStatistics) -> float | None:
        """How many times as fast as plain decoding the last answer was, by the measured costs of its steps.

        None where these were not measured.
        """
        if not (self._cost and run.steps):
            return None
        at, least = self._cost.at(len(self.decoder.tokens)), self.settings.min_outputs
        # A plain step of --strict is padded to `least` rows.
        return run.tokens / sum(
            count * (at.relative(rows) if rows > least else 1.0) for rows, count in run.batches.items()
        )

    def use_cost(self, cost: Cost) -> None:
        """Decode from now on with the measured cost of one copy's steps; what is decoded is decoded anew."""
        if self.copies.elsewhere:
            # A server's name says nothing about what it computes with.
            return
        with self.alone():
            self._cost = cost.among(len(self.copies.names))
            self.decoder = self.decoder_in(self.copies.contexts or self.engine, self.settings)

    def use_known(self, state: Path) -> None:
        """Let mode auto begin with the step costs that the file `state` has; what is decoded is decoded anew."""
        with self.alone():
            self._state = state
        if cost := known_cost(state, self.model.path, self.model_settings):
            self.use_cost(cost)

    @property
    def wants_cost(self) -> bool:
        """True if mode auto can be told what steps cost here and has not been; not right after a try that failed."""
        return not self._cost and not (self._state and is_put_off(self._state, self.model.path, self.model_settings))

    def learn_cost(
        self,
        plan: MeasurePlan,
        state: Path,
        progress: Callable[[str], None],
        opening: AbstractContextManager[None] | None = None,
    ) -> Cost:
        """Tell mode auto what steps cost here, as the file `state` has it or measured now; what is decoded is dropped.

        `progress`, `opening`: as `measure_cost` takes them. Raises KeyboardInterrupt after Ctrl-C.
        """
        cost = cost_beside(self.model, self.model_settings, plan, state, progress, opening)
        if cost.stopped:
            raise KeyboardInterrupt
        # Times of a busy machine mislead more than none: mode auto learns them then.
        if cost.rough and self._state:
            put_off(self._state, self.model.path, self.model_settings)
        elif cost.staircases and not cost.rough:
            self.use_cost(cost)
        return cost

    def decoder_in(
        self, engine: Context | Mapping[str, Context], settings: DecodeSettings, kind: type[Decoder] = Decoder
    ) -> Decoder:
        """A decoder that draws as this session does, in a context of the same model or in those of several copies."""
        make_mode = AutoModes(self._cost)
        if isinstance(engine, Mapping):
            # Where no copies were asked for the only one has no name.
            group = engine[""] if "" in engine else ReplicaGroup(engine.values())
            return kind(group, settings, self._verifier(), make_mode=make_mode, reading=self._reading)
        return kind(engine, settings, self._verifier(), make_mode=make_mode, reading=self._reading)

    def adapt(self, decode_settings: DecodeSettings, sampling: SamplingSettings) -> bool:
        """Decode and sample otherwise from now on; True when that took a new context, where nothing is decoded yet.

        What --strict has decided about the model stays. Raises UsageError for settings that cannot be, ModelLoadError
        when the context does not fit into memory; then all is as before, but nothing is decoded.
        """
        with self.alone():
            now = self.settings
            chosen = replace(decode_settings, strict=now.strict, ordered=now.ordered, min_outputs=now.min_outputs)
            chosen = self._restricted(chosen)
            if (chosen.mode, chosen.sources) != (now.mode, now.sources):
                self.notes += source_notes(chosen)
            if chosen.strict:
                check_draws(sampling)
            sampling = self._own_sampling(sampling)
            before = now, self.sampling, self.sampler
            self.sampling, self.sampler = sampling, self._new_sampler(sampling)
            suits = self.copies.suits(chosen, raw_logits=self.sampler is not None)
            if suits:
                self.decoder.change(chosen, self._verifier())
            else:
                self._change_contexts(chosen, before)
            if before[-1]:
                before[-1].close()
            return not suits

    def close(self) -> None:
        """Give the memory back. Raises LacliError, and changes nothing, while another thread decodes."""
        if self.model.closed:
            return
        for generation in list(self._generations):
            generation.close()
        with self.alone():
            self._close_sampler()
            self.copies.close()

    @property
    def threads(self) -> int:
        """Threads of this process that decode; 0 where GPUs or several copies do."""
        alone = len(self.copies.names) == 1
        return self.model_settings.threads if alone and not offloads(self.model_settings) else 0

    @property
    def longest_text(self) -> int:
        """Tokens that one text among others may have: as many as one alone by default, with -c all that are free."""
        return self.model.context if self.model_settings.context else self.model.default_context

    @property
    def gives_way(self) -> bool:
        """True if fewer of the `threads` decode while other programs take the cores."""
        return self.model_settings.gives_way and self.threads > 1

    @contextmanager
    def alone(self) -> Iterator[Decoder]:
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

    def _prompts(self, wanted: str | None, variables: Mapping[str, object]) -> PromptWriter:
        """Choose the template. `wanted`: as --chat-template takes it; None to continue prompts as they are."""
        template, notes = choose_template(wanted, self.model)
        self.notes += notes
        variables = check_variables(variables)
        if variables and template.stands_in:
            self.notes.append(f"{VARIABLES} has no effect: the model has no chat template")
        return PromptWriter(self.model, replace(template, variables=variables))

    def _restricted(self, settings: DecodeSettings) -> DecodeSettings:
        """The settings with what this model and -b leave possible. Raises UsageError for steps larger than -b."""
        if self.model.chain_only:
            self.copies.keep_first(self.model.chain_only)
        if self._is_shared:
            self.copies.keep_first("texts that share steps share a context")
        if self.texts > 1 and self.model.chain_only:
            if settings.mode != "plain":
                self.notes.append("decoding plainly: the recurrent states of several texts do not go back together")
            # Nor can a text lend the state of its beginning to another.
            settings = replace(settings, mode="plain", max_rollback=0)
        settings, notes = restrict_to_chain(settings, self.model.chain_only, lambda: self.max_rollback)
        self.notes += notes
        settings = fitted(settings, self.model_settings).for_texts(self.texts)
        check_rows(settings, self.model_settings)
        return settings

    def completed(self, sampling: SamplingSettings) -> tuple[SamplingSettings, list[str]]:
        """The settings with a random seed chosen, and a JSON schema turned into its grammar.

        Beside them sentences on what the grammar does not keep to. Raises UsageError for a schema that cannot be.
        """
        if sampling.seed < 0:
            sampling = replace(sampling, seed=new_seed())
        if not sampling.json_schema:
            return sampling, []
        if sampling.json_schema != self._schema[0]:
            self._schema = sampling.json_schema, *grammar_of(sampling.json_schema)
        _, grammar, warnings = self._schema
        return replace(sampling, grammar=grammar, json_schema=""), warnings

    def _own_sampling(self, sampling: SamplingSettings) -> SamplingSettings:
        sampling, warnings = self.completed(sampling)
        told = [each for each in warnings if each not in self.warnings]
        self.notes += told
        self.warnings += told
        return sampling

    def _new_sampler(self, sampling: SamplingSettings) -> LlamaSampler | None:
        return None if sampling.greedy and not self.model.suppressed else LlamaSampler(self.model, sampling)

    def _close_sampler(self) -> None:
        if self.sampler:
            self.sampler.close()

    def _verifier(self) -> Verifier | None:
        return verifier(self.sampler, self.sampling) if self.sampler else None

    def text_verifier(self, sampling: SamplingSettings) -> tuple[Verifier | None, LlamaSampler | None]:
        """What draws the tokens of one text among others as `sampling` says, and its sampler, which is to be closed.

        None for both where the most probable tokens are taken. `sampling`: completed. Raises UsageError for a grammar
        that cannot be.
        """
        sampler = self._new_sampler(sampling)
        return (verifier(sampler, sampling) if sampler else None), sampler

    def _open_copies(self, settings: DecodeSettings) -> DecodingContext:
        # A sampler reads raw logits, which are not there where the backend chooses; any text of a Model may have one.
        raw = self.sampler is not None or self._is_shared
        texts = self.texts if self._is_shared else None
        return self.copies.open(settings, backend_greedy=False if raw else None, texts=texts)

    def _open_contexts(self, settings: DecodeSettings) -> DecodingContext:
        try:
            return self._open_copies(settings)
        finally:
            self.model_settings = self.copies.model_settings
            self.notes += self.copies.take_notes()

    def _change_contexts(
        self, settings: DecodeSettings, before: tuple[DecodeSettings, SamplingSettings, LlamaSampler | None]
    ) -> None:
        """Close the contexts before others are made, since both may not fit into memory; what was comes back.

        Where even that does not fit any more, the closed one stays and every answer says so until one can be made.
        """
        try:
            self.engine = self._open_contexts(settings)
        except LacliError:
            self._close_sampler()
            settings, self.sampling, self.sampler = before
            self.engine = self._open_contexts(settings)
            raise
        finally:
            self.decoder = self.decoder_in(self.copies.contexts or self.engine, settings)


def context_notes(asked: int, cells: int, model: LlamaModel, *, alone: bool) -> list[str]:
    """Say where the context is another one than -c `asked` for, or than the model was trained with.

    `alone`: one text has all of it.
    """
    whole, notes = model.context, []
    if asked > whole:
        behind = f"the model was trained with {whole:,} tokens; behind them its text may fall apart"
        shared = f"answers share {asked:,} tokens, and none has more than the {whole:,} that the model was trained with"
        notes.append(behind if alone else shared)
    if 0 < asked < cells:
        notes.append(f"the context has {cells:,} tokens: llama.cpp rounds {asked:,} up to a multiple of {CONTEXT_PAD}")
    return notes


def asked_sources(settings: DecodeSettings) -> tuple[SourceName, ...]:
    """The sources of mode auto that can guess anything."""
    return tuple(name for name in settings.sources if settings.max_rollback < 0 or name in CHAIN_SOURCES)


def source_notes(settings: DecodeSettings) -> list[str]:
    """Say where mode auto has no source left to guess from."""
    if settings.mode != "auto" or asked_sources(settings):
        return []
    return ["no source is left, so auto decodes plainly"]
