"""What `lacli check` found, as lines and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lacli.check.compare import Result, Run
from lacli.check.invariance import PROBED, SIZES, Probe
from lacli.check.judge import Difference
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings, ModeName
from lacli.terminal.screen import wrapped
from lacli.text.files import PAGE
from lacli.text.format import counted, fitted

Piece = Callable[[int], bytes]

LONGEST_TOKEN = 16
"""Characters of a token's text in the table."""

TREES: tuple[ModeName, ...] = ("lookahead", "auto")
"""Modes whose accepted tokens leave holes among the cells."""

KEYS = 3
"""Columns that name an answer that parts: mode, prompt and token."""


@dataclass(frozen=True)
class Setup:
    """What was checked. `context`: cells. `predict`: tokens of an answer at most. `piece`: the bytes of a token."""

    model: str
    description: str
    backend: str
    on_gpu: bool
    context: int
    model_settings: ModelSettings
    decode_settings: DecodeSettings
    sampling: SamplingSettings
    sampled: str
    predict: int
    prompts: int
    piece: Piece

    @property
    def greedy(self) -> bool:
        return self.sampling.greedy


def as_lines(setup: Setup, result: Result, width: int = 0) -> str:
    """The verdict and what follows, what was checked, and a table a question; `width`: of the terminal, or 0."""
    parts = [wrapped(part, width or PAGE) for part in (*_said(setup, result), _heading(setup))]
    if result.modes:
        parts.append(_mode_table(setup, result, width))
    if partings := list(result.partings):
        parts.append(_difference_table(setup, partings, width))
    if result.probes:
        parts.append(_invariance_table(result.probes, width))
    return "\n\n".join(parts)


def conclusion(setup: Setup, result: Result) -> str:
    """The verdict, and what would make this setup exact, in plain words."""
    return " ".join(_said(setup, result))


def _said(setup: Setup, result: Result) -> list[str]:
    """The conclusion's paragraphs."""
    return [_verdict(result), *([] if result.verdict == "bug" else [advice(setup, result)])]


def advice(setup: Setup, result: Result) -> str:
    """What is known about flags that make this setup exact: what was measured here, and what to try next."""
    sentence = _on_sizes(result)
    exact = all(probe.exact for probe in result.probes)
    if setup.decode_settings.strict or setup.on_gpu or (exact and not result.counts.rounding):
        return sentence
    return f"{sentence} --strict is for the same text in every mode on the CPU: lacli check --strict tries it here."


def _on_sizes(result: Result) -> str:
    tried = result.advice
    if all(probe.exact for probe in result.probes):
        sizes = _sizes(result.probes)
        sentence = f"Decoding {sizes} tokens at once gave {PROBED} of them the same numbers to the last bit"
        of_trees = sum(mode.counts.rounding for mode in result.modes if _grows_trees(mode.settings))
        if result.counts.rounding == of_trees > 0:
            return f"{sentence}; texts changed where rejected guesses leave tokens in another order in the cache."
        return f"{sentence}."
    depends = "How numbers are rounded depends here on how many tokens are decoded at once"
    if all(len(probe.groups) == 2 and probe.groups[0] == [1] for probe in result.probes if not probe.exact):
        depends = (
            f"A token decoded alone is rounded differently here than among {_sizes(result.probes, 2)}, which agree"
        )
    # What is said of the texts stands above.
    which = "a text may change" if result.counts.rounding else "another text may change"
    depends += f": {which} where two tokens are nearly as likely"
    if not tried:
        return f"{depends}."
    if tried.failure:
        return f"{depends}. {tried.flags} could not be tried: {tried.failure}."
    if tried.exact:
        agreed = f"{_sizes(tried.probes)} at once gave the same numbers"
        return f"{depends}. With {tried.flags}, {agreed}; only the order of tokens in the cache could still change one."
    largest = max(probe.largest for probe in tried.probes)
    return f"{depends}. With {tried.flags}, it still does, by up to {_number(largest)}."


def _grows_trees(settings: DecodeSettings) -> bool:
    return settings.mode in TREES and settings.max_rollback < 0


def _sizes(probes: Sequence[Probe], least: int = 0) -> str:
    sizes = [size for probe in probes for group in probe.groups for size in group]
    return f"{least or min(sizes, default=1)} to {max(sizes, default=1)}"


