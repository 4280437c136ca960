"""What a run cost, as lines for a person and as one flat JSON object for a program.

Formats numbers; measures nothing and prints nothing.
"""

from __future__ import annotations

from typing import Any

from lacli.charts import histogram
from lacli.generation import Answer
from lacli.sampling import DEFAULT, SamplingSettings, flag
from lacli.session import Session
from lacli.settings import DecodeSettings


def as_json(session: Session, answer: Answer) -> dict[str, Any]:
    """One flat object; prompt_*, predicted_* and draft_* are named as in llama-server's timings.

    *_ms: milliseconds; bookkeeping_ms and python_ms are sums over all steps. accept_hist[k]: steps that brought
    k+1 tokens.
    """
    run, settings, pool = answer.statistics, session.settings, answer.pool
    return {
        "model": str(session.model.path),
        "mode": settings.mode,
        "window": settings.window,
        "ngram": settings.ngram,
        "guesses": settings.guesses,
        "temperature": session.sampling.temp,
        "sampling": describe_sampling(session.sampling),
        "seed": None if session.sampling.greedy else session.sampling.seed,
        "verify": session.sampling.verify,
        "strict": settings.strict,
        "notes": session.notes,
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


def as_lines(session: Session, answer: Answer) -> str:
    """The same for a person, a subject a line."""
    run, pool = answer.statistics, answer.pool
    steps = max(run.steps, 1)
    prefill = max(run.prompt_tokens - 1 - run.reused_tokens, 0)
    reused = f", {run.reused_tokens} of them in the cache" if run.reused_tokens else ""
    threads = f"{session.model_settings.thread_words}, {session.model.devices}"
    lines = [
        ("model", f"{session.model.description}, {session.engine.cells} cells, {threads}"),
        ("mode", describe(session.settings)),
        ("sampling", describe_sampling(session.sampling)),
        ("prompt", f"{run.prompt_tokens} tokens{reused}, prefill {_ms(run.prompt_s)} ms "
                   f"({_rate(prefill, run.prompt_s)})"),
        ("answer", f"{run.tokens} tokens in {_ms(run.predicted_s)} ms ({_rate(run.tokens, run.predicted_s)}), "
                   f"first after {_ms(run.first_token_s)} ms, ended by {answer.finish_reason}"),
        ("steps", f"{run.steps}, S = {run.tokens_per_step:.2f} tokens a step, {run.rows_mean:.1f} rows a step"),
        ("a step", f"decode {run.decode_s / steps * 1e3:.2f} ms, choose {run.choose_s / steps * 1e3:.2f}, "
                   f"cache {run.cache_s / steps * 1e3:.2f}, Python {run.python_s / steps * 1e3:.2f}"),
    ]  # fmt: skip
    if run.drafted:
        lines.append(("guesses", f"{run.accepted} accepted of {run.drafted} verified"))
        lines += [
            ("accepted" if not index else "", bar) for index, bar in enumerate(histogram(run.accept_hist).splitlines())
        ]
    if session.settings.mode == "lookahead":
        lines.append((
            "pool",
            f"{pool.keys} keys, {pool.ngrams} n-grams, fan-out mean {pool.fan_out_mean:.1f} "
            f"median {pool.fan_out_median:g} max {pool.fan_out_max}, hit rate {pool.hit_rate:.0%}",
        ))  # fmt: skip
    return "\n".join(f"{name:9} {text}" for name, text in lines)


def against_plain(answer: Answer, plain_tokens_per_second: float, mode: str) -> str:
    """A sentence on whether the guesses paid, from the speed of a few plain steps."""
    speed = answer.statistics.tokens_per_second
    if not plain_tokens_per_second or not speed:
        return ""
    ratio = speed / plain_tokens_per_second
    plain = f"plain decoding ran at {plain_tokens_per_second:.0f} tokens/s in a few timed steps"
    if ratio >= 1:
        return f"{plain}: {mode} was {ratio:.2f} times as fast."
    smaller = "" if mode == "lookup" else ", or a smaller -W"
    return f"{plain}: it would have been {1 / ratio:.2f} times as fast here. Try --mode plain{smaller}."


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
            return "auto"
        case "plain":
            return "plain"


def describe_sampling(sampling: SamplingSettings) -> str:
    """The samplers that were asked for, as flags, and the seed that repeats the answer."""
    if sampling.greedy:
        return "none: the most probable token each time"
    apart = ("temp", "seed", "grammar", "logit_bias")
    changed = [name for name in DEFAULT if name not in apart and getattr(sampling, name) != DEFAULT[name]]
    words = [f"{flag(name)} {getattr(sampling, name)}".removesuffix(" True") for name in ("temp", *changed, "seed")]
    words += [f"--logit-bias {token}{bias:+g}" for token, bias in sampling.logit_bias]
    return " ".join([*words, *(["with a grammar"] if sampling.grammar else [])])


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:.1f} tokens/s" if count and seconds else "nothing to do"


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
