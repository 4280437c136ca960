"""Prompt caches: files with tokens and the library's state after them, which replace the prefill of these tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from lacli.auto.model_cost import Say, machine_key
from lacli.engine.cells import Cells
from lacli.errors import LacliError, PromptError, UsageError, reason_of
from lacli.modes import common_prefix
from lacli.text.files import MAX_TEXT, free_disk, replace_file
from lacli.text.format import size_in_words

if TYPE_CHECKING:
    from lacli.engine.load import ModelEngine
    from lacli.engine.step import TokenSequence

BEGINNING = b'{"format": "lacli prompt cache", '
"""The start of a file. Its first line is JSON with the key and the tokens; then come the state and a CRC-32."""


def key_of(engine: ModelEngine) -> dict[str, str]:
    """Return names and values of all that a saved state depends on. Raises UsageError for several replicas."""
    model = engine.model
    if len(engine.weights.plans) > 1:
        raise UsageError("a prompt cache is for one copy of a model", "leave --replicas out")
    key = {
        **machine_key(model.path, engine.model_settings),
        # The hash covers the ends of the file only.
        "time of the model's file": model.path.stat().st_mtime_ns,
        "--strict or -c": (engine.settings.strict, engine.context.cells > model.scaled_from > 0),
    }
    return {name: str(value) for name, value in key.items() if not name.startswith("threads")}


def load_slot(engine: ModelEngine, slot: Cells, path: Path, key: Mapping[str, str]) -> int:
    """Fill a slot from a file; return the file's size. Raises UsageError for another `key`, PromptError if damaged."""
    try:
        with path.open("rb") as file:
            head = file.readline(MAX_TEXT)
            state, check = np.split(np.fromfile(file, np.uint8, -1 if head.startswith(BEGINNING) else 0), [-4])
    except (OSError, MemoryError) as error:
        raise PromptError(f"cannot read {path}: {reason_of(error)}", "give another name") from error
    if crc32(state.data, crc32(head)).to_bytes(4) != check.tobytes():
        raise PromptError(f"{path} is no prompt cache, or a damaged one", "remove it, or give another name")
    found = json.loads(head)
    if other := [name for name, value in key.items() if found.get(name) != value]:
        raise UsageError(f"{path.name} was saved with another {other[0]}", "use a new file")
    tokens, data = found["tokens"], np.ctypeslib.as_ctypes(state)
    engine.admission.refill(slot, tokens, lambda first: engine.context.set_state(first, data))  # type: ignore[union-attr]
    # A recurrent state cannot be cut back. Of layers with a window, the library saves the last cells only.
    slot.whole = len(tokens) if engine.model.chain_only or len(tokens) > engine.model.window > 0 else 0
    return path.stat().st_size


def save_slot(engine: ModelEngine, slot: Cells, path: Path, key: Mapping[str, str]) -> int:
    """Write a slot's tokens and state to a file; return its size in bytes. Raises LacliError if this fails."""
    head = BEGINNING + json.dumps({**key, "tokens": slot.tokens[: slot.past]}).encode()[1:] + b"\n"
    state = engine.context.state(slot.first_id)  # type: ignore[union-attr]
    parts = head, state, crc32(state, crc32(head)).to_bytes(4)
    try:
        if path.exists():
            with path.open("rb") as file:
                if file.read(len(BEGINNING)) != BEGINNING:
                    raise PromptError(f"{path} is no prompt cache", "give another name")
        if (free := free_disk(path.parent)) < (size := sum(map(len, parts))):
            raise LacliError(f"{path} takes {size_in_words(size)}, and {size_in_words(free)} are free", "free space")
        replace_file(path, *parts)
    except OSError as error:
        raise LacliError(f"cannot write {path}: {reason_of(error)}", "give another name, or free some space") from error
    return size


class PromptCache:
    """The file of --prompt-cache, with the tokens of the slot used last. `path`: the file's absolute name."""

    def __init__(self, name: str | Path, engine: ModelEngine, say: Say, *, read_only: bool = False) -> None:
        """Fill a slot from the file `name`, if it exists. `say`: shows a sentence. Raises LacliError for a bad file."""
        self.path = Path(os.path.realpath(os.path.expanduser(name)))
        if not (read_only or os.access(self.path.parent, os.W_OK)):
            raise LacliError(f"cannot write in {self.path.parent}", "give the name of a file in another folder")
        self._key, self._say, self._read_only = key_of(engine), say, read_only
        self._tokens, self._size = list[int](), 0
        if self.path.exists():
            slot = engine.admission.slot()
            try:
                self._size = load_slot(engine, slot, self.path, self._key)
                self._tokens, self._is_whole = slot.tokens, slot.whole > 0
            except UsageError as error:
                say(f"{error}: everything is read anew")

    def tell(self, sequence: TokenSequence) -> None:
        """Say how many tokens of the sequence's prompt were in the file. Further calls do nothing."""
        if self._size:
            why = ": this model needs all tokens of the file to match" if self._is_whole and not sequence.reused else ""
            brought = f"{sequence.reused or 0:,} of {len(sequence.tokens):,} tokens were in {self.path.name}"
            self._say(f"{brought}, {size_in_words(self._size)}{why}")
            self._size = 0

    def save(self, engine: ModelEngine) -> None:
        """Write the latest slot if longer than the file or lacking over half of it. Raises LacliError if this fails."""
        slot, before = engine.admission.slot(), len(self._tokens)
        tokens = slot.tokens[: slot.past]
        is_kept = self._read_only or len(tokens) <= before <= 2 * common_prefix(self._tokens, tokens)
        if tokens and not is_kept and engine.context.suits(engine.settings, raw_logits=False):
            size, self._tokens = size_in_words(save_slot(engine, slot, self.path, self._key)), tokens
            self._say(f"{self.path.name} keeps {len(tokens):,} tokens, {size}: whoever has the file can read the text")