def _verdict(result: Result) -> str:
    verdict = _verdict_on_texts(result)
    return f"Stopped early, so this is about what was finished. {verdict}" if result.stopped else verdict


def _verdict_on_texts(result: Result) -> str:
    counts = result.counts
    texts = counted(counts.answers, "text")
    if result.failure:
        return f"BUG: llama.cpp refused what it has to take. Please report this: {result.failure}"
    if counts.bugs:
        return f"BUG: rounding does not explain {counts.bugs} of {texts}. Please report this with the output of --json."
    if counts.rounding:
        part = "parts" if counts.rounding == 1 else "part"
        sentence = f"No bug was found: {counts.rounding} of {texts} {part} from plain decoding's, by rounding"
        if unclear := sum(run.unclear for _, _, run in result.partings):
            return (
                f"{sentence}; {unclear} of them unclear, for it may have changed the sampler's state before the draw."
            )
        return f"{sentence} alone."
    if counts.answers:
        return f"All {texts} are plain decoding's." if counts.answers > 1 else "The text is plain decoding's."
    return "No mode was checked, so there are no texts to compare."


def _heading(setup: Setup) -> str:
    model_settings = setup.model_settings
    lines = [
        ("model", f"{setup.description}, {setup.backend}, {model_settings.all_thread_words}"),
        (
            "context",
            f"{setup.context} cells, {model_settings.flags}" + (" --strict" if setup.decode_settings.strict else ""),
        ),
        ("sampling", setup.sampled),
    ]
    return "\n".join(f"{name:9} {text}" for name, text in lines)


def _invariance_table(probes: Sequence[Probe], width: int) -> str:
    sizes = [size for size in SIZES if any(size in probe.differences for probe in probes)]
    rows = [["context", *(f"{size} rows" for size in sizes), "same bits"]]
    for probe in probes:
        cells = [_same_or(probe.differences[size]) if size in probe.differences else "" for size in sizes]
        rows.append([str(probe.context), *cells, " | ".join(" ".join(map(str, group)) for group in probe.groups)])
    alone = all(group[:1] == [1] for probe in probes for group in probe.groups[:1])
    compared = "decoded alone" if alone else "in the smallest batch"
    title = (
        f"Batch sizes: by how much the logits of {PROBED} tokens differ at most from those of the same tokens "
        f"{compared} (of lacli's own prompts, behind other tokens; another text may differ where these are the same)"
    )
    return _table(title, rows, range(len(sizes) + 1), width)


def _mode_table(setup: Setup, result: Result, width: int) -> str:
    rows = [["mode", "identical", "rounding", "BUG", "tokens a step"]]
    for mode in result.modes:
        counts = mode.counts
        numbers = [f"{counts.identical} of {counts.answers}", str(counts.rounding), str(counts.bugs)]
        rows.append([mode.settings.mode, *numbers, f"{mode.tokens_per_step:.2f}"])
    asked = f"{counted(setup.prompts, 'prompt')}, at most {counted(setup.predict, 'token')} each"
    return _table(f"Modes beside plain decoding: {asked}", rows, range(1, 5), width)


def _difference_table(setup: Setup, partings: Sequence[tuple[ModeName, int, Run]], width: int) -> str:
    rows = [["mode", "prompt", "token", "plain's", "the mode's", "verdict"]]
    for mode, number, run in partings:
        verdict = "BUG" if run.bug else run.verdict
        if run.difference is None:
            rows.append([mode, str(number), str(len(run.tokens)), "", "", f"{verdict}, refused"])
            continue
        parting = run.difference
        tokens = [_shown(setup, parting.plain), _shown(setup, parting.other)]
        rows.append([mode, str(number), str(parting.at), *tokens, f"{verdict}: {_why(parting)}"])
    title = (
        "Where texts part: plain's margin there, and how far the mode's batches move plain's logits"
        if setup.greedy
        else "Where texts part: how far the draw is from the other token's share, and how far rounding moves that; or "
        "how many draws give the other token when logits are moved as rounding moves them"
    )
    refusals = {run.failure for _, _, run in partings if run.failure}
    lines = [wrapped(f"Refused: {refusal}", width or PAGE) for refusal in sorted(refusals)]
    return "\n".join([_table(title, rows, (1, 2), width, KEYS), *lines])


