"""llama.cpp's samplers as a `lacli.context.Sampler`, with grammars of llama.cpp and of llguidance."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf, isfinite
from tempfile import TemporaryFile
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from lacli.batch import Ints
from lacli.context import Closing, Distribution, Floats
from lacli.errors import SamplingError, UsageError
from lacli.llamacpp.library import free_with, lib, start
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampling import LONGEST_MEMORY, SamplingSettings
from lacli.text.json_schema import HEAD
from lacli.text.stream import begun_length

Bools = npt.NDArray[np.bool_]

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""A llama_token_data."""

DEEPEST, MOST_RULES = 1000, 5000
"""Most parentheses and rules of a grammar: llama.cpp's parser recurses for each, and more would end the process."""

ONE_CAPTURE = Lock()
"""Held while stderr is another file. Otherwise a second capture could restore the first one's file, for good."""


class SchemaGrammar:
    """A JSON schema as a grammar of llguidance. `allowed(tokens)`: for each token, whether it may come next."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._unused = matcher.deep_copy()
        self._mask: Bools | None = None

    def allowed(self, tokens: Sequence[int] | Ints) -> Bools:
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            # After an error the bits allow an end; the error stays until the matcher is replaced.
            if self._matcher.is_error():
                reason = self._matcher.get_error().split("\n")[0].replace("NoExtensionBias", "no text may come next")
                raise SamplingError(f"the JSON schema cannot be followed: {reason}", "give a simpler schema")
            self._mask = np.unpackbits(bits, count=self._vocabulary, bitorder="little").astype(np.bool_)
        return self._mask[tokens]

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._mask = None

    def reset(self) -> None:
        self._matcher = self._unused.deep_copy()
        self._mask = None


class GbnfGrammar:
    """A GBNF grammar as a llama_sampler. `allowed(tokens)`: for each token, whether it may come next."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def allowed(self, tokens: Sequence[int] | Ints) -> Bools:
        candidates = np.zeros(len(tokens), CANDIDATE)
        candidates["id"] = tokens
        _apply(self.sampler, _array_over(candidates))
        allowed: Bools = np.isfinite(candidates["logit"])
        return allowed

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self.sampler, token)

    def reset(self) -> None:
        lib.llama_sampler_reset(self.sampler)


class LateGrammar:
    """A grammar for the text after `marker`. Before it, no token may end the answer or have text after the marker."""

    def __init__(self, grammar: Grammar, model: LlamaModel, marker: str) -> None:
        self._grammar, self._ends, self._marker, self._seen = grammar, model.ends, marker, ""
        self._text: Callable[[int], str] = lambda token: model.piece(int(token), special=True).decode("latin-1")

    def allowed(self, tokens: Sequence[int] | Ints) -> Bools:
        if self._marker in self._seen:
            return self._grammar.allowed(tokens)
        free: Bools = ~np.isin(tokens, self._ends)
        if size := begun_length(self._seen, [self._marker]):
            texts = (self._seen[-size:] + self._text(token) for token in tokens)
            free &= [not text.partition(self._marker)[2].strip() for text in texts]
        return free

    def accept(self, token: int) -> None:
        if self._marker in self._seen:
            self._grammar.accept(token)
        else:
            self._seen += self._text(token)

    def reset(self) -> None:
        self._seen = ""
        self._grammar.reset()


Grammar = GbnfGrammar | SchemaGrammar | LateGrammar


def open_grammar(model: LlamaModel, text: str) -> Grammar | None:
    """Return the grammar that `text` describes, None for "". Raises UsageError with the reason if it is invalid."""
    if not text:
        return None
    if text.startswith(HEAD):
        return SchemaGrammar(LLMatcher(model.schema_tokenizer, text), model.vocabulary)
    sampler, reason = None, "it has too many rules or parentheses, or a repeat whose end is below its start"
    repeats = re.findall(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}", text)
    is_small = text.count("(") <= DEEPEST and text.count("::=") <= MOST_RULES
    if is_small and all(int(least) <= int(most) for least, most in repeats):
        start().forget()
        with captured_stderr("parse: error parsing grammar: ", f"\n\n{text}\n") as said:
            sampler = lib.llama_sampler_init_grammar(model.vocabulary_handle, text.encode(), b"root")
        reason = said[0].split("\n")[0] or start().last_error()
    if not sampler:
        hint = "llama.cpp's grammars/README.md describes GBNF; --grammar-file FILE reads one"
        raise UsageError(f"the grammar cannot be used: {reason}", hint)
    return GbnfGrammar(sampler)


