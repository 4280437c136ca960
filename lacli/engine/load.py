"""`open_engine`, the one function that loads a model, and its engine, with prompts, samplers and step costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from lacli.auto.model_cost import SAMPLE, WARM_UP, Say, cost_of, fit_plan, measure, measure_cost, saved_cost
from lacli.auto.step_cost import Cost, MeasurePlan
from lacli.context import Closing
from lacli.engine.answer import AnswerText, Generation, as_stops
from lacli.engine.engine import Engine, OnPrompt, SequenceOptions
from lacli.engine.libraries import choose_library, open_context
from lacli.engine.prompts import PromptWriter
from lacli.engine.replicas import AnyContext, Weights
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.context import max_rollback
from lacli.llamacpp.devices import offloads
from lacli.llamacpp.gguf import architecture_and_types
from lacli.llamacpp.probe import working_settings
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings, new_seed
from lacli.llamacpp.settings import (
    ContextSize,
    ModelSettings,
    check_draws,
    fit_to_batch,
    shared_settings,
    strict_settings,
)
from lacli.settings import DecodeSettings, restrict_to_chain
from lacli.stats import RunStatistics
from lacli.text.json_schema import grammar_of
from lacli.text.records import state_file
from lacli.text.template import choose_template
from lacli.verify import Rejection, SampleAndMatch, Verifier


def open_engine(
    path: Path,
    model_settings: ModelSettings,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings | None = None,
    *,
    slots: int | None = None,
    often_alone: bool = False,
    template: str | None = "",
    template_variables: Mapping[str, object] | None = None,
    verbose: bool = False,
    loading: Callable[[float], None] | None = None,
    on_prompt: OnPrompt = lambda done, total: None,
) -> ModelEngine:
    """Load a model, open its context, and return its engine. Mode auto begins with the step costs of `lacli cost`.

    `sampling`: None for the defaults. `slots`: how many sequences a worker decodes together, each with its own
    sampling; None for one at a time in the caller's thread. `often_alone`: whether mostly one sequence runs, whatever
    `slots`. `template`: a chat template's name, file or text, "" for the model's own, None for none. `loading`: called
    with the loaded share, 0 to 1. `on_prompt`: called with the numbers of decoded and of all tokens of each prefill.
    Raises ModelLoadError if the model cannot be loaded, UsageError if settings contradict each other.
    """
    if slots is not None and model_settings.replicas > 1:
        raise UsageError("with --replicas only one answer is decoded at a time, not several", "leave --replicas out")
    model_settings, fault = working_settings(model_settings)
    notes = [fault] if fault else []
    sampling = sampling or SamplingSettings()
    fit_to_batch(decode_settings, model_settings)
    strict = decode_settings.strict
    if strict:
        if model_settings.rpc:
            raise UsageError("--strict is for this machine's processor, and --rpc uses other machines", "leave out one")
        if (slots or 1) > 1:
            what = "--strict decodes one answer at a time: with several, the order of their cells differs"
            raise UsageError(what, "use --parallel 1")
        check_draws(sampling)
        model_settings, decode_settings = strict_settings(
            model_settings, decode_settings, architecture_and_types(path)[1], on_gpu=offloads(model_settings)
        )
        types = f"-ctk {model_settings.cache_type_k} -ctv {model_settings.cache_type_v}"
        notes.append(f"--strict decodes with -fa on {types}")
    model_settings = choose_library(path, model_settings, strict=strict)
    if model_settings.engine == "llama" and not often_alone:
        model_settings = shared_settings(model_settings, slots or 1, on_gpu=offloads(model_settings))
    with ExitStack() as stack:
        weights = stack.enter_context(Weights(path, model_settings, verbose=verbose, loading=loading))
        chosen, told = choose_template(template, weights.model)
        notes += told
        prompts = PromptWriter(weights.model, replace(chosen, variables=template_variables or {}))
        engine = ModelEngine(weights, prompts, decode_settings, sampling, slots, notes, on_prompt)
        stack.enter_context(engine)
        warm = engine.warm_up()
        if cost := saved_cost(state_file(), path, engine.model_settings) or warm:
            engine.use_cost(cost)
        stack.pop_all()
    return engine


class ModelEngine(Engine, Closing):
    """An engine with its loaded model. Use it in `with`, or close it. A closed engine raises LacliError.

    `notes`: sentences about choices made for the user (another context size, a mode that the model cannot run).
    `warnings`: the notes about ignored parts of a JSON schema. `prompts`: writes prompts in the chat template.
    `sampling`, `verifier`, `sampler`: of `generate`; requests of a worker have their own.
    """

    context: AnyContext

    def __init__(
        self,
        weights: Weights,
        prompts: PromptWriter,
        decode_settings: DecodeSettings,
        sampling: SamplingSettings,
        slots: int | None,
        notes: list[str],
        on_prompt: OnPrompt,
    ) -> None:
        """Open a context of `weights`; `close` closes both. `slots`: None without a worker. `notes`: is extended."""
        self.weights, self.model, self.prompts = weights, weights.model, prompts
        self.model_settings = weights.plans[0]
        self.notes, self.warnings = notes, list[str]()
        self._on_prompt = on_prompt
        self._has_worker = slots is not None
        self.slots = slots or 1
        settings = self._restricted(decode_settings)
        self.sampling = self._complete_sampling(sampling)
        self.verifier, self.sampler = self.make_verifier(self.sampling)
        with ExitStack() as stack:
            if self.sampler:
                stack.enter_context(self.sampler)
            context = self._open_context(settings)
            stack.pop_all()
        if 0 < (asked := self.model_settings.context) < context.cells:
            self.notes.append(f"the context has {context.cells:,} tokens: llama.cpp rounds {asked:,} up")
        if asked > self.model.trained_tokens:
            self.notes.append(f"the model was trained with {self.model.trained_tokens:,} tokens; more may be nonsense")
        longest = self.model.trained_tokens if self.model_settings.context else self.model.default_limit
        super().__init__(context, settings, self.slots, longest=longest)

    @cached_property
    def max_rollback(self) -> int:
        """The most drafted tokens in a chain that the model can take back after a step; -1 for any number and trees."""
        return max_rollback(self.model, self.model_settings)

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return self.prompts.text(tokens, special=special)

    def generate(self, prompt: Sequence[int], max_tokens: int = -1, stops: str | Sequence[str] = ()) -> Generation:
        """Begin an answer, which is decoded as the caller reads it. `stops`: one text or several that end it."""
        self.model.check_open()
        stops = as_stops(stops)
        controls = self.prompts.control_tokens(stops)
        text = AnswerText(self, self.prompts.piece, prompt, stops, controls=controls, seed=self.sampling.drawn_seed)
        options = SequenceOptions(max_tokens, self.verifier)
        return Generation(text, text.pieces(prompt, options, self._on_prompt))

    def times_plain(self, run: RunStatistics) -> float | None:
        """Return an answer's speed divided by plain decoding's, by measured step costs; None without costs or steps."""
        if not (self.cost and run.steps):
            return None
        at, least = self.cost.at(run.prompt_tokens + run.tokens), self.settings.constraints.min_outputs
        # A plain step of --strict is padded to `least` rows.
        return run.tokens / sum(
            count * (at.relative(rows) if rows > least else 1.0) for rows, count in run.batches.items()
        )

    def use_cost(self, cost: Cost) -> None:
        """Use step costs from now on. Do nothing with --rpc, with several replicas, or if too little was measured."""
        if len(self.weights.plans) == 1 and not self.model_settings.rpc and cost.is_usable:
            self.reconfigure(self.settings, cost)

    def warm_up(self) -> Cost | None:
        """Time steps of a model wholly on a GPU; return their cost. None for others, or if `max_outputs` is too low."""
        on_gpu = self.model.offloaded and self.model_settings.gpu_layers < 0 and not self.model.chain_only
        if not on_gpu or self.context.max_outputs < WARM_UP.rows[-1]:
            return None
        plan = fit_plan(WARM_UP, self.model_settings, self.context.cells)
        by_context, change_s = measure(self.context, self.model.tokenize(SAMPLE) or [0], plan)
        self.context.clear()
        return Cost(by_context, change_s, plan)

    def learn_cost(self, plan: MeasurePlan, say: Say) -> None:
        """Use the saved step costs; if they do not cover `plan`, measure and save them. `say`: shows the progress."""
        measured = partial(measure_cost, self.model, self.model_settings, plan, open_context, say)
        cost, _ = cost_of(self.model.path, self.model_settings, plan, state_file(), measured, progress=say)
        self.use_cost(cost)

    def adapt(self, decode_settings: DecodeSettings, sampling: SamplingSettings) -> bool:
        """Decode and sample with other settings from now on. Return whether they needed a new context, which is empty.

        `strict` and `constraints` stay as they are. Raises UsageError for impossible settings, and ModelLoadError if a
        new context does not fit into memory. After an error the old settings hold, and the cache may be empty.
        """
        now = self.settings
        chosen = replace(decode_settings, strict=now.strict, constraints=now.constraints)
        chosen = self._restricted(chosen)
        if chosen.strict:
            check_draws(sampling)
        own = self._complete_sampling(sampling)
        before = self.sampling, self.verifier, self.sampler
        self.sampling, (self.verifier, self.sampler) = own, self.make_verifier(own)
        suits = self.context.suits(chosen, raw_logits=self.sampler is not None)
        try:
            if suits:
                self.reconfigure(chosen)
            else:
                self._change_context(chosen)
        except LacliError:
            self.sampling, self.verifier, self.sampler = before
            # If the previous context no longer fits either, every answer fails until a context can be made.
            with suppress(LacliError):
                self._change_context(now)
            raise
        return not suits

    def close(self) -> None:
        self.end_all()
        with self.weights, self.context, self.sampler or nullcontext():
            if self.cache:
                self.cache.save(self)

    def complete_sampling(self, sampling: SamplingSettings) -> tuple[SamplingSettings, list[str]]:
        """Return `sampling` with a random seed if it has none, and with the grammar of its JSON schema.

        The second result has sentences on ignored parts of the schema. Raises UsageError for an impossible schema.
        """
        if sampling.seed < 0:
            sampling = replace(sampling, seed=new_seed())
        if not sampling.json_schema:
            return sampling, []
        grammar, warnings = grammar_of(sampling.json_schema)
        return replace(sampling, grammar=grammar, json_schema=""), warnings

    def make_verifier(self, sampling: SamplingSettings) -> tuple[Verifier | None, LlamaSampler | None]:
        """Return the verifier and the sampler for settings from `complete_sampling`; None, None for greedy decoding.

        The caller must close the sampler. Raises UsageError for an impossible grammar.
        """
        if sampling.greedy and not self.model.suppressed:
            return None, None
        sampler = LlamaSampler(self.model, sampling)
        rejects = sampling.verify == "rejection"
        return Rejection(sampler, sampling.seed) if rejects else SampleAndMatch(sampler), sampler

    def _restricted(self, settings: DecodeSettings) -> DecodeSettings:
        """Return the settings that the model and -b allow; extend `notes`. Raises UsageError if a step exceeds -b."""
        if self.model.chain_only and (others := self.weights.plans[1:]):
            self.notes.append(f"replica {self.weights.names[0]} decodes alone: {self.model.chain_only}")
            del self.weights.plans[-len(others) :]
        if self.slots > 1 and self.model.chain_only:
            if settings.mode != "plain":
                self.notes.append("decoding plainly: with several answers, a recurrent state cannot take back drafts")
            settings = replace(settings, mode="plain").constrained(max_rollback=0)
        settings, notes = restrict_to_chain(settings, self.model.chain_only, lambda: self.max_rollback)
        self.notes += notes
        return fit_to_batch(settings, self.model_settings).for_slots(self.slots)

    def _complete_sampling(self, sampling: SamplingSettings) -> SamplingSettings:
        sampling, warnings = self.complete_sampling(sampling)
        told = [each for each in warnings if each not in self.warnings]
        self.notes += told
        self.warnings += told
        return sampling

    def _open_context(self, settings: DecodeSettings) -> AnyContext:
        # Samplers read raw logits, which a backend that chooses tokens does not copy. With a worker any request may.
        raw = self.sampler is not None or self._has_worker
        shared = ContextSize.for_slots(settings, self.slots, self.model_settings.batch)
        size = shared if self._has_worker else ContextSize.of(settings)
        return self.weights.open(size, backend_greedy=False if raw else None)

    def _change_context(self, settings: DecodeSettings) -> None:
        """Close the context, then open another one: both together may not fit into memory."""
        self.context.close()
        self.switch_context(self._open_context(settings), settings)