def _why(parting: Difference) -> str:
    """The numbers behind a verdict."""
    draw, moved = parting.draw, f"logits move {_number(parting.rounding)}"
    if not draw:
        return f"margin {_number(parting.margin)}, {moved}"
    near = f"off by {_number(draw.distance)}, shares move {_number(draw.movement)}"
    if draw.is_near:
        return near
    drawn = f"{draw.hits} of {draw.trials} draws give it where {moved}"
    return drawn if draw.hits or draw.distance is None else f"{near}, and {drawn}"


def _table(title: str, rows: Sequence[Sequence[str]], right: Collection[int], width: int, keys: int = 1) -> str:
    header, *body = rows
    lines = fitted(header, body, right, width and width - 2, keys)
    return "\n".join([wrapped(title, width or PAGE), *(f"  {line}".rstrip() for line in lines)])


def _shown(setup: Setup, token: int | None) -> str:
    if token is None:
        return "(end of text)"
    text = repr(token_text(setup, token))
    return f"{token} {text if len(text) <= LONGEST_TOKEN else text[: LONGEST_TOKEN - 1] + '…'}"


def token_text(setup: Setup, token: int | None) -> str | None:
    """A token as text, as far as it is text."""
    return None if token is None else setup.piece(token).decode("utf-8", "replace")


def _same_or(difference: float) -> str:
    return "same" if difference == 0 else _number(difference)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"


def as_json(setup: Setup, result: Result) -> dict[str, Any]:
    """One object; docs/exactness.md says what it holds. null: there is no such number."""
    decode_settings, advice = setup.decode_settings, result.advice
    return {
        "model": setup.model,
        "description": setup.description,
        "backend": setup.backend,
        "context": setup.context,
        **setup.model_settings.by_name,
        "window": decode_settings.window,
        "ngram": decode_settings.ngram,
        "guesses": decode_settings.guesses,
        "strict": decode_settings.strict,
        "temperature": setup.sampling.temp,
        "sampling": setup.sampled,
        "seed": None if setup.greedy else setup.sampling.seed,
        "prompts": setup.prompts,
        "predict": setup.predict,
        "verdict": result.verdict,
        "stopped": result.stopped,
        **asdict(result.counts),
        "summary": conclusion(setup, result),
        "failure": result.failure or None,
        "batch_invariant": all(probe.exact for probe in result.probes) if result.probes else None,
        "invariance": [_probe_json(probe) for probe in result.probes],
        "modes": [
            {
                "mode": mode.settings.mode,
                **asdict(mode.counts),
                "tokens": sum(len(run.tokens) for run in mode.runs),
                "tokens_per_step": round(mode.tokens_per_step, 4),
            }
            for mode in result.modes
        ],
        "differences": [_parting_json(setup, *parting) for parting in result.partings],
        "advice_flags": advice.flags if advice else None,
        "advice_batch_invariant": advice.exact if advice else None,
        "advice_invariance": [_probe_json(probe) for probe in advice.probes] if advice else [],
    }


def _probe_json(probe: Probe) -> dict[str, Any]:
    return {
        "context": probe.context,
        "batch_invariant": probe.exact,
        "rows": list(probe.differences),
        "logit_differences": [_finite(difference) for difference in probe.differences.values()],
        "agreeing_rows": probe.groups,
    }


def _parting_json(setup: Setup, mode: ModeName, number: int, run: Run) -> dict[str, Any]:
    """One difference: of logits, or of parts of the cumulative distribution for a draw."""
    parting = run.difference or Difference(len(run.tokens), None, None, math.nan, math.nan)
    return {
        "mode": mode,
        "prompt": number,
        "position": parting.at,
        "plain_token": parting.plain,
        "plain_text": token_text(setup, parting.plain),
        "token": parting.other,
        "text": token_text(setup, parting.other),
        "margin": _finite(parting.margin),
        "logit_difference": _finite(parting.rounding),
        "draw_distance": parting.draw.distance if parting.draw else None,
        "draw_movement": parting.draw.movement if parting.draw else None,
        "draw_hits": parting.draw.hits if parting.draw else None,
        "draw_trials": parting.draw.trials if parting.draw else None,
        "verdict": run.verdict,
        "failure": run.failure or None,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
