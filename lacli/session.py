"""A loaded model that answers prompts: weights, context and decoder together. The Python API's home.

The command line and other programs come through here; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from secrets import randbelow
from typing import overload

from lacli.chain import LlamaSampler
from lacli.closing import Closing
from lacli.context import CONTEXT_PAD, LlamaEngine
from lacli.cores import with_threads
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.errors import PromptError, UsageError
from lacli.generation import Answer, Generation
from lacli.llama import LlamaModel, offloads, schema_grammar
from lacli.resolve import find_model
from lacli.sampling import MOST_SEED, SamplingSettings
from lacli.schema import grammar_of
from lacli.settings import DecodeSettings, ModelSettings, check_rows
from lacli.strict import strict_settings
from lacli.template import chat_prompt, without_bos
from lacli.verify import verifier
from lacli.weights import weight_types


class Session(Closing):
    """A model ready to answer; use it in `with`, or close it. Made by `load`.

    notes: sentences about choices made for the user (a shorter context, a mode that the model cannot run). sampler:
    what tokens are drawn with, or None where the most probable ones are taken.
    """

    def __init__(
        self,
        path: Path,
        model_settings: ModelSettings,
        decode_settings: DecodeSettings,
        sampling: SamplingSettings,
        *,
        verbose: bool = False,
    ) -> None:
        model_settings = with_threads(model_settings)
        self.notes: list[str] = []
        check_rows(decode_settings, model_settings)
        if decode_settings.strict:
            if sampling.draws_otherwise:
                raise UsageError("--verify rejection draws other numbers in every mode", "leave it out with --strict")
            model_settings, decode_settings = strict_settings(
                model_settings, decode_settings, weight_types(path), on_gpu=offloads(model_settings)
            )
            cells = f"-ctk {model_settings.cache_type_k} -ctv {model_settings.cache_type_v}"
            self.notes.append(f"--strict decodes with -fa on {cells}")
        with ExitStack() as stack:
            self.model = stack.enter_context(LlamaModel(path, model_settings, verbose=verbose))
            decode_settings = self._possible(decode_settings)
            check_rows(decode_settings, model_settings)
            whole, cut = self.model.context, self.model.default_context
            if not model_settings.context and cut < whole:
                self.notes.append(f"the context is cut to {cut} of the model's {whole} tokens; -c sets it")
            self.sampling = self._completed(sampling)
            greedy = self.sampling.greedy and not self.model.suppressed
            self.sampler = None if greedy else stack.enter_context(LlamaSampler(self.model, self.sampling))
            # A sampler reads raw logits, which are not there where the backend chooses.
            backend_greedy = None if greedy else False
            self.engine = stack.enter_context(
                LlamaEngine(self.model, model_settings, decode_settings, backend_greedy=backend_greedy)
            )
            self._closing = stack.pop_all()
        if 0 < model_settings.context < self.engine.cells and model_settings.context < CONTEXT_PAD:
            self.notes.append(f"llama.cpp makes no context smaller than {self.engine.cells} tokens")
        self.decoder = self.decoder_in(self.engine, decode_settings)
        self.model_settings = model_settings

    @property
    def settings(self) -> DecodeSettings:
        """How this session decodes, after what the model made impossible."""
        return self.decoder.settings

    def prompt(
        self, question: str, system: str = "", *, raw: bool = False, history: Sequence[tuple[str, str]] = ()
    ) -> list[int]:
        """The tokens of a question: through the model's chat template where it has one, or as it stands.

        history: the questions before it, each with its answer.
        """
        if not question.strip():
            raise PromptError("the prompt is empty", "give some text with -p or -f")
        formatter = None if raw else self.model.chat_formatter()
        if formatter is None:
            before = [part for exchange in history for part in exchange]
            return self.model.tokenize("\n\n".join([*([system] if system else []), *before, question]))
        rendered = chat_prompt(formatter, question, system, history)
        return self.model.tokenize(without_bos(rendered, self.model.bos(), adds_bos=self.model.adds_bos))

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """What tokens say; end tokens and others of their kind only when `special` ones are asked for."""
        return b"".join(self.model.piece(token, special=special) for token in tokens).decode("utf-8", "replace")

    def decoder_in(self, engine: Engine, settings: DecodeSettings) -> Decoder:
        """A decoder that draws as this session does, in a context of the same model."""
        return Decoder(engine, settings, verifier(self.sampler, self.sampling) if self.sampler else None)

    def generate(self, prompt: Sequence[int], limit: int = -1, stops: Sequence[str] = ()) -> Generation:
        """Begin an answer to prompt tokens; iterate it for the text as it is accepted."""
        return Generation(self.decoder, self.model.piece, prompt, limit, stops)

    def plain_tokens_per_second(self) -> float:
        """The speed of plain decoding at the end of the last answer, from a few timed one-row steps.

        0 where none can be timed: before the first answer, and where the model cannot take a step back.
        """
        seconds = self.decoder.time_plain_step()
        return 1 / seconds if seconds else 0.0

    def close(self) -> None:
        self._closing.close()

    def _possible(self, settings: DecodeSettings) -> DecodeSettings:
        why = self.model.chain_only
        if not why:
            return settings
        if settings.mode != "plain":
            self.notes.append(f"decoding plainly: {why}")
        # One mode is the same as itself, so nothing has to be done for it, and a second row could not be forgotten.
        return replace(settings, mode="plain", ordered=False, least_outputs=1)

    def _completed(self, sampling: SamplingSettings) -> SamplingSettings:
        """The settings with what was left open decided: the seed, and a JSON schema's grammar."""
        if sampling.idle:
            verb = "have" if len(sampling.idle) > 1 else "has"
            self.notes.append(f"{' and '.join(sampling.idle)} {verb} no effect at temperature 0; --temp sets it")
        if sampling.seed < 0:
            sampling = replace(sampling, seed=randbelow(MOST_SEED + 1))
        if sampling.json_schema:
            grammar, warnings = grammar_of(sampling.json_schema, schema_grammar)
            self.notes += warnings
            sampling = replace(sampling, grammar=grammar, json_schema="")
        return sampling


