"""A loaded model that answers prompts: weights, context and decoder together. The Python API's home.

The command line and other programs come through here; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import randbelow
from time import perf_counter
from typing import overload

from lacli.chain import LlamaSampler
from lacli.closing import Closing
from lacli.context import CONTEXT_PAD, LlamaEngine
from lacli.cores import physical_cores
from lacli.decode import Decoder
from lacli.errors import PromptError, UsageError
from lacli.llama import LlamaModel, offloads, schema_grammar
from lacli.pool import PoolStatistics
from lacli.resolve import find_model
from lacli.sampling import MOST_SEED, SamplingSettings
from lacli.schema import grammar_of
from lacli.settings import DecodeSettings, ModelSettings, check_rows
from lacli.stats import Finish, RunStatistics, Step
from lacli.strict import strict_settings
from lacli.template import chat_prompt, without_bos
from lacli.text import Piece, TextStream
from lacli.tree import Origin
from lacli.verify import verifier
from lacli.weights import weight_types


@dataclass(frozen=True)
class Answer:
    """One finished generation.

    tokens: the generated ids that the text was made of, an end token included; those of a stop string are not, though
    they count as predicted. finish_reason: stop (a stop string), eog (an end token) or length (the limit, or a full
    context).
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: Finish
    statistics: RunStatistics
    pool: PoolStatistics

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression."""
        return self.statistics.tokens_per_step


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
        cores = model_settings.threads or physical_cores()
        model_settings = replace(model_settings, threads=cores, threads_batch=model_settings.threads_batch or cores)
        self.notes: list[str] = []
        check_rows(decode_settings, model_settings)
        if decode_settings.strict:
            if sampling.verify == "rejection" and not sampling.greedy:
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
        self.decoder = Decoder(
            self.engine, decode_settings, verifier(self.sampler, self.sampling) if self.sampler else None
        )
        self.model_settings = model_settings

    @property
    def settings(self) -> DecodeSettings:
        """How this session decodes, after what the model made impossible."""
        return self.decoder.settings

    def prompt(self, question: str, system: str = "", *, raw: bool = False) -> list[int]:
        """The tokens of a question: through the model's chat template where it has one, or as it stands."""
        if not question.strip():
            raise PromptError("the prompt is empty", "give some text with -p or -f")
        formatter = None if raw else self.model.chat_formatter()
        if formatter is None:
            return self.model.tokenize(f"{system}\n\n{question}" if system else question)
        rendered = chat_prompt(formatter, question, system)
        return self.model.tokenize(without_bos(rendered, self.model.bos(), adds_bos=self.model.adds_bos))

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


class Generation:
    """One answer on its way: iterate it for text pieces, then read `answer()`.

    Leaving the iteration early is safe: answer, text and cache stop at the last step that was taken. bytes_of: the
    bytes of a token's text.
    """

    def __init__(
        self,
        decoder: Decoder,
        bytes_of: Callable[[int], bytes],
        prompt: Sequence[int],
        limit: int = -1,
        stops: Sequence[str] = (),
    ) -> None:
        self._decoder = decoder
        self._prompt = prompt
        self._limit = limit
        self._stream = TextStream(bytes_of, stops)
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._finish: Finish = "length"
        self.statistics = RunStatistics(prompt_tokens=len(prompt))

    def __iter__(self) -> Iterator[Piece]:
        begin = perf_counter()
        steps = self._decoder.generate(self._prompt, self._limit)
        try:
            for step in steps:
                if not self.statistics.steps:
                    self.statistics.prompt_s = self._decoder.prompt_s
                    self.statistics.first_token_s = perf_counter() - begin
                yield from self._take(step)
                if self._stream.stopped:
                    return
            yield from self._note(self._stream.finish())
        finally:
            steps.close()
            if self._stream.stopped:
                self._decoder.truncate(len(self._prompt) + self._stream.kept)

    def answer(self) -> Answer:
        """The text and tokens so far, and what they cost."""
        return Answer(
            text="".join(self._text),
            tokens=tuple(self._tokens),
            finish_reason=self._finish,
            statistics=self.statistics,
            pool=self._decoder.pool.statistics(),
        )

    def _take(self, step: Step) -> list[Piece]:
        """Count a step, and give the text that it makes certain."""
        stream, before = self._stream, self._stream.read
        ended = step.finish == "eog"
        tokens = step.tokens[:-1] if ended else step.tokens
        pieces = stream.feed(tokens, [origin is not Origin.MODEL for origin in step.origins[: len(tokens)]])
        self._tokens += step.tokens
        if stream.stopped:
            self._finish = "stop"
            del self._tokens[stream.kept :]
            self.statistics.add(step, stream.read - before)
        else:
            self._finish = step.finish or self._finish
            self.statistics.add(step)
        return self._note(pieces)

    def _note(self, pieces: list[Piece]) -> list[Piece]:
        self._text += [piece.text for piece in pieces]
        return pieces


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
