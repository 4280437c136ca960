"""The flags of where models compute: -dev, -sm, -ts and -mg for one copy, --replicas and --rpc for several.

Declarations, and how their lists are written; ranges are checked by the settings.
"""

from __future__ import annotations

import re

from lacli.cli.groups import Table, field_options, flag
from lacli.errors import UsageError
from lacli.llamacpp.settings import Placement, ReplicaSettings, SplitMode
from lacli.settings import NOTHING

MODEL, REPLICAS = "Model", "Several copies of the model"

PLACE = Placement()
"""Where the options' defaults come from."""

PLACEMENT = (
    flag("devices", str, "", metavar="NAME,..", show_default="all GPUs",
         help="Devices that share the model. 'lacli doctor' names them; none: the CPU alone."),
    *field_options(PLACE, {"split_mode": "How several devices share the model. none: one has all of it."}),
    flag("tensor_split", str, "", metavar="N,N,..", show_default="by free memory",
         help="Proportions of the model that the devices get, such as 3,1."),
    flag("main_gpu", int, PLACE.main_gpu, metavar="N",
         help="The device that has all of the model with -sm none, from 0."),
)  # fmt: skip


def placement_of(devices: str, split_mode: SplitMode, tensor_split: str, main_gpu: int) -> Placement:
    """Where one copy computes. Raises UsageError for a device that there is not; other machines' come with --rpc."""
    return Placement(_devices(devices), split_mode, _proportions(tensor_split), main_gpu)


def make_replicas(*, replicas: str, rpc: str = "") -> ReplicaSettings:
    """The settings of all flags about several copies."""
    count, groups = copies(replicas)
    return ReplicaSettings(groups, count, endpoints(rpc))


replica_group = Table(
    (
        flag("replicas", str, "", metavar="N|NAME,..", show_default="one copy",
             help="Decode one answer with several copies of the model. Their number, or the devices of each, such as "
             "CUDA0,CUDA1 or CUDA0+CUDA1,CUDA2+CUDA3."),
        flag("rpc", str, "", metavar="HOST:PORT,..", show_default=False,
             help="RPC servers whose devices are used here. They run 'lacli rpc-server'; their devices are RPC0, "
             "RPC1."),
    ),
    make_replicas,
)  # fmt: skip


def copies(text: str) -> tuple[int, tuple[tuple[str, ...], ...]]:
    """--replicas: a number, or groups of devices with commas between them, their names joined by +."""
    text = text.strip()
    if re.fullmatch(r"[+-]?\d+", text):
        if int(text) < 1:
            raise UsageError(f"--replicas is {text}", "--replicas must be at least 1")
        return int(text), ()
    groups = tuple(tuple(name.strip() for name in group.split("+")) for group in text.split(",")) if text else ()
    if not all(name for group in groups for name in group):
        raise UsageError(f"--replicas {text!r} lacks a name", "for example CUDA0,CUDA1 or CUDA0+CUDA1,CUDA2+CUDA3")
    return 0, groups


def device_names(text: str) -> tuple[str, ...]:
    """--device: names with commas between them; none where nothing is said."""
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    if not all(names):
        raise UsageError(f"--device {text!r} lacks a name", "for example CUDA0,CUDA1")
    return names


def endpoints(text: str) -> tuple[str, ...]:
    """--rpc: addresses of servers; none where nothing is said. Raises UsageError."""
    if not text.strip():
        return ()
    from lacli.llamacpp.rpc import check_endpoints

    return check_endpoints(text)


def _devices(text: str) -> tuple[str, ...]:
    names = device_names(text)
    if not names:
        return ()
    # Only now: it loads llama.cpp.
    from lacli.llamacpp.devices import CPU, RPC, Device, named
    from lacli.llamacpp.library import devices

    if len(names) == 1 and names[0].lower() in NOTHING:
        return (CPU,)
    remote = [Device(name.upper(), "", True) for name in names if name.upper().startswith(RPC)]
    return named(names, [*devices(memory=False), *remote])


def _proportions(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(share) for share in re.split(r"[,/]", text)) if text.strip() else ()
    except ValueError:
        raise UsageError(f"-ts {text!r} is no list of numbers", "for example -ts 3,1") from None
