"""The report of an answer, for a person and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lacli.engine.answer import Answer
from lacli.engine.load import ModelEngine
from lacli.llamacpp.sampling import DEFAULT, SamplingSettings
from lacli.settings import SOURCES, DecodeSettings, Detail
from lacli.stats import Finish, RunStatistics
from lacli.text.format import counted
from lacli.tree import Origin

ENDS: dict[Finish, str] = {
    "eog": "by the model",
    "stop": "by a stop text",
    "length": "at the limit of -n",
    "interrupt": "early",
}
"""What ended an answer, in words."""

FULL = "with the context full"
"""What ended an answer that has fewer tokens than its limit."""

SOURCE_WORDS = {
    Origin.POOL: "n-grams",
    Origin.WINDOW: "the lookahead window",
    Origin.CHAIN: "the draft",
    Origin.SUFFIX: "the text so far",
    Origin.RECYCLING: "what the model held probable",
}
"""Where drafts came from, in README's words."""


def context_full(cells: int, todo: str) -> str:
    """Say that a full context of `cells` tokens has ended an answer, and what to do."""
    return f"the context of {cells:,} tokens is full and the answer ends here: {todo}"


def as_json(engine: ModelEngine, answer: Answer) -> dict[str, Any]:
    """One flat object; prompt_*, predicted_* and draft_* are named as in llama-server's timings.

    *_ms: milliseconds; bookkeeping_ms and python_ms are sums over all steps. accept_hist[k]: steps that brought
    k+1 tokens. sources: verified and accepted drafts by where they came from. times_plain: how many times as
    fast as plain decoding that makes the answer; None where costs of steps were not measured.
    """
    run, settings, pool = answer.statistics, engine.settings, answer.pool
    names, times = engine.weights.names, engine.times_plain(run)
    return {
        "model": str(engine.model.path),
        "replicas": names if len(names) > 1 else [],
        "mode": settings.mode,
        "window": settings.window,
        "ngram": settings.ngram,
        "guesses": settings.guesses,
        "auto_sources": list(engine.sources),
        "auto_rows": settings.auto_rows,
        "temperature": engine.sampling.temp,
        "sampling": describe_sampling(engine.sampling),
        "seed": engine.sampling.drawn_seed,
        "verify": engine.sampling.verify,
        "strict": settings.strict,
        "notes": engine.notes,
        "text": answer.text,
        "tokens": list(answer.tokens),
        "finish_reason": answer.finish_reason,
        "prompt_n": run.prompt_tokens,
        "cache_n": run.reused_tokens,
        "prompt_ms": _ms(run.prompt_s),
        "first_token_ms": _ms(run.first_token_s),
        "predicted_n": run.tokens,
        "predicted_ms": _ms(run.predicted_s),
        "predicted_per_second": round(run.tokens_per_second, 2),
        "draft_n": run.drafted,
        "draft_n_accepted": run.accepted,
        "sources": {
            origin.value: {"tried": run.tried[origin], "accepted": run.accepted_from[origin]} for origin in run.origins
        },
        "times_plain": round(times, 2) if times else None,
        "steps": run.steps,
        "tokens_per_step": round(run.tokens_per_step, 4),
        "accept_hist": run.accept_hist,
        "rows_mean": round(run.rows_mean, 2),
        "decode_ms": _ms(run.decode_s),
        "choose_ms": _ms(run.choose_s),
        "bookkeeping_ms": _ms(run.cache_s),
        "python_ms": _ms(run.python_s),
        "pool": {
            "keys": pool.keys,
            "ngrams": pool.ngrams,
            "fan_out_mean": round(pool.fan_out_mean, 2),
            "fan_out_median": pool.fan_out_median,
            "fan_out_max": pool.fan_out_max,
            "hit_rate": round(pool.hit_rate, 4),
        },
    }


def as_lines(
    engine: ModelEngine,
    answer: Answer,
    *,
    detail: Detail = "short",
    max_tokens: int = -1,
) -> str:
    """The report for a person, a line for each subject. `max_tokens`: the limit of -n.

    `detail`: full adds what lies behind the numbers of the short one.
    """
    run, full = answer.statistics, detail == "full"
    lines = [
        ("model", f"{engine.model.description}, context of {engine.context.cells:,} tokens, "
                  f"{engine.model_settings.thread_words}, {_devices(engine)}"),
        ("mode", describe(engine.settings)),
        ("sampling", describe_sampling(engine.sampling)),
        ("prompt", prompt_words(run)),
        ("answer", answer_words(answer, max_tokens)),
    ]  # fmt: skip
    if run.steps:
        size = f"S = {run.tokens_per_step:.2f} tokens and {run.rows_mean:.1f} rows a step"
        lines += [
            ("steps", f"{run.steps:,} for {counted(run.tokens, 'token')}: {size}"),
            ("a step", _step(run, full)),
        ]
    if run.drafted:
        accepted = f"{run.accepted:,} of {run.drafted:,} tokens were accepted"
        lines.append(("drafts", accepted + ("" if full else _origins(run))))
    if full:
        lines += _details(engine, answer)
    if times := engine.times_plain(run) if run.drafted else None:
        lines.append(("plain", f"{times:.2g} times as fast as plain decoding, by the measured costs of steps"))
    return "\n".join(f"{name:9} {text}" for name, text in lines)


def prompt_words(run: RunStatistics) -> str:
    """The tokens of a prompt, and the time that they took, in words."""
    read = max(run.prompt_tokens - 1 - run.reused_tokens, 0)
    reused = f"{run.reused_tokens:,} of them in the cache" if run.reused_tokens else ""
    others = f"{'the others ' if reused else ''}read in {_timed(read, run.prompt_s)}" if read and run.prompt_s else ""
    return ", ".join(filter(None, [counted(run.prompt_tokens, "token"), reused, others]))


