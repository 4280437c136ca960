"""The weights of a model and of its replicas: where each one computes, and the contexts that are opened with them.

All of them are in this process, those on devices of RPC servers too. `replicas.py` deals the steps among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lacli.engine.replicas import ReplicaContext
from lacli.errors import UsageError
from lacli.ik.choice import open_context, open_model
from lacli.llamacpp.decoding import DecodingContext
from lacli.llamacpp.devices import CPU, RPC, Device, offloading, placements, shared_threads
from lacli.llamacpp.library import devices
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import Capacity, ModelSettings, Placement, ReplicaSettings
from lacli.settings import DecodeSettings
from lacli.text.files import Closing
from lacli.text.format import listed

FETCHED_WHOLE = 65_536
"""Largest vocabulary, in tokens, for which fetching all of a row's logits from another machine is the faster way.

At 1 Gbit/s they take 2 ms; the best candidates alone take three answers, each of a fraction of a millisecond.
"""

OpenContext = DecodingContext | ReplicaContext


class ReplicaPlan(NamedTuple):
    """Plan of one replica. `name`: for messages. `rpc`: addresses of the servers whose devices it uses."""

    name: str
    model_settings: ModelSettings
    rpc: tuple[str, ...] = ()


def planned(wanted: ReplicaSettings, model_settings: ModelSettings) -> list[ReplicaPlan]:
    """Plan the `wanted` copies; by default one, placed by llama.cpp itself.

    Raises UsageError for unknown devices, LacliError for servers that do not answer.
    """
    if wanted == ReplicaSettings():
        return [ReplicaPlan("", model_settings)]
    if wanted.rpc:
        from lacli.llamacpp.rpc import register, remote_devices

        # A child process asks first: in this one ggml aborts where a server is absent or of another version.
        remote_devices(wanted.rpc)
        register(wanted.rpc)
    there = devices()
    places = placements(wanted, model_settings, there)
    settings = shared_threads(model_settings, sum(place.devices == (CPU,) for place in places))
    copies = [
        ReplicaPlan(name, replace(settings, placement=place), _servers(place, there))
        for place, name in zip(places, _names(places, there), strict=True)
    ]
    servers = [server for copy in copies for server in copy.rpc]
    if twice := [server for server in wanted.rpc if servers.count(server) > 1]:
        raise UsageError(
            f"several copies need the RPC server at {twice[0]}, which does one thing at a time",
            "one server for each: lacli rpc-server --device NAME -p PORT",
        )
    return copies


def _servers(place: Placement, found: Sequence[Device]) -> tuple[str, ...]:
    """The addresses of the servers whose devices a copy uses: the descriptions of those devices."""
    used = [device.description for device in found if device.name in place.devices and device.name.startswith(RPC)]
    return tuple(dict.fromkeys(used))


def _names(places: Sequence[Placement], found: Sequence[Device]) -> Iterator[str]:
    """Names of copies by their devices, numbered if several are equal."""
    words = ["+".join(_computing(place, found)) or CPU for place in places]
    for number, word in enumerate(words):
        yield f"{word} ({words[:number].count(word) + 1})" if words.count(word) > 1 else word


def _computing(place: Placement, found: Sequence[Device]) -> tuple[str, ...]:
    devices = offloading(place, found)
    return devices[place.main_gpu :][:1] if place.split_mode == "none" else devices


def _idle(copies: Sequence[ReplicaPlan], wanted: ReplicaSettings) -> Iterator[str]:
    """Notes on copies that gain nothing, and on servers without work."""
    if len(copies) > 1 and all(copy.model_settings.placement.devices == (CPU,) for copy in copies):
        yield "all copies compute on one processor, which gains nothing"
    used = {server for copy in copies for server in copy.rpc}
    if used and copies[0].model_settings.gpu_layers == 0:
        yield "-ngl 0 leaves all layers to this machine's processor: nothing goes to --rpc's servers"
    elif idle := [server for server in wanted.rpc if server not in used]:
        yield f"no copy uses the RPC server at {listed(idle)}"


class Weights(Closing):
    """The weights of a model's replicas, one by default, and the contexts that are opened with them.

    `model`: the first replica's weights and vocabulary. `notes`: sentences on replicas that gain nothing.
    """

    def __init__(
        self,
        path: Path,
        model_settings: ModelSettings,
        wanted: ReplicaSettings | None = None,
        *,
        verbose: bool = False,
        loading: Callable[[float], None] | None = None,
    ) -> None:
        """`loading`: as LlamaModel takes it."""
        wanted = wanted or ReplicaSettings()
        self._path = path
        self._plans = planned(wanted, model_settings)
        self._models: dict[Placement, LlamaModel] = {}
        self._verbose, self._loading = verbose, loading
        self.notes = [*_idle(self._plans, wanted)]
        self.model = self._model(self._plans[0].model_settings)

    @property
    def model_settings(self) -> ModelSettings:
        """Settings of the first replica."""
        return self._plans[0].model_settings

    @property
    def names(self) -> list[str]:
        """The replicas' names."""
        return [plan.name for plan in self._plans]

    @property
    def elsewhere(self) -> bool:
        """True if any replica uses devices of other machines."""
        return any(plan.rpc for plan in self._plans)

    def open(self, size: DecodeSettings | Capacity, *, backend_greedy: bool | None) -> OpenContext:
        """Open a context: one of each replica together, or only the first one's if there are no branches to share."""
        plans = self._plans if size.sequences > 1 else self._plans[:1]
        with ExitStack() as stack:
            opened = []
            for plan in plans:
                opened.append(self._context(plan, size, backend_greedy))
                stack.callback(opened[-1].close)
            stack.pop_all()
        return ReplicaContext(opened) if len(opened) > 1 else opened[0]

    def keep_first(self, why: str) -> None:
        """Drop all replicas but the first. `why`: for the note."""
        if self._plans[1:]:
            self.notes.append(f"replica {self._plans[0].name} decodes alone: {why}")
            del self._plans[1:]

    def close(self) -> None:
        for model in self._models.values():
            model.close()

    def _context(
        self, plan: ReplicaPlan, size: DecodeSettings | Capacity, backend_greedy: bool | None
    ) -> DecodingContext:
        if plan.rpc and not (size.recycles and self.model.vocabulary > FETCHED_WHOLE):
            # llama.cpp fetches choices from a server row by row, but all rows' logits at once.
            backend_greedy = False
        model = self._model(plan.model_settings)
        return open_context(model, plan.model_settings, size, backend_greedy=backend_greedy)

    def _model(self, model_settings: ModelSettings) -> LlamaModel:
        """The weights on a replica's devices, shared by all replicas on the same ones."""
        if model_settings.placement not in self._models:
            self._models[model_settings.placement] = open_model(
                self._path, model_settings, verbose=self._verbose, loading=self._loading
            )
        return self._models[model_settings.placement]
