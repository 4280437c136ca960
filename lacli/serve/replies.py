"""Bodies and events of answers, in the shapes of OpenAI and of llama.cpp's server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING, Any

from lacli import __version__
from lacli.stats import Finish, RunStatistics
from lacli.verify import TokenLogprob

if TYPE_CHECKING:
    from lacli.serve.choices import Choice

FINGERPRINT = f"b-lacli-{__version__}"
"""What clients are told of the program; llama.cpp's begin with a b too."""

REASONS: dict[Finish, str] = {"eog": "stop", "stop": "stop", "length": "length", "interrupt": "stop"}
"""OpenAI's words for what ended an answer."""


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Tokens of a request; each of its prompts counts once, however many answers it has."""
    # The answers to a prompt share one list of its tokens.
    by_prompt: defaultdict[int, list[RunStatistics]] = defaultdict(list)
    for choice in choices:
        by_prompt[id(choice.prompt)].append(choice.statistics)
    prompt = sum(runs[0].prompt_tokens for runs in by_prompt.values())
    # The further answers to a prompt find it decoded by the first one.
    cached = sum(min(run.reused_tokens for run in runs) for runs in by_prompt.values())
    predicted = sum(choice.statistics.tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": predicted,
        "total_tokens": prompt + predicted,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(run: RunStatistics) -> dict[str, Any]:
    """What an answer took, in llama.cpp's words: milliseconds, and tokens a second."""
    read = run.prompt_tokens - run.reused_tokens
    # llama.cpp counts the first token as the prompt's; a rate over the others here is rather too low.
    later = max(run.tokens - 1, 0)
    prompt_ms, predicted_ms = 1e3 * run.prompt_s, 1e3 * run.predicted_s
    return {
        "cache_n": run.reused_tokens,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(read, 1),
        "prompt_per_second": 1e3 * read / prompt_ms if prompt_ms else 0.0,
        "predicted_n": run.tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / later if later else 0.0,
        "predicted_per_second": 1e3 * later / predicted_ms if predicted_ms else 0.0,
        "draft_n": run.drafted,
        "draft_n_accepted": run.accepted,
    }


def error_body(status: int, kind: str, message: str, **more: Any) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"code": status, "message": message, "type": kind, **more}}


def token_logprob(found: TokenLogprob, piece: Any) -> dict[str, Any]:
    """The log probabilities in a token's place; `piece` gives the bytes of a token."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text: bytes = piece(token)
        return {
            "id": token,
            "token": text.decode("utf-8", "replace"),
            "bytes": [*text],
            "logprob": logprob,
        }

    best = [entry(token, logprob) for token, logprob in found.best]
    return {**entry(found.token, found.logprob), "top_logprobs": best}


def token_probability(found: TokenLogprob, piece: Any) -> dict[str, Any]:
    """The same with probabilities, as llama.cpp tells those behind the samplers."""
    told = token_logprob(found, piece)
    told["top_probs"] = told.pop("top_logprobs")
    for entry in (told, *told["top_probs"]):
        entry["prob"] = exp(entry.pop("logprob"))
    return told
