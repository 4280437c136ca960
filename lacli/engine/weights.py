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
from lacli.llamacpp.devices import CPU, RPC, Device, dealt, with_threads
from lacli.llamacpp.library import devices
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import Capacity, ModelSettings
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


def planned(model_settings: ModelSettings) -> list[ReplicaPlan]:
    """Plan the replicas; by default one, placed by llama.cpp itself.

    Raises UsageError for unknown devices, LacliError for servers that do not answer.
    """
    if model_settings.replicas == 1 and not model_settings.rpc:
        return [ReplicaPlan("", model_settings)]
    if model_settings.rpc:
        from lacli.llamacpp.rpc import register, remote_devices

        # A child process asks first: in this one ggml aborts where a server is absent or of another version.
        remote_devices(model_settings.rpc)
        register(model_settings.rpc)
    there = devices()
    groups = dealt(model_settings, there)
    settings = with_threads(model_settings, sum(group == (CPU,) for group in groups))
    replicas = [
        ReplicaPlan(name, replace(settings, devices=group), _servers(group, there))
        for group, name in zip(groups, _names(groups, settings), strict=True)
    ]
    servers = [server for replica in replicas for server in replica.rpc]
    if twice := [server for server in model_settings.rpc if servers.count(server) > 1]:
        raise UsageError(
            f"several copies need the RPC server at {twice[0]}, which does one thing at a time",
            "one server for each: lacli rpc-server --device NAME -p PORT",
        )
    return replicas


def _servers(group: Sequence[str], found: Sequence[Device]) -> tuple[str, ...]:
    """The addresses of the servers whose devices a replica uses: the descriptions of those devices."""
    used = [device.description for device in found if device.name in group and device.name.startswith(RPC)]
    return tuple(dict.fromkeys(used))


def _names(groups: Sequence[Sequence[str]], settings: ModelSettings) -> Iterator[str]:
    """Names of replicas by their devices, numbered if several are equal."""
    computing = [group[settings.main_gpu :][:1] if settings.split_mode == "none" else group for group in groups]
    words = ["+".join(group) or CPU for group in computing]
    for number, word in enumerate(words):
        yield f"{word} ({words[:number].count(word) + 1})" if words.count(word) > 1 else word


def _idle(replicas: Sequence[ReplicaPlan]) -> Iterator[str]:
    """Notes on replicas that gain nothing, and on servers without work."""
    settings = replicas[0].model_settings
    if len(replicas) > 1 and all(replica.model_settings.devices == (CPU,) for replica in replicas):
        yield "all copies compute on one processor, which gains nothing"
    used = {server for replica in replicas for server in replica.rpc}
    if used and settings.gpu_layers == 0:
        yield "-ngl 0 leaves all layers to this machine's processor: nothing goes to --rpc's servers"
    elif idle := [server for server in settings.rpc if server not in used]:
        yield f"no copy uses the RPC server at {listed(idle)}"


class Weights(Closing):
    """The weights of a model's replicas, one by default, and the contexts that are opened with them.

    `model`: the first replica's weights and vocabulary. `notes`: sentences on replicas that gain nothing.
    """

    def __init__(
        self,
        path: Path,
        model_settings: ModelSettings,
        *,
        verbose: bool = False,
        loading: Callable[[float], None] | None = None,
    ) -> None:
        """`loading`: as LlamaModel takes it."""
        self._path = path
        self._plans = planned(model_settings)
        self._models: dict[tuple[str, ...], LlamaModel] = {}
        self._verbose, self._loading = verbose, loading
        self.notes = [*_idle(self._plans)]
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
        if model_settings.devices not in self._models:
            self._models[model_settings.devices] = open_model(
                self._path, model_settings, verbose=self._verbose, loading=self._loading
            )
        return self._models[model_settings.devices]