@contextmanager
def captured_stderr(begin: str, end: str) -> Iterator[list[str]]:
    """Hold back stderr in the block, then write it. Text between `begin` and `end` goes to the yielded list instead."""
    collected: list[str] = []
    with ONE_CAPTURE, TemporaryFile() as file:
        original = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield collected
        finally:
            os.dup2(original, 2)
            os.close(original)
            file.seek(0)
            before, _, rest = file.read().partition(begin.encode())
            said, is_whole, after = rest.partition(end.encode())
            collected.append(said.decode("utf-8", "replace"))
            with suppress(OSError):
                os.write(2, before + (after if is_whole else rest))


class LlamaSampler(Closing):
    """A Sampler of llama.cpp's samplers, in their default order; close it before its model.

    If the grammar forbids a drawn token, another token is drawn among all that are allowed (common_sampler_init and
    common_sampler_sample of llama.cpp). Raises UsageError for an invalid grammar and for a bias of an unknown token.
    """

    def __init__(self, model: LlamaModel, settings: SamplingSettings) -> None:
        assert settings.seed >= 0, "a random seed is chosen above"
        self._reach = max(_reach(settings.repeat_last_n), _reach(settings.dry_penalty_last_n))
        self._tokens = np.arange(model.vocabulary, dtype=np.int32)
        self._candidates = np.zeros(model.vocabulary, CANDIDATE)
        biases = _biases(model, settings)
        self._grammar = open_grammar(model, settings.grammar)
        grammars = [self._grammar.sampler] if isinstance(self._grammar, GbnfGrammar) else []
        if self._grammar and settings.grammar_after:
            self._grammar = LateGrammar(self._grammar, model, settings.grammar_after)
        self._chain, self._last = _sampler_chain(model, settings, biases), lib.llama_sampler_init_dist(settings.seed)
        # The model is an argument, so that it is freed after its samplers if all are dropped at once.
        self._free = free_with(self, _free_samplers, (*grammars, self._chain, self._last), model)

    def begin(self, text: Sequence[int]) -> None:
        for sampler in (self._chain, self._last):
            lib.llama_sampler_reset(sampler)
        if self._grammar:
            self._grammar.reset()
        # The penalties see the prompt, as in llama.cpp's programs; a grammar sees the answer only.
        for token in text[-self._reach :] if self._reach else ():
            lib.llama_sampler_accept(self._chain, token)

    def draw(self, logits: Floats) -> int:
        token = self._pick(logits)
        if self._grammar and not self._grammar.allowed([token]).all():
            token = self._pick(self._constrained(self._grammar, logits))
        self.accept(token)
        return token

    def distribution(self, logits: Floats) -> Distribution:
        return self._distribution(self._chain, logits)

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self._chain, token)
        if self._grammar:
            self._grammar.accept(token)

    def preview(self, logits: Floats) -> Distribution:
        """Return the distribution of the next draw without using up random numbers of the samplers."""
        # XTC draws a random number each time it is applied; asking a grammar changes nothing.
        sampler_chain = lib.llama_sampler_clone(self._chain)
        try:
            return self._distribution(sampler_chain, logits)
        finally:
            lib.llama_sampler_free(sampler_chain)

    def close(self) -> None:
        self.__dict__.pop("_chain", None)
        self._free()

    def _pick(self, logits: Floats) -> int:
        array = _apply(self._last, _apply(self._chain, self._filled(logits)))
        assert 0 <= array.selected < array.size, "samplers leave at least one candidate"
        chosen = array.data[array.selected]
        # llama.cpp aborts on accepting a token that a grammar forbids.
        if not isfinite(chosen.logit):
            raise _nothing_left()
        return int(chosen.id)

    def _distribution(self, sampler_chain: Any, logits: Floats) -> Distribution:
        free = self._weighed(sampler_chain, logits)
        if not self._grammar:
            return free
        kept = np.where(self._grammar.allowed(free.tokens), free.probabilities, 0.0)
        refused = 1.0 - kept.sum()
        if np.all(kept == free.probabilities):
            return free
        again = self._weighed(sampler_chain, self._constrained(self._grammar, logits))
        tokens, place = np.unique(np.concatenate([free.tokens, again.tokens]), return_inverse=True)
        shares = np.concatenate([kept, refused * again.probabilities])
        return Distribution(tokens, np.bincount(place, shares).astype(np.float64))

    def _weighed(self, sampler_chain: Any, logits: Floats) -> Distribution:
        array = _apply(sampler_chain, self._filled(logits))
        # XTC drops the first candidates by moving the array's pointer.
        left = np.frombuffer(ctypes.string_at(array.data, array.size * CANDIDATE.itemsize), CANDIDATE)
        found = left["logit"].astype(np.float64)
        if not np.isfinite(found.max()):
            raise _nothing_left()
        weights = np.exp(found - found.max())
        return Distribution(left["id"], weights / weights.sum())

    def _filled(self, logits: Floats) -> Any:
        """Return a llama_token_data_array of all tokens with these `logits`, (vocabulary,)."""
        self._candidates["id"], self._candidates["logit"] = self._tokens, logits
        return _array_over(self._candidates)

    def _constrained(self, grammar: Grammar, logits: Floats) -> Floats:
        """Return `logits` with -inf for tokens that `grammar` forbids. Raises SamplingError if all are forbidden."""
        constrained: Floats = np.where(grammar.allowed(self._tokens), logits, -inf)
        if not np.isfinite(constrained).any():
            raise _nothing_left()
        return constrained


