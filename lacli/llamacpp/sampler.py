"""llama.cpp's sampler chain as a sampler of the loop, with its grammar."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lacli.context import Distribution, Floats
from lacli.errors import SamplingError, UsageError
from lacli.llamacpp.grammar import CANDIDATE, Grammar, array_over, open_grammar
from lacli.llamacpp.library import free_with, lib
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampling import LONGEST_MEMORY, SamplingSettings
from lacli.text.files import Closing

MIROSTAT_CANDIDATES = 100
"""The m of mirostat 1, fixed in llama.cpp's programs too."""

MIN_KEEP = 0
"""Candidates that a sampler must leave: llama.cpp's programs ask for none beyond the one each leaves anyway."""


class Samplers(NamedTuple):
    """A grammar or None, the sampler chain, and the sampler that draws after it."""

    grammar: Grammar | None
    sampler_chain: Any
    last: Any

    def accept(self, token: int) -> None:
        if self.grammar:
            self.grammar.accept(token)
        lib.llama_sampler_accept(self.sampler_chain, token)
        lib.llama_sampler_accept(self.last, token)

    def copy(self) -> Samplers:
        grammar = self.grammar.copy() if self.grammar else None
        return Samplers(grammar, lib.llama_sampler_clone(self.sampler_chain), lib.llama_sampler_clone(self.last))

    def close(self) -> None:
        if self.grammar:
            self.grammar.close()
        lib.llama_sampler_free(self.sampler_chain)
        lib.llama_sampler_free(self.last)


