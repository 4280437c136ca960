"""The report of `lacli check`, as lines and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lacli.check.compare import CheckResult, Run
from lacli.check.judge import Difference
from lacli.engine.load import ModelEngine
from lacli.ik.context import decoding_library
from lacli.report import describe_sampling
from lacli.settings import ModeName
from lacli.terminal.input import PAGE
from lacli.terminal.screen import wrapped
from lacli.text.format import align_columns, counted


def as_lines(engine: ModelEngine, result: CheckResult, width: int = 0) -> str:
    """Return the report: verdict with advice, setup, tables of modes and differences. `width`: 0 without a terminal."""
    settings = engine.model_settings
    strict = " --strict" if engine.settings.strict else ""
    heading = (
        f"model     {engine.model.description}, {engine.model.devices}, {settings.thread_words}\n"
        f"library   {' '.join(decoding_library(settings).values())}\n"
        f"context   {engine.context.cells} cells, {settings.flags}{strict}\n"
        f"sampling  {describe_sampling(engine.sampling)}"
    )
    parts = [wrapped(part, width or PAGE) for part in (*conclusion(engine, result), heading)]
    if result.modes:
        rows = []
        for mode in result.modes:
            answers, identical, *others = mode.counts
            row = f"{identical} of {answers}", *map(str, others), f"{mode.tokens_per_step:.2f}"
            rows.append([mode.settings.mode, *row])
        asked = f"{counted(result.prompts, 'prompt')}, at most {counted(result.predict, 'token')} each"
        header = ["mode", "identical", "rounding", "BUG", "tokens a step"]
        parts.append(_table(f"Modes compared with plain decoding: {asked}", header, rows, range(1, 5), width))
    if differing := list(result.differing):
        parts.append(_difference_table(engine, differing, width))
    return "\n\n".join(parts)


def conclusion(engine: ModelEngine, result: CheckResult) -> list[str]:
    """Return the verdict and, if texts differ by rounding, advice for an exact setup, a paragraph each."""
    verdict = _verdict(result)
    if result.stopped:
        verdict = f"Stopped early: only the finished answers count. {verdict}"
    if result.verdict != "rounding":
        return [verdict]
    why = "llama.cpp rounds a batch of many rows in another way than one row. If two tokens are almost equally likely,"
    advice = f"{why} the answer can differ."
    if not (engine.model.offloaded or engine.settings.strict):
        advice += " With --strict every mode gives the same text on the CPU: lacli check --strict tries it here."
    return [verdict, advice]


def _verdict(result: CheckResult) -> str:
    counts = result.counts
    texts = counted(counts.answers, "text")
    if counts.bugs:
        return f"BUG: rounding does not explain {counts.bugs} of {texts}. Please report this with the output of --json."
    if counts.rounding:
        differ = "differs" if counts.rounding == 1 else "differ"
        sentence = f"No bug was found: {counts.rounding} of {texts} {differ} from plain decoding's, by rounding"
        if unclear := sum(run.verdict == "unclear" for _, _, run in result.differing):
            return f"{sentence} or, in {unclear} of them, a bug: a GPU may not repeat its own numbers."
        return f"{sentence} alone."
    if counts.answers:
        return f"All {texts} are plain decoding's." if counts.answers > 1 else "The text is plain decoding's."
    return "No mode was checked, so there are no texts to compare."


def _difference_table(engine: ModelEngine, differing: Sequence[tuple[ModeName, int, Run]], width: int) -> str:
    rows = []
    for mode, number, run in differing:
        if (difference := run.difference) is None:
            rows.append([mode, str(number), str(len(run.tokens)), "", "", f"BUG: {run.failure}"])
            continue
        verdict = "BUG" if run.verdict == "bug" else run.verdict
        tokens = [_shown(engine, difference.plain), _shown(engine, difference.other)]
        numbers = f"margin {difference.margin:.3g}, logits move {difference.rounding:.3g}"
        rows.append([mode, str(number), str(difference.at), *tokens, f"{verdict}: {numbers}"])
    title = (
        "First differences: how much higher the logit of plain's token is (margin), how far the mode's batches move "
        "logits. Rounding: with plain's tokens in the same batches the model gives the mode's token too"
    )
    return _table(title, ["mode", "prompt", "token", "plain's", "the mode's", "verdict"], rows, (1, 2), width)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int], width: int) -> str:
    lines = align_columns(header, rows, right, width and width - 2, folds=True)
    return "\n".join([wrapped(title, width or PAGE), *(f"  {line}".rstrip() for line in lines)])


def _shown(engine: ModelEngine, token: int | None) -> str:
    if token is None:
        return "(end of text)"
    return f"{token} {token_text(engine, token)!r:.16}"


def token_text(engine: ModelEngine, token: int | None) -> str | None:
    """Return the text of a token, None for None. Bytes that are not UTF-8 are replaced."""
    return None if token is None else engine.model.piece(token, special=True).decode("utf-8", "replace")


def as_json(engine: ModelEngine, result: CheckResult) -> dict[str, Any]:
    """Return a check's result as a JSON object, described in docs/internals/exactness.md. Missing numbers are None."""
    decode_settings, sampling = engine.settings, engine.sampling
    return {
        "model": str(engine.model.path),
        "description": engine.model.description,
        **decoding_library(engine.model_settings),
        "backend": engine.model.devices,
        "context": engine.context.cells,
        **engine.model_settings.by_name,
        "window": decode_settings.window,
        "ngram": decode_settings.ngram,
        "guesses": decode_settings.guesses,
        "strict": decode_settings.strict,
        "temperature": sampling.temp,
        "sampling": describe_sampling(sampling),
        "seed": None if sampling.greedy else sampling.seed,
        "prompts": result.prompts,
        "predict": result.predict,
        "verdict": result.verdict,
        "stopped": result.stopped,
        **result.counts._asdict(),
        "summary": " ".join(conclusion(engine, result)),
        "modes": [
            {
                "mode": mode.settings.mode,
                **mode.counts._asdict(),
                "tokens": sum(len(run.tokens) for run in mode.runs),
                "tokens_per_step": round(mode.tokens_per_step, 4),
            }
            for mode in result.modes
        ],
        "differences": [_difference_json(engine, *each) for each in result.differing],
    }


def _difference_json(engine: ModelEngine, mode: ModeName, number: int, run: Run) -> dict[str, Any]:
    difference = run.difference or Difference(len(run.tokens), None, None, math.nan, math.nan, "bug")
    return {
        "mode": mode,
        "prompt": number,
        "position": difference.at,
        "plain_token": difference.plain,
        "plain_text": token_text(engine, difference.plain),
        "token": difference.other,
        "text": token_text(engine, difference.other),
        "margin": difference.margin if math.isfinite(difference.margin) else None,
        "logit_difference": difference.rounding if math.isfinite(difference.rounding) else None,
        "verdict": run.verdict,
        "failure": run.failure or None,
    }
