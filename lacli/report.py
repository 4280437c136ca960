"""The report of an answer, for a person and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lacli.engine.answer import Answer
from lacli.engine.load import ModelEngine
from lacli.ik.context import decoding_library
from lacli.llamacpp.sampling import DEFAULT, SamplingSettings
from lacli.settings import DecodeSettings, Detail
from lacli.stats import Finish, RunStatistics
from lacli.text.format import counted

ENDS: dict[Finish, str] = {
    "eog": "by the model",
    "stop": "by a stop text",
    "length": "at the limit of -n",
    "interrupt": "early",
}


def context_full(cells: int, todo: str) -> str:
    """Return a sentence: the answer ended because the context of `cells` tokens is full. `todo`: what to do."""
    return f"the context of {cells:,} tokens is full and the answer ends here: {todo}"


def counts(run: RunStatistics) -> dict[str, float]:
    """Return tokens, steps and milliseconds of an answer, named as in llama-server's timings."""
    return {
        "prompt_n": run.prompt_tokens,
        "cache_n": run.reused_tokens,
        "prompt_ms": round(run.prompt_s * 1e3, 2),
        "predicted_n": run.tokens,
        "predicted_ms": round(run.predicted_s * 1e3, 2),
        "steps": run.steps,
        "draft_n": run.drafted,
        "draft_n_accepted": run.accepted,
    }


def as_json(engine: ModelEngine, answer: Answer) -> dict[str, Any]:
    """Return the report of an answer as a JSON object.

    *_ms: milliseconds; bookkeeping_ms, python_ms: sums over all steps. accept_hist[k]: steps that gave k+1 tokens.
    sources: tried and accepted drafts by origin. times_plain: speed divided by plain decoding's, None if unknown.
    """
    run, settings, pool = answer.statistics, engine.settings, answer.pool
    times = engine.times_plain(run)
    return {
        "model": str(engine.model.path),
        **decoding_library(engine.model_settings),
        "replicas": engine.weights.names,
        **{name: getattr(settings, name) for name in ("mode", "window", "ngram", "guesses", "auto_rows")},
        "temperature": engine.sampling.temp,
        "sampling": describe_sampling(engine.sampling),
        "seed": engine.sampling.drawn_seed,
        "verify": engine.sampling.verify,
        "strict": settings.strict,
        "notes": engine.notes,
        "text": answer.text,
        "tokens": list(answer.tokens),
        "finish_reason": answer.finish_reason,
        **counts(run),
        "first_token_ms": round(run.first_token_s * 1e3, 2),
        "predicted_per_second": round(run.tokens_per_second, 2),
        "sources": {
            origin.value: {"tried": run.tried[origin], "accepted": run.accepted_from[origin]} for origin in run.origins
        },
        "times_plain": round(times, 2) if times else None,
        "tokens_per_step": round(run.tokens_per_step, 4),
        "accept_hist": [run.lengths[length] for length in range(1, max(run.lengths, default=0) + 1)],
        "rows_mean": round(run.rows_mean, 2),
        "decode_ms": round(run.decode_s * 1e3, 2),
        "choose_ms": round(run.choose_s * 1e3, 2),
        "bookkeeping_ms": round(run.cache_s * 1e3, 2),
        "python_ms": round(run.python_s * 1e3, 2),
        "pool": {"keys": pool.keys, "ngrams": pool.ngrams, "hit_rate": round(pool.hit_rate, 4)},
    }


