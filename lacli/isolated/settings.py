"""What a child process is told once, and what it says of its context once it is there.

Records only; they travel whole from one process to the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lacli.capacity import Capacity
from lacli.settings import DecodeSettings, ModelSettings


@dataclass(frozen=True)
class ChildSettings:
    """The context that a child process opens.

    loading.placement has the devices' names as they are called in the child. backend_greedy: as LlamaEngine takes it.
    rpc: addresses of the RPC servers that this placement needs. limit_s: seconds that a call may take. name: of the
    replica, for messages. verbose: llama.cpp's log goes to standard error.
    """

    path: Path
    loading: ModelSettings
    decoding: DecodeSettings | Capacity
    backend_greedy: bool | None
    rpc: tuple[str, ...] = ()
    limit_s: float = 60.0
    name: str = ""
    verbose: bool = False


@dataclass(frozen=True)
class Opened:
    """What a context is, in the words of Engine and LlamaEngine. ends: the tokens that end a generation."""

    cells: int
    batch_rows: int
    sequences: int
    vocabulary: int
    can_shift: bool
    memory: float
    back: int
    ends: tuple[int, ...]