def answer_words(answer: Answer, max_tokens: int, otherwise: str = FULL) -> str:
    """The tokens of an answer, their time and what ended it, in words.

    `max_tokens`: its limit, -1 for none. `otherwise`: words for an end before that limit.
    """
    run, ended = answer.statistics, f"ended {ENDS[answer.finish_reason]}"
    if answer.filled_context(max_tokens):
        ended = f"ended {otherwise}"
    if not run.tokens:
        return f"no token, {ended}"
    begin = f"{counted(run.tokens, 'token')} in {_timed(run.tokens, run.predicted_s)}"
    return f"{begin}, the first after {_duration(run.first_token_s)}, {ended}"


def _step(run: RunStatistics, full: bool) -> str:
    """What a step takes, and where."""
    a_step = 1e3 / run.steps
    if not full:
        return f"{run.predicted_s * a_step:.2f} ms, {run.decode_s * a_step:.2f} of them in the model"
    return (
        f"decode {run.decode_s * a_step:.2f} ms, choose {run.choose_s * a_step:.2f}, "
        f"cache {run.cache_s * a_step:.2f}, Python {run.python_s * a_step:.2f}"
    )


def _origins(run: RunStatistics) -> str:
    """The accepted drafts by their sources, in words."""
    parts = [f"{count:,} from {SOURCE_WORDS[origin]}" for origin, count in run.accepted_from.most_common()]
    return f": {', '.join(parts)}" if parts else ""


def _details(engine: ModelEngine, answer: Answer) -> list[tuple[str, str]]:
    """Lines of the full report alone: sources, plans and the pool."""
    run, pool = answer.statistics, answer.pool
    lines: list[tuple[str, str]] = []
    if run.drafted:
        lines += [("", line) for line in _by_source(run)]
    if engine.settings.mode == "auto":
        lines += _sizes_of_steps(run)
    if engine.settings.mode == "lookahead":
        lines.append((
            "pool",
            f"{pool.keys} keys, {pool.ngrams} n-grams, fan-out mean {pool.fan_out_mean:.1f} "
            f"median {pool.fan_out_median:g} max {pool.fan_out_max}, hit rate {pool.hit_rate:.0%}",
        ))  # fmt: skip
    return lines


def _devices(engine: ModelEngine) -> str:
    """The replicas of the model, or the devices of a single one."""
    return ", ".join(filter(None, engine.weights.names)) or engine.model.devices


def describe(settings: DecodeSettings) -> str:
    """Mode and sizes in a few words."""
    return _sizes(settings) + (", strict" if settings.strict else "")


def _sizes(settings: DecodeSettings) -> str:
    match settings.mode:
        case "lookahead":
            return f"lookahead, W={settings.window} N={settings.ngram} G={settings.guesses}"
        case "jacobi":
            return f"jacobi, block of {settings.window}, {settings.jacobi_iterations} iterations"
        case "lookup":
            return f"lookup, match up to {settings.lookup_match}, draft {settings.lookup_draft}"
        case "auto":
            return f"auto{_asked(settings)}, at most {counted(settings.max_step_tokens, 'row')}"
        case "plain":
            return "plain"


def _asked(settings: DecodeSettings) -> str:
    """The sources, where they are not all."""
    if {*SOURCES} <= {*settings.sources}:
        return ""
    return f", sources {','.join(settings.sources) or 'none'}"


def describe_sampling(sampling: SamplingSettings) -> str:
    """The samplers that were asked for, as flags, and the seed where tokens are drawn."""
    if sampling.greedy:
        return "none: the most probable token each time"
    apart = ("temp", "seed", "grammar", "logit_bias")
    changed = [name for name in DEFAULT if name not in apart and getattr(sampling, name) != DEFAULT[name]]
    shown = ("temp", *changed, *(["seed"] if sampling.temp else []))
    words = [f"--{name.replace('_', '-')} {getattr(sampling, name)}".removesuffix(" True") for name in shown]
    words += [f"--logit-bias {token}{bias:+g}" for token, bias in sampling.logit_bias]
    return " ".join([*words, *(["with a grammar"] if sampling.grammar else [])])


def _by_source(run: RunStatistics) -> list[str]:
    """A line for each source: how many of its drafts were accepted, and their share of the answer."""
    name = max((len(origin.value) for origin in run.origins), default=0)
    count = len(str(max(run.tried.values(), default=0)))
    return [
        f"{origin.value:{name}} {accepted:{count}} of {tried:{count}}, {accepted / max(tried, 1):.0%}: "
        f"{accepted / max(run.tokens, 1):.0%} of the answer, {SOURCE_WORDS[origin]}"
        for origin in run.origins
        for tried, accepted in [(run.tried[origin], run.accepted_from[origin])]
    ]


def _sizes_of_steps(run: RunStatistics) -> list[tuple[str, str]]:
    """The sizes of the steps."""
    sizes = Counter[int]()
    for rows, steps in run.batches.items():
        sizes[(rows - 1).bit_length()] += steps
    words = [f"{_span(size)} in {counted(steps, 'step')}" for size, steps in sorted(sizes.items())]
    return [("rows", ", ".join(words))] if words else []


def _span(size: int) -> str:
    """The rows above one power of two up to the next."""
    if size < 2:
        return f"{1 + size}"
    return f"{2 ** (size - 1) + 1}-{2**size}"


def _timed(count: int, seconds: float) -> str:
    rate = count / seconds if seconds else 0.0
    return f"{_duration(seconds)} ({rate:,.{0 if rate >= 100 else 1}f} tokens/s)"


def _duration(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