class LlamaSampler(Closing):
    """llama.cpp's samplers for one model and one setting, in its default order; close it before its model.

    A grammar checks the drawn token; if it refuses that, it masks the whole vocabulary and another token is drawn
    (common_sampler_init and common_sampler_sample of llama.cpp). Raises UsageError when the grammar cannot be parsed
    or a biased token does not exist.
    """

    def __init__(self, model: LlamaModel, settings: SamplingSettings) -> None:
        assert settings.seed >= 0, "a random seed is chosen above"
        self._settings = settings
        self._reach = max(_reach(settings.repeat_last_n), _reach(settings.dry_penalty_last_n))
        self._vocabulary = model.vocabulary
        _check_biases(model, settings)
        grammar, biases = open_grammar(model, settings.grammar), _biases(model, settings)
        lowers = replace(settings, ignore_eos=False, logit_bias=()).greedy and all(bias <= 0 for _, bias in biases)
        # Where biases only lower other tokens, the best one stays the best.
        self._lowered = frozenset(token for token, _ in biases) if lowers else None
        self._samplers = Samplers(grammar, _sampler_chain(model, settings), _last(model, settings))
        # The model is an argument, so that it outlives its samplers when all are dropped at once.
        self._free = free_with(self, _close, self._samplers, model)

    def begin(self, text: Sequence[int]) -> None:
        grammar, *others = self._samplers
        if grammar:
            grammar.reset()
        for sampler in others:
            lib.llama_sampler_reset(sampler)
        # The penalties see the prompt, as in llama.cpp's programs; a grammar sees the answer only.
        for token in text[-self._reach :] if self._reach else ():
            lib.llama_sampler_accept(self._samplers.sampler_chain, token)

    def draw(self, logits: Floats) -> int:
        token = self._drawn(self._samplers, logits)
        self.accept(token)
        return token

    def distribution(self, logits: Floats) -> Distribution:
        return self._distribution(self._samplers, logits)

    def accept(self, token: int) -> None:
        self._samplers.accept(token)

    def preview(self, logits: Floats) -> Distribution:
        """Return the distribution of the next draw, in the order of the draw, without a change of the samplers."""
        samplers = self._samplers.copy()
        try:
            return self._distribution(samplers, logits)
        finally:
            samplers.close()

    def close(self) -> None:
        self.__dict__.pop("_samplers", None)
        self.__dict__.pop("_candidates", None)
        self._free()

    @cached_property
    def _candidates(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Make all tokens, (vocabulary,) CANDIDATE, to be changed, and their bytes as they are at first.

        They take 3.6 MB at 152,000 tokens, and are made when a sequence's first token is drawn.
        """
        fresh = np.zeros(self._vocabulary, CANDIDATE)
        fresh["id"] = np.arange(self._vocabulary)
        return fresh.copy(), fresh.view(np.uint8)

    def _drawn(self, samplers: Samplers, logits: Floats) -> int:
        if self._lowered is not None and (best := int(logits.argmax())) not in self._lowered:
            return best
        token = self._pick(samplers, self._filled(logits))
        if samplers.grammar and not samplers.grammar.allowed([token]).all():
            token = self._pick(samplers, self._constrained(samplers.grammar, logits))
        return token

    def _pick(self, samplers: Samplers, array: Any) -> int:
        _apply(samplers.last, _apply(samplers.sampler_chain, array))
        assert 0 <= array.selected < array.size, "samplers leave at least one candidate"
        chosen = array.data[array.selected]
        # llama.cpp aborts on accepting a token that a grammar forbids.
        if not isfinite(chosen.logit):
            raise self._nothing_left()
        return int(chosen.id)

    def _distribution(self, samplers: Samplers, logits: Floats) -> Distribution:
        free = self._weighed(samplers, self._filled(logits))
        if not samplers.grammar:
            return free
        kept = np.where(samplers.grammar.allowed(free.tokens), free.probabilities, 0.0)
        refused = 1.0 - kept.sum()
        if np.all(kept == free.probabilities):
            return free
        again = self._weighed(samplers, self._constrained(samplers.grammar, logits))
        tokens, place = np.unique(np.concatenate([free.tokens, again.tokens]), return_inverse=True)
        shares = np.concatenate([kept, refused * again.probabilities])
        return Distribution(tokens, np.bincount(place, shares).astype(np.float64))

    def _weighed(self, samplers: Samplers, array: Any) -> Distribution:
        left = _left_in(_apply(samplers.sampler_chain, array))
        logits = left["logit"].astype(np.float64)
        if not np.isfinite(logits.max()):
            raise self._nothing_left()
        weights = np.exp(logits - logits.max())
        return Distribution(left["id"], weights / weights.sum())

    def _filled(self, logits: Floats) -> Any:
        """Return all tokens with their logits as a llama_token_data_array over `_candidates`."""
        candidates, fresh = self._candidates
        # numpy copies bytes 25 times faster than records: 0.04 ms, not 1 ms, at 152,000 tokens.
        np.copyto(candidates.view(np.uint8), fresh)
        candidates["logit"] = logits
        return array_over(candidates)

    def _constrained(self, grammar: Grammar, logits: Floats) -> Any:
        """Return all tokens, those that the grammar forbids with a logit of -inf."""
        constrained = np.where(grammar.allowed(np.arange(self._vocabulary)), logits, -inf)
        if not np.isfinite(constrained).any():
            raise self._nothing_left()
        return self._filled(constrained)

    def _nothing_left(self) -> SamplingError:
        if self._settings.grammar:
            hint = "leave --ignore-eos out" if self._settings.ignore_eos else "change it, or what forbids its tokens"
            return SamplingError("the grammar allows no token here", hint)
        return SamplingError("no token is left to sample", "loosen --logit-bias and the sampling flags")


def _left_in(array: Any) -> npt.NDArray[Any]:
    """Copy the remaining candidates, (candidates,) CANDIDATE: XTC drops the first ones by moving `array`'s pointer."""
    return np.frombuffer(ctypes.string_at(array.data, array.size * CANDIDATE.itemsize), CANDIDATE)


def _apply(sampler: Any, array: Any) -> Any:
    lib.llama_sampler_apply(sampler, ctypes.byref(array))
    return array


def _close(samplers: Samplers, _: LlamaModel) -> None:
    samplers.close()


def _sampler_chain(model: LlamaModel, settings: SamplingSettings) -> Any:
    """Make the samplers that change or remove candidates, in llama.cpp's default order; an unused one costs nothing.

    Mirostat narrows the choice itself, so only the biases and the temperature go before it.
    """
    samplers = _bias(model, settings)
    breakers = [breaker.encode() for breaker in settings.dry_sequence_breaker]
    if settings.mirostat:
        samplers.append(lib.llama_sampler_init_temp(settings.temp))
    else:
        samplers += [
            lib.llama_sampler_init_penalties(
                model.vocabulary,
                _reach(settings.repeat_last_n),
                settings.repeat_penalty,
                settings.frequency_penalty,
                settings.presence_penalty,
            ),
            lib.llama_sampler_init_dry(
                model.vocabulary_handle,
                settings.dry_multiplier,
                settings.dry_base,
                settings.dry_allowed_length,
                _reach(settings.dry_penalty_last_n),
                (ctypes.c_char_p * len(breakers))(*breakers),
                len(breakers),
            ),
            lib.llama_sampler_init_top_n_sigma(settings.top_nsigma),
            lib.llama_sampler_init_top_k(settings.top_k),
            lib.llama_sampler_init_typical(settings.typical, MIN_KEEP),
            lib.llama_sampler_init_top_p(settings.top_p, MIN_KEEP),
            lib.llama_sampler_init_min_p(settings.min_p, MIN_KEEP),
            lib.llama_sampler_init_xtc(settings.xtc_probability, settings.xtc_threshold, MIN_KEEP, settings.seed),
            lib.llama_sampler_init_temp_ext(settings.temp, settings.dynatemp_range, settings.dynatemp_exp),
        ]
    sampler_chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in samplers:
        lib.llama_sampler_chain_add(sampler_chain, sampler)
    return sampler_chain


def _reach(tokens: int) -> int:
    """Return the tokens that a penalty looks back at; -1 is the whole text, as in llama.cpp's server."""
    return tokens if tokens >= 0 else LONGEST_MEMORY


def _last(model: LlamaModel, settings: SamplingSettings) -> Any:
    """Make the sampler that draws."""
    seed, surprise, rate = settings.seed, settings.mirostat_ent, settings.mirostat_lr
    match settings.mirostat:
        case 1:
            return lib.llama_sampler_init_mirostat(model.vocabulary, seed, surprise, rate, MIROSTAT_CANDIDATES)
        case 2:
            return lib.llama_sampler_init_mirostat_v2(seed, surprise, rate)
        case _:
            return lib.llama_sampler_init_dist(seed)


def _check_biases(model: LlamaModel, settings: SamplingSettings) -> None:
    for token, _ in settings.logit_bias:
        if not 0 <= token < model.vocabulary:
            raise UsageError(
                f"--logit-bias names token {token}, and the model has {model.vocabulary}",
                f"token ids are from 0 to {model.vocabulary - 1}",
            )


def _biases(model: LlamaModel, settings: SamplingSettings) -> list[tuple[int, float]]:
    """Return the user's biases, and -inf for the tokens of --ignore-eos and of the model's suppressed list."""
    never = [*model.suppressed, *(model.ends() if settings.ignore_eos else ())]
    return [*settings.logit_bias, *((token, -inf) for token in never)]


def _bias(model: LlamaModel, settings: SamplingSettings) -> list[Any]:
    """Make the sampler of the biases, in a list that is empty without any."""
    if not (biases := _biases(model, settings)):
        return []
    array = (lib.llama_logit_bias * len(biases))(*(lib.llama_logit_bias(*bias) for bias in biases))
    return [lib.llama_sampler_init_logit_bias(model.vocabulary, len(biases), array)]