def as_lines(engine: ModelEngine, answer: Answer, *, detail: Detail = "short", max_tokens: int = -1) -> str:
    """Return an answer's report: one line, several if `detail` is full. `max_tokens`: the answer's limit, -1: none."""
    run, pool, parts = answer.statistics, answer.pool, ["no token"]
    if run.tokens:
        parts = [f"{counted(run.tokens, 'token')} in {_timed(run.tokens, run.predicted_s)}"]
    if run.drafted:
        parts.append(f"{run.tokens_per_step:.2f} tokens and {run.rows_mean:.1f} rows a step")
        parts.append(f"{run.accepted:,} of {run.drafted:,} drafted tokens accepted")
    elif engine.settings.mode == "auto" and run.steps:
        slow = "rows are too slow here: lacli cost MODEL --fresh measures them again"
        parts.append(f"nothing drafted: {slow if run.passed_over else 'no repeats found'}")
    if times := engine.times_plain(run) if run.drafted else None:
        parts.append(f"{times:.2g} times as fast as plain decoding")
    short = ", ".join(parts)
    read = _timed(max(run.prompt_tokens - 1 - run.reused_tokens, 0), run.prompt_s)
    cached = f", {run.reused_tokens:,} of them in the cache, the others" if run.reused_tokens else ""
    if detail != "full":
        return f"{counted(run.prompt_tokens, 'prompt token')}{cached} in {read}; {short}" if run.steps else short
    settings, devices = engine.model_settings, ", ".join(engine.weights.names) or engine.model.devices
    context = f"context of {engine.context.cells:,} tokens"
    ended = "with the context full" if answer.filled_context(max_tokens) else ENDS[answer.finish_reason]
    lines = [
        ("model", f"{engine.model.description}, {context}, {settings.thread_words}, {devices}"),
        ("library", " ".join(decoding_library(settings).values())),
        ("mode", describe(engine.settings)),
        ("sampling", describe_sampling(engine.sampling)),
        ("prompt", f"{counted(run.prompt_tokens, 'token')}{cached} in {read}"),
        ("answer", f"{short}, the first after {run.first_token_s:.2f} s, ended {ended}"),
    ]
    if run.steps:
        times_of = {"decode": run.decode_s, "choose": run.choose_s, "cache": run.cache_s, "Python": run.python_s}
        each = ", ".join(f"{name} {seconds / run.steps * 1e3:.2f}" for name, seconds in times_of.items())
        lines.append(("steps", f"{run.steps:,}, each {each} ms"))
        lines += [("tokens", _histogram(run.lengths)), ("rows", _histogram(run.batches))]
    for origin in run.origins:
        accepted, tried = run.accepted_from[origin], run.tried[origin]
        lines.append(("drafts", f"{accepted:,} of {tried:,} accepted from {origin.value}"))
    if engine.settings.mode == "lookahead":
        lines.append(("pool", f"{pool.keys} keys, {pool.ngrams} n-grams, hit rate {pool.hit_rate:.0%}"))
    return "\n".join(f"{name:9} {text}" for name, text in lines)


def describe(settings: DecodeSettings) -> str:
    """Return the mode and its sizes in a few words."""
    sizes: dict[str, str] = {
        "lookahead": f"W={settings.window} N={settings.ngram} G={settings.guesses}",
        "jacobi": f"block of {settings.window}, {settings.jacobi_iterations} iterations",
        "lookup": f"match up to {settings.lookup_match}, draft {settings.lookup_draft}",
        "auto": f"at most {counted(settings.max_step_tokens, 'row')}",
    }
    return ", ".join(filter(None, [settings.mode, sizes.get(settings.mode), "strict" if settings.strict else ""]))


def describe_sampling(sampling: SamplingSettings) -> str:
    """Return the samplers in use, written as flags, and the seed if tokens are drawn."""
    if sampling.greedy:
        return "none: the most probable token each time"
    apart = ("temp", "seed", "grammar", "logit_bias")
    changed = [name for name in DEFAULT if name not in apart and getattr(sampling, name) != DEFAULT[name]]
    shown = ("temp", *changed, *(["seed"] if sampling.temp else []))
    words = [f"--{name.replace('_', '-')} {getattr(sampling, name)}".removesuffix(" True") for name in shown]
    words += [f"--logit-bias {token}{bias:+g}" for token, bias in sampling.logit_bias]
    return " ".join([*words, *(["with a grammar"] if sampling.grammar else [])])


def _histogram(steps: Mapping[int, int]) -> str:
    """Return the numbers of steps by size, the smallest size first, as in `1 in 3 steps, 2 in 1 step`."""
    return ", ".join(f"{size} in {counted(number, 'step')}" for size, number in sorted(steps.items()))


def _timed(count: int, seconds: float) -> str:
    rate = count / seconds if seconds else 0.0
    return f"{seconds:.2f} s ({rate:,.1f} tokens/s)"
