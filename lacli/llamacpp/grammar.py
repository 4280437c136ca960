"""Grammars that an answer follows: llama.cpp's of GBNF, and llguidance's of JSON schemas."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from lacli.batch import Ints
from lacli.errors import SamplingError, UsageError
from lacli.llamacpp.library import captured_stderr, lib, library
from lacli.llamacpp.model import LlamaModel
from lacli.text.json_schema import HEAD

Bools = npt.NDArray[np.bool_]

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""A llama_token_data."""

DEEPEST, MOST_RULES = 1000, 5000
"""llama.cpp's parser calls itself for each parenthesis and for each rule that begins with a rule: more end it."""

REPEATS = re.compile(r"(\{\s*(\d+)\s*,\s*(\d+)\s*\})")

LOCATED = re.compile(r"error parsing grammar: (?P<what>.*?)(?: at (?P<rest>.*))?\Z", re.DOTALL)


def open_grammar(model: LlamaModel, text: str) -> Grammar | None:
    """Return the grammar of a text, None for "". Raises UsageError with the parser's reason.

    It says which tokens may come next, given those that were accepted.
    """
    if text.startswith(HEAD):
        return SchemaGrammar(LLMatcher(model.schema_tokenizer, text), model.vocabulary)
    return GbnfGrammar(_gbnf(model, text)) if text else None


class SchemaGrammar:
    """A grammar of llguidance."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._mask: Bools | None = None

    def allowed(self, tokens: Sequence[int] | Ints) -> Bools:
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._mask = np.unpackbits(bits, count=self._vocabulary, bitorder="little").astype(np.bool_)
            if self._matcher.is_error():
                reason = self._matcher.get_error().split("\n")[0]
                raise SamplingError(f"the JSON schema cannot be followed: {reason}", "give a simpler one")
        return self._mask[tokens]

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._mask = None

    def reset(self) -> None:
        self._matcher.reset()
        self._mask = None

    def copy(self) -> SchemaGrammar:
        return SchemaGrammar(self._matcher.deep_copy(), self._vocabulary)

    def close(self) -> None:
        """Python frees the matcher."""


class GbnfGrammar:
    """A llama_sampler of a GBNF grammar."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def allowed(self, tokens: Sequence[int] | Ints) -> Bools:
        candidates = np.zeros(len(tokens), CANDIDATE)
        candidates["id"] = tokens
        lib.llama_sampler_apply(self._sampler, ctypes.byref(array_over(candidates)))
        allowed: Bools = np.isfinite(candidates["logit"])
        return allowed

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self._sampler, token)

    def reset(self) -> None:
        lib.llama_sampler_reset(self._sampler)

    def copy(self) -> GbnfGrammar:
        return GbnfGrammar(lib.llama_sampler_clone(self._sampler))

    def close(self) -> None:
        lib.llama_sampler_free(self._sampler)


Grammar = GbnfGrammar | SchemaGrammar


def array_over(candidates: npt.NDArray[Any]) -> Any:
    """Return a llama_token_data_array over candidates, (tokens,) CANDIDATE."""
    pointer = candidates.ctypes.data_as(lib.llama_token_data_p)
    return lib.llama_token_data_array(data=pointer, size=len(candidates), selected=-1, sorted=False)


def _gbnf(model: LlamaModel, text: str) -> Any:
    log = library()
    log.forget()
    reason, sampler = _danger(text), None
    if not reason:
        log.muted = True
        with captured_stderr() as printed:
            sampler = lib.llama_sampler_init_grammar(model.vocabulary_handle, text.encode(), b"root")
        log.muted = False
        reason = "" if sampler else _complaint(text, "".join(printed), log.last_error())
    if not sampler:
        hint = "llama.cpp's grammars/README.md describes GBNF; --grammar-file FILE reads one"
        raise UsageError(f"the grammar cannot be used: {reason}", hint)
    return sampler


def _danger(text: str) -> str:
    """Return the reason why llama.cpp's parser would overflow the stack or not return, "" without one."""
    for repeats, least, most in REPEATS.findall(text):
        if int(least) > int(most):
            return f"{repeats} repeats at least {least} and at most {most} times"
    if text.count("(") > DEEPEST:
        return f"it has more than {DEEPEST} parentheses"
    return f"it has more than {MOST_RULES} rules" if text.count("::=") > MOST_RULES else ""


def _complaint(grammar: str, printed: str, logged: str) -> str:
    """Return a sentence about a refused grammar.

    `printed`: the parser's words on C's stderr: its reason, the text from the fault on, the whole grammar. `logged`:
    the library's error line, for faults found after the parsing.
    """
    if found := LOCATED.search(printed.removesuffix("\n").removesuffix(grammar).rstrip("\n")):
        line = grammar[: len(grammar) - len(found["rest"] or "")].count("\n") + 1
        return f"line {line}: {found['what']}"
    if "left recursion" in logged:
        return "a rule begins with itself (left recursion)"
    if "'root' symbol" in logged:
        return "it has no rule named 'root'"
    return logged if "::=" in grammar else "it has no rules"
