"""Where models compute: the devices of one copy, and how many copies of a model answer together.

Settings only: which devices there are, and what a word of the command line stands for, is in `devices.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lacli.errors import UsageError
from lacli.flags import check_words

SplitMode = Literal["none", "layer", "row", "tensor"]

MOST_REPLICAS = 64
"""Copies of a model: each takes a context's memory, and a step has no more branches than sequence ids (256)."""


@dataclass(frozen=True)
class Placement:
    """Where one copy of a model computes; names follow llama.cpp's flags.

    devices: ggml's names ("CUDA0", "CPU", "RPC0"), none for llama.cpp's own choice. tensor_split: each device's
    proportion of the model, none for what its free memory says. main_gpu: which of the devices computes with -sm none.
    """

    devices: tuple[str, ...] = ()
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0

    def __post_init__(self) -> None:
        check_words(self)
        if self.main_gpu < 0:
            raise UsageError(f"-mg is {self.main_gpu}", "-mg must be at least 0; --device none leaves every GPU out")
        shares = self.tensor_split
        if not all(0 <= share < math.inf for share in shares) or (shares and not any(shares)):
            raise UsageError(f"-ts {self._shares} are no proportions", "for example -ts 3,1")
        if shares and self.split_mode == "none":
            raise UsageError("-ts splits the model and -sm none does not", "drop one of them")
        # llama.cpp leaves it out of account then.
        if self.main_gpu and self.split_mode != "none":
            raise UsageError(
                f"-mg {self.main_gpu} says where -sm none computes, and -sm is {self.split_mode}", "add -sm none"
            )

    @property
    def flags(self) -> list[str]:
        """What is not llama.cpp's own choice, as its programs take it."""
        pairs = (
            ("--device", ",".join("none" if name == "CPU" else name for name in self.devices)),
            ("-sm", "" if self.split_mode == "layer" else self.split_mode),
            ("-ts", self._shares),
            ("-mg", str(self.main_gpu) if self.main_gpu else ""),
        )
        return [part for flag, value in pairs if value for part in (flag, value)]

    @property
    def by_name(self) -> dict[str, int | str]:
        """What our JSON says of the flags; '' for what is llama.cpp's own choice."""
        return {
            "device": ",".join(self.devices),
            "split_mode": self.split_mode,
            "tensor_split": self._shares,
            "main_gpu": self.main_gpu,
        }

    @property
    def _shares(self) -> str:
        return ",".join(f"{share:g}" for share in self.tensor_split)


@dataclass(frozen=True)
class ReplicaSettings:
    """Several copies of a model, and devices of other machines.

    groups: the devices of each copy, by name. count: so many copies alike, whose devices are found; 0 for none asked.
    rpc: addresses of llama.cpp's RPC servers. isolate: every copy in a process of its own. limit_s: seconds that a
    call of such a process may take.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    count: int = 0
    rpc: tuple[str, ...] = ()
    isolate: bool = False
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        if max(self.count, len(self.groups)) > MOST_REPLICAS:
            raise UsageError(
                f"--replicas asks for {max(self.count, len(self.groups))}", f"there are at most {MOST_REPLICAS}"
            )
        if not 0 < self.limit_s < math.inf:
            raise UsageError(
                f"--replica-timeout is {self.limit_s:g} s", "give seconds, a number above 0: 3600 is an hour"
            )
