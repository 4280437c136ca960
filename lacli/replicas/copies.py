"""The copies of a model that answer together: where each one computes, its weights, and a context of each.

A copy whose devices may fail (another machine's, or any with --isolate) runs in a process of its own, so that its crash
cannot end this one. `group.py` divides the steps among the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from lacli.errors import LacliError, UsageError
from lacli.ik.choice import open_context, open_model
from lacli.llamacpp.context import Context
from lacli.llamacpp.devices import CPU, RPC, Device, offloading, placements, shared_threads
from lacli.llamacpp.library import devices
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import Capacity, ModelSettings, Placement, ReplicaSettings
from lacli.replicas.isolated import ChildSettings, RemoteEngine
from lacli.settings import DecodeSettings
from lacli.text.files import Closing
from lacli.text.format import listed

FETCHED_WHOLE = 65_536
"""Largest vocabulary, in tokens, for which fetching all of a row's logits from another machine is the faster way.

At 1 Gbit/s they take 2 ms; the best candidates alone take three answers, each of a fraction of a millisecond.
"""

ALONE = "has no branches to share"
"""In the note on a mode that decodes with one copy."""


@dataclass(frozen=True)
class ReplicaPlan:
    """Plan of one copy. `name`: for messages. `rpc`: servers whose devices it needs. `apart`: in a child process."""

    name: str
    model_settings: ModelSettings
    rpc: tuple[str, ...] = ()
    apart: bool = False


def planned(wanted: ReplicaSettings, model_settings: ModelSettings) -> list[ReplicaPlan]:
    """Plan the `wanted` copies; by default one, placed by llama.cpp itself.

    Raises UsageError for unknown devices, LacliError for servers that do not answer.
    """
    if wanted == replace(ReplicaSettings(), limit_s=wanted.limit_s):
        return [ReplicaPlan("", model_settings)]
    remote: Sequence[Device] = ()
    if wanted.rpc:
        from lacli.llamacpp.rpc import remote_devices

        remote = remote_devices(wanted.rpc, wanted.limit_s)
    there = [*devices(), *remote]
    places = placements(wanted, model_settings, there)
    on_cpu = sum(place.devices == (CPU,) for place in places)
    copies = [
        _copy(place, name, wanted, shared_threads(model_settings, on_cpu), remote)
        for place, name in zip(places, _names(places, there), strict=True)
    ]
    servers = [server for copy in copies for server in copy.rpc]
    if twice := [server for server in wanted.rpc if servers.count(server) > 1]:
        raise UsageError(
            f"several copies need the RPC server at {twice[0]}, which serves one at a time",
            "one server for each: lacli rpc-server --device NAME -p PORT",
        )
    return copies


def _copy(
    place: Placement, name: str, wanted: ReplicaSettings, model_settings: ModelSettings, remote: Sequence[Device]
) -> ReplicaPlan:
    used = {device.description for device in remote if device.name in place.devices}
    servers = tuple(server for server in wanted.rpc if server in used)
    # A child process numbers only the devices of its own servers.
    there = [device.name for device in remote if device.description in used]
    renamed = tuple(f"{RPC}{there.index(each)}" if each in there else each for each in place.devices)
    model_settings = replace(model_settings, placement=replace(place, devices=renamed))
    return ReplicaPlan(name, model_settings, servers, apart=bool(servers) or wanted.isolate)


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


class Copies(Closing):
    """The weights of a model's copies, and the contexts that are opened with them.

    `model`: the vocabulary, and the weights if a copy is in this process. `contexts`: by the name of their copy; the
    first one decodes steps without branches.
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
        """`loading`: as LlamaModel takes it, for the copies in this process."""
        self._wanted = wanted or ReplicaSettings()
        self._path = path
        self._whole = model_settings
        self._copies = planned(self._wanted, model_settings)
        self._models: dict[Placement, LlamaModel] = {}
        self._verbose, self._loading = verbose, loading
        self._notes = [*_idle(self._copies, self._wanted)]
        self.contexts: dict[str, Context] = {}
        self._gone = False
        first = next((copy for copy in self._copies if not copy.apart), None)
        if first:
            self.model = self._model(first.model_settings)
        else:
            here = replace(model_settings, placement=Placement((CPU,)))
            self.model = LlamaModel(path, here, verbose=verbose, simulated=True)

    @property
    def model_settings(self) -> ModelSettings:
        """Settings of the first copy, with the threads of all copies while no other one is open."""
        shared = len(self.contexts) > 1
        return self._copies[0].model_settings if shared else self._with_all_threads(self._copies[0])

    @property
    def names(self) -> list[str]:
        """The copies' names."""
        return [copy.name for copy in self._copies]

    @property
    def elsewhere(self) -> bool:
        """True if any copy uses devices of other machines."""
        return any(copy.rpc for copy in self._copies)

    @property
    def here(self) -> bool:
        """True if the weights of a copy are in this process."""
        return bool(self._models)

    @property
    def gone(self) -> bool:
        """True if the process of every context that was open has ended."""
        contexts = self.contexts.values()
        lost = [isinstance(context, RemoteEngine) and context.lost for context in contexts]
        return all(lost) if lost else self._gone

    def open(
        self, decode_settings: DecodeSettings, *, backend_greedy: bool | None, texts: int | None = None
    ) -> Context:
        """Open a context of each copy in place of the open ones, and return the first.

        `texts`: those that share it, with room for as many that have ended; None for one alone. Without branches only
        one is opened. A copy that fails to open is left out; if all do, raises the first one's LacliError.
        """
        self._gone = self.gone
        self._close_contexts()
        failed: dict[str, LacliError] = {}
        size: DecodeSettings | Capacity = decode_settings
        if texts:
            size = Capacity.for_texts(decode_settings, texts, self._whole.batch)
        for copy in self._copies:
            if not self.contexts or decode_settings.sequences > 1:
                try:
                    self._check_servers(copy)
                    self.contexts[copy.name] = self._context(copy, size, backend_greedy)
                except LacliError as error:
                    failed[copy.name] = error
        if not self.contexts:
            raise next(iter(failed.values()))
        self._copies = [copy for copy in self._copies if copy.name not in failed]
        self._notes += [f"replica {name} is left out: {error}" for name, error in failed.items()]
        if self._gone:
            self._notes.append("the context was lost and opened anew: the whole text was decoded again")
        self._gone = False
        first = next(iter(self.contexts))
        if len(self._copies) > len(self.contexts):
            self._notes.append(f"mode {decode_settings.mode} {ALONE}: {first} decodes alone")
        return self.contexts[first]

    def more(self, capacity: Capacity, *, backend_greedy: bool | None) -> dict[str, Context]:
        """Open further contexts: one of each copy, or only one without branches to share. The caller closes them."""
        with ExitStack() as stack:
            opened: dict[str, Context] = {}
            for copy in self._copies if capacity.sequences > 1 else self._copies[:1]:
                opened[copy.name] = self._context(copy, capacity, backend_greedy)
                stack.callback(opened[copy.name].close)
            stack.pop_all()
        return opened

    def take_notes(self) -> list[str]:
        """Return the notes on copies since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def suits(self, decode_settings: DecodeSettings, *, raw_logits: bool) -> bool:
        """True if these settings can decode in the open contexts and need no further ones."""
        if decode_settings.sequences > 1 and len(self.contexts) < len(self._copies):
            return False
        return all(context.suits(decode_settings, raw_logits=raw_logits) for context in self.contexts.values())

    def keep_first(self, why: str) -> None:
        """Drop all copies but the first. `why`: for the note."""
        if self._copies[1:]:
            self._notes.append(f"replica {self._copies[0].name} decodes alone: {why}")
            del self._copies[1:]

    def lose(self, failed: Mapping[str, str]) -> list[str]:
        """Drop copies that have failed, and return a note on each. `failed`: the reasons, by their names."""
        lost = {name: why for name, why in failed.items() if name in self.contexts}
        for name in lost:
            self._copies = [copy for copy in self._copies if copy.name != name]
            self.contexts.pop(name).close()
        left = " and ".join(self.contexts)
        return [f"replica {name} has failed, {left} went on: {why}" for name, why in lost.items()]

    def _check_servers(self, copy: ReplicaPlan) -> None:
        """Raise LacliError for a server that went away and is not back: the child process cannot say why it fails."""
        if self._gone and copy.rpc:
            from lacli.llamacpp.rpc import remote_devices

            remote_devices(copy.rpc, self._wanted.limit_s)

    def _close_contexts(self) -> None:
        with ExitStack() as stack:
            for context in self.contexts.values():
                stack.callback(context.close)
            self.contexts = {}

    def close(self) -> None:
        self._close_contexts()
        for model in {self.model, *self._models.values()}:
            model.close()

    def _context(
        self, copy: ReplicaPlan, decode_settings: DecodeSettings | Capacity, backend_greedy: bool | None
    ) -> Context:
        if decode_settings.sequences == 1 or not self._copies[1:]:
            copy = replace(copy, model_settings=self._with_all_threads(copy))
        if not copy.apart:
            return open_context(
                self._model(copy.model_settings), copy.model_settings, decode_settings, backend_greedy=backend_greedy
            )
        if copy.rpc and not (decode_settings.recycles and self.model.vocabulary > FETCHED_WHOLE):
            # llama.cpp fetches choices from a server row by row, but all rows' logits at once.
            backend_greedy = False
        limit_s, verbose = self._wanted.limit_s, self._verbose
        return RemoteEngine(
            ChildSettings(
                self._path, copy.model_settings, decode_settings, backend_greedy, copy.rpc, limit_s, copy.name, verbose
            )
        )

    def _with_all_threads(self, copy: ReplicaPlan) -> ModelSettings:
        """The copy's settings with the threads of all copies, for use while the others are idle."""
        return replace(copy.model_settings, threads=self._whole.threads, threads_batch=self._whole.threads_batch)

    def _model(self, model_settings: ModelSettings) -> LlamaModel:
        """The weights on a copy's devices, shared by all copies on the same ones."""
        if model_settings.placement not in self._models:
            self._models[model_settings.placement] = open_model(
                self._path, model_settings, verbose=self._verbose, loading=self._loading
            )
        return self._models[model_settings.placement]
