"""What a model weighs and the memory it takes to run: from its header, or from the list of aliases before that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lacli.hub.cache import cached_quants
from lacli.hub.names import DEFAULT_QUANTS, Alias, HubModel, alias_model
from lacli.llamacpp.gguf import Header
from lacli.llamacpp.model import LARGEST_DEFAULT_CONTEXT
from lacli.terminal.screen import wrapped
from lacli.text.format import printable, size_in_words

BITS = {
    "Q2_K": 3.16,
    "Q3_K_L": 4.30,
    "IQ4_XS": 4.46,
    "Q4_0": 4.67,
    "Q4_K_S": 4.67,
    "Q4_K_M": 4.89,
    "Q5_K_M": 5.70,
    "Q6_K": 6.56,
    "Q8_0": 8.50,
    "F16": 16.0,
}
"""Bits a weight of Llama 3.1 8B in each quant, the smallest first (llama.cpp, tools/quantize/README.md)."""

NO_BREAK = "\N{NO-BREAK SPACE}"

F16_BYTES = 2
"""Bytes of a number in the cache without -ctk and -ctv."""


def running_memory(header: Header) -> int:
    """Bytes of a model's weights and of its cache at the default context; llama.cpp's buffers come on top."""
    per_layer = header.kv_heads if header.kv_heads[1:] else header.kv_heads * header.layers
    numbers = sum(per_layer) * (header.key_length + header.value_length)
    return header.weights + F16_BYTES * numbers * min(header.context, LARGEST_DEFAULT_CONTEXT)


def expected_size(alias: Alias, quant: str) -> int:
    """Bytes of an alias's file in another quant, about; 0 where the list or `BITS` does not know.

    Small models keep more of their weights in larger formats, so theirs are nearer to each other.
    """
    bits, known = BITS.get(quant.upper()), BITS.get(alias.quant.upper())
    if quant.upper() == alias.quant.upper():
        return alias.size
    return round(alias.size * bits / known) if bits and known else 0


@dataclass(frozen=True)
class AbsentModel:
    """A model of the hub that is not on this disk, and the alias that knows its repository. `name`: as it was typed."""

    name: str
    model: HubModel
    alias: Alias

    @property
    def size(self) -> int:
        """Bytes of the file, about; 0 if unknown."""
        return expected_size(self.alias, self.model.quant or self.alias.quant)

    @property
    def quants(self) -> dict[str, int]:
        """Bytes of the file in every quant, about: the repository may lack some."""
        sizes = {quant: expected_size(self.alias, quant) for quant in (*BITS, self.alias.quant)}
        return dict(sorted(((quant, size) for quant, size in sizes.items() if size), key=lambda each: each[1]))


def absent_model(name: str, model: HubModel, aliases: Mapping[str, Alias]) -> AbsentModel | None:
    """What the aliases know of a model by its repository; None if nothing. The alias of that name comes first."""
    named = aliases.get(name.partition(":")[0].lower())
    same = [each for each in (*([named] if named else []), *aliases.values()) if _repository(each) == model.repository]
    return AbsentModel(name, model, max(same, key=lambda each: bool(each.size))) if same else None


def _repository(alias: Alias) -> str:
    model = alias_model(alias)
    return model.repository if isinstance(model, HubModel) else ""


def absent_json(found: AbsentModel) -> dict[str, Any]:
    """One object. `size`, `memory`, `quants`: bytes, about; null if unknown. `path`: null, since there is no file."""
    return {
        "name": found.name,
        "path": None,
        "repository": found.model.repository,
        "quant": found.model.quant or None,
        "words": found.alias.words or None,
        "size": found.size or None,
        "memory": found.size + found.alias.cache if found.size else None,
        "quants": found.quants,
        "pull": f"lacli pull {found.name}",
    }


def absent_text(found: AbsentModel, width: int) -> str:
    """A line a fact. `width`: columns of the terminal, 0 for none."""
    size, cache = found.size, found.alias.cache
    default = "" if found.model.quant or found.model.file else f" (without a quant: {', then '.join(DEFAULT_QUANTS)})"
    sizes = [f"{quant} {size_in_words(each)}".replace(" ", NO_BREAK) for quant, each in found.quants.items()]
    here = cached_quants(found.model.repository)
    facts = [
        ("model", f"{found.model}{default}, not on this disk"),
        ("what", found.alias.words),
        ("download", f"about {size_in_words(size)}" if size else "its size is not known here"),
        ("memory", f"about {size_in_words(size + cache)} to run, {size_in_words(cache)} of it for the cache at the "
                   "default context (-c)" if size else ""),
        ("quants", f"{', '.join(sizes)}; about, and if the repository has them" if sizes else ""),
        ("here", f"on this disk: {here}" if here else ""),
        ("get it", f"lacli pull {found.name}"),
    ]  # fmt: skip
    lines = [f"{name:10}  {printable(words)}" for name, words in facts if words]
    return "\n".join(wrapped(line, width) if width else line for line in lines).replace(NO_BREAK, " ")