def load(
    model: str | Path | None = None,
    *,
    model_settings: ModelSettings | None = None,
    decode_settings: DecodeSettings | None = None,
    sampling: SamplingSettings | None = None,
) -> Session:
    """Open a GGUF file (None: the bundled demo model) for `generate`.

    Raises ModelLoadError when the file or its kind cannot be used, UsageError when the settings cannot.
    """
    return open_session(
        find_model(model),
        model_settings or ModelSettings(),
        decode_settings or DecodeSettings(),
        sampling or SamplingSettings(),
    )


def open_session(
    path: Path,
    model_settings: ModelSettings,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    *,
    verbose: bool = False,
) -> Session:
    """`load` with the path found already."""
    return Session(path, model_settings, decode_settings, sampling, verbose=verbose)


@overload
def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too; the first match is meant
    session: Session, prompts: str, *, system: str = "", limit: int = -1, stops: Sequence[str] = (), raw: bool = False
) -> Answer: ...
@overload
def generate(
    session: Session,
    prompts: Sequence[str],
    *,
    system: str = "",
    limit: int = -1,
    stops: Sequence[str] = (),
    raw: bool = False,
) -> list[Answer]: ...
def generate(
    session: Session,
    prompts: str | Sequence[str],
    *,
    system: str = "",
    limit: int = -1,
    stops: Sequence[str] = (),
    raw: bool = False,
) -> Answer | list[Answer]:
    """Answer one prompt, or several one after another with the pool kept between them.

    limit: tokens an answer may have, -1 for no limit but the context's. Raises PromptError for an empty prompt or
    one longer than the context, SamplingError when a grammar or biases leave no token.
    """
    if isinstance(prompts, str):
        generation = session.generate(session.prompt(prompts, system, raw=raw), limit, stops)
        for _ in generation:
            pass
        return generation.answer()
    return [generate(session, prompt, system=system, limit=limit, stops=stops, raw=raw) for prompt in prompts]
