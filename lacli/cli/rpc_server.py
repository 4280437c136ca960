"""`lacli rpc-server`: its flags, and one call of `serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from lacli.cli import options
from lacli.cli.environment import setting, with_variables
from lacli.cli.folders import rpc_folder
from lacli.cli.placement_options import device_names
from lacli.errors import UsageError
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import spellings

Host = Annotated[str, typer.Option("-H", "--host", help="IPv4 address to listen at; 0.0.0.0 is all of this machine.")]
Port = Annotated[int, typer.Option("-p", "--port", help="Port to listen at; 0 takes a free one.")]
Devices = Annotated[
    str,
    typer.Option(
        "-d",
        "-dev",
        "--device",
        metavar="NAME,..",
        show_default=False,
        help="Devices to serve, as 'lacli doctor' lists them; without it all GPUs, or the processor where none is.",
    ),
]
Threads = Annotated[
    int,
    setting(*spellings("threads"), help="Threads for the processor, where it is served; 0 is one a physical core."),
]
Cache = Annotated[
    bool,
    typer.Option("-c", "--cache", help="Keep large weights that clients send on this disk, and take them from there."),
]


def rpc_server(
    context: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 50052,
    device: Devices = "",
    threads: Threads = 0,
    cache: Cache = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Serve this machine's devices to lacli or llama.cpp on other machines: 'lacli run --rpc host:port' uses them.

    It is llama.cpp's own RPC server, which has no password and no encryption: by default only this machine reaches it.

    It serves one client at a time until Ctrl-C. Needs a llama.cpp that was built with RPC.
    """
    from lacli.rpc.server import ServerSettings, serve
    from lacli.terminal.screen import Screen

    try:
        ModelSettings(threads=threads)
        settings = ServerSettings(host, port, device_names(device), threads, rpc_folder() if cache else None, verbose)
    except UsageError as error:
        raise with_variables(error, context) from error
    serve(settings, Screen(color=color))