def _free_samplers(samplers: Sequence[Any], _: LlamaModel) -> None:
    for sampler in samplers:
        lib.llama_sampler_free(sampler)


def _nothing_left() -> SamplingError:
    return SamplingError("no token may come next", "loosen the grammar, --logit-bias and the sampling flags")


def _array_over(candidates: npt.NDArray[Any]) -> Any:
    pointer = candidates.ctypes.data_as(lib.llama_token_data_p)
    return lib.llama_token_data_array(data=pointer, size=len(candidates), selected=-1, sorted=False)


def _apply(sampler: Any, array: Any) -> Any:
    lib.llama_sampler_apply(sampler, ctypes.byref(array))
    return array


def _sampler_chain(model: LlamaModel, settings: SamplingSettings, biases: Sequence[tuple[int, float]]) -> Any:
    """Return the chain of all samplers before the draw, in llama.cpp's order. `biases`: (token id, bias) pairs."""
    array = (lib.llama_logit_bias * len(biases))(*(lib.llama_logit_bias(*bias) for bias in biases))
    penalties = settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty
    dry = settings.dry_multiplier, settings.dry_base, settings.dry_allowed_length
    # DRY compares passages up to one of these texts, as in llama.cpp's programs.
    breakers = (ctypes.c_char_p * 4)(b"\n", b":", b'"', b"*")
    sampler_chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in (
        lib.llama_sampler_init_logit_bias(model.vocabulary, len(biases), array),
        lib.llama_sampler_init_penalties(model.vocabulary, _reach(settings.repeat_last_n), *penalties),
        lib.llama_sampler_init_dry(model.vocabulary_handle, *dry, _reach(settings.dry_penalty_last_n), breakers, 4),
        lib.llama_sampler_init_top_k(settings.top_k),
        lib.llama_sampler_init_typical(settings.typical, 0),
        lib.llama_sampler_init_top_p(settings.top_p, 0),
        lib.llama_sampler_init_min_p(settings.min_p, 0),
        lib.llama_sampler_init_xtc(settings.xtc_probability, settings.xtc_threshold, 0, settings.seed),
        lib.llama_sampler_init_temp(settings.temp),
    ):
        lib.llama_sampler_chain_add(sampler_chain, sampler)
    return sampler_chain


def _reach(tokens: int) -> int:
    """Return how many tokens a penalty looks back at: `tokens`, or all of them (LONGEST_MEMORY) for -1."""
    return tokens if tokens >= 0 else LONGEST_MEMORY


def _biases(model: LlamaModel, settings: SamplingSettings) -> list[tuple[int, float]]:
    """Return (token id, bias) pairs: the user's; -inf for suppressed tokens and, with --ignore-eos, for end tokens."""
    for token, _ in settings.logit_bias:
        if not 0 <= token < model.vocabulary:
            what = f"a bias names token {token}, and the model has {model.vocabulary} tokens"
            raise UsageError(what, f"token ids are from 0 to {model.vocabulary - 1}")
    never = [*model.suppressed, *(model.ends if settings.ignore_eos else ())]
    return [*settings.logit_bias, *((token, -inf) for token in never)]
