"""`lacli serve`: a model behind OpenAI's protocol, for programs that speak it."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from lacli.cli import options
from lacli.cli.chat import ANSWERING
from lacli.cli.environment import setting, variable_of, yes_or_no
from lacli.cli.groups import typed, with_groups
from lacli.cli.prompt_options import PromptOptions
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.settings import DecodeSettings
from lacli.text.format import counted

KEYS = ("api_key", "api_key_file", "no_auth")
"""Options of a server's keys: one that is typed replaces those of the environment."""

Host = Annotated[
    str,
    setting("--host", metavar="ADDRESS",
            help="Address to listen on, several with commas, or unix:PATH for a socket file alone."),
]  # fmt: skip
Port = Annotated[int, setting("--port", min=0, max=65535, help="Port. 0 takes a free one.")]
Parallel = Annotated[
    int | None,
    setting("-np", "--parallel", min=1, show_default="4, or 1 with --strict",
            help="Answers decoded at a time. They share the context of -c."),
]  # fmt: skip
Drain = Annotated[
    float,
    setting("--drain", min=0, help="Seconds that running answers have when the server ends."),
]
Alias = Annotated[
    str,
    setting("-a", "--alias", show_default="the file's",
            help="Comma-separated names; replies carry the first in alphabetical order."),
]  # fmt: skip
Tags = Annotated[str, setting("--tags", show_default=False, help="Words beside the name, with commas.")]
Slots = Annotated[bool, setting("--slots/--no-slots", parser=yes_or_no, help="Answer GET /slots.")]
Metrics = Annotated[bool, setting("--metrics/--no-metrics", parser=yes_or_no, help="Answer GET /metrics.")]
Measure = Annotated[
    bool,
    setting("--measure/--no-measure",
            help="Measure once, for some seconds, what steps of a new model cost here."),
]  # fmt: skip
Page = Annotated[bool, setting("--ui/--no-ui", parser=yes_or_no, help="Show the page at /.")]
Cors = Annotated[
    str,
    setting("--cors-origins", "--cors", metavar="ORIGINS", show_default=False,
            help="Pages whose scripts may ask: https://a.example, localhost for all of this machine, or *."),
]  # fmt: skip


def _unless_typed(context: typer.Context, parameter: typer.CallbackParam, given: Any) -> Any:
    """What is given of keys; the environment's makes room for what is typed, which is processed first."""
    is_replaced = variable_of(context, parameter) and typed(context).intersection(KEYS)
    return parameter.get_default(context) if is_replaced else given


ApiKey = Annotated[
    list[str] | None,
    setting("--api-key", metavar="KEY", show_default=False, callback=_unless_typed,
            help="Ask for this key, or one of several with commas."),
]  # fmt: skip
ApiKeyFile = Annotated[
    str | None,
    setting("--api-key-file", metavar="FILE", show_default=False, callback=_unless_typed,
            help="Keys, one a line."),
]  # fmt: skip
NoAuth = Annotated[
    bool,
    setting("--no-auth", callback=_unless_typed,
            help="Let everybody in who reaches the address."),
]  # fmt: skip
SslCertFile = Annotated[
    str,
    setting("--ssl-cert-file", metavar="FILE", show_default=False,
            help="Certificate in PEM, for https."),
]  # fmt: skip
SslKeyFile = Annotated[str, setting("--ssl-key-file", metavar="FILE", show_default=False, help="Its private key.")]


@with_groups(asked=options.model_name, **ANSWERING)
def serve(
    asked: str,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    parallel: Parallel = None,
    drain: Drain = 10,
    alias: Alias = "",
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    no_auth: NoAuth = False,
    ssl_cert_file: SslCertFile = "",
    ssl_key_file: SslKeyFile = "",
    tags: Tags = "",
    slots: Slots = True,
    metrics: Metrics = True,
    ui: Page = True,
    cors_origins: Cors = "",
    *,
    prompt_options: PromptOptions,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    model_settings: ModelSettings,
    copies: ReplicaSettings,
    offline: options.Offline = False,
    measure: Measure = True,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Answer programs that speak OpenAI's protocol, several at a time.

    Requests that say how tokens are drawn, and how many, win over these flags; so does a system message over -sys.
    """
    try:
        from lacli.serve import app, run
    except ImportError as error:
        raise UsageError(f"lacli serve needs {error.name}", "in lacli's folder: pip install '.[serve]'") from error
    from lacli import PARALLEL
    from lacli.api.model import Model
    from lacli.auto.model_cost import SERVING
    from lacli.llamacpp.model import giving_way
    from lacli.session.session import Session
    from lacli.terminal.interrupts import ctrl_c_ends_at_once
    from lacli.terminal.screen import Screen, loading_model
    from lacli.text.records import state_file

    screen = Screen(color=color, quiet=quiet)
    hosts, keys = _checked_hosts(host), _keys(api_key or (), api_key_file)
    access = run.access_for(hosts, keys, _names(cors_origins), no_auth=no_auth)
    if bool(ssl_cert_file) != bool(ssl_key_file):
        raise UsageError("https needs a certificate and its key", "give --ssl-cert-file and --ssl-key-file")
    run.check_files(*filter(None, (ssl_cert_file, ssl_key_file)))
    in_file = hosts[0].startswith(run.UNIX)
    listening = [] if in_file else run.open_sockets(hosts, port)
    path = options.model_path(asked, screen, offline)
    with ExitStack() as stack:
        for each in listening:
            stack.enter_context(each)
        with loading_model(screen, verbose=verbose) as loading:
            session = Session(
                path,
                giving_way(model_settings),
                decode_settings,
                sampling,
                template=prompt_options.template,
                template_variables=prompt_options.variables,
                replicas=copies,
                texts=parallel or (1 if decode_settings.strict else PARALLEL),
                often_alone=not parallel,
                verbose=verbose,
                loading=loading,
            )
        session.use_known(state_file())
        if measure and session.texts > 1 and session.settings.mode == "auto" and session.wants_cost:
            screen.note(f"measuring what steps cost here, about {SERVING.seconds:g} s; --no-measure leaves it out")
            session.learn_cost(SERVING, state_file(), screen.note, ctrl_c_ends_at_once())
        screen.notes(session.notes, session.warnings)
        with Model(session, sampling) as model:
            # A client may ask for the name that the model was started by.
            names = sorted(_names(alias)) or [path.stem, *([asked] if not Path(asked).exists() else [])]
            settings = app.ServeSettings(
                names[0],
                sampling,
                prompt_options.system,
                prompt_options.max_tokens,
                prompt_options.stops,
                aliases=tuple(names),
                tags=tuple(sorted(_names(tags))),
                slots=slots,
                metrics=metrics,
                page=ui,
                verbose=verbose,
            )
            scheme = "https" if ssl_cert_file else "http"
            ports = [each.getsockname()[1] for each in listening]
            places = [_address(scheme, *each) for each in zip(hosts, ports, strict=False)] or hosts
            asking = f", for {counted(len(keys), 'key')}" if keys else ""
            told = f"{settings.name} answers at {' and '.join(places)}, {session.texts} at a time{asking}"
            server = run.Listener(
                app.Server(model, settings).app(access),
                drain_s=drain,
                begun=lambda: screen.warn(f"{told}; Ctrl-C ends it"),
                uds=hosts[0].removeprefix(run.UNIX) if in_file else None,
                ssl_certfile=ssl_cert_file or None,
                ssl_keyfile=ssl_key_file or None,
            )
            run.log_to(sys.stderr, logging.WARNING if quiet else logging.INFO)
            run.serve(server, listening or None)


def _names(text: str) -> list[str]:
    """The names of a list with commas between them, each once."""
    return [*dict.fromkeys(each.strip() for each in text.split(",") if each.strip())]


def _checked_hosts(text: str) -> list[str]:
    """Return the addresses of --host; one of IPv6 may be given as it stands in a link. Raises UsageError."""
    hosts = [re.sub(r"^\[(.*)\]$", r"\1", each) for each in _names(text)]
    if not hosts or "unix:" in hosts:
        raise UsageError("--host is empty", "write --host 127.0.0.1, or leave it out")
    if hosts[1:] and any(each.startswith("unix:") for each in hosts):
        raise UsageError("--host takes unix:PATH alone", "leave the other addresses out")
    for host in hosts:
        if not host.startswith("unix:") and ("/" in host or re.fullmatch(r"[^:]*:\d+", host)):
            raise UsageError(f"--host {host} is no address", "write --host 0.0.0.0 or a name; --port takes the port")
    return hosts


def _keys(given: list[str] | tuple[()], file: str | None) -> list[str]:
    """Return all API keys. Raises UsageError for an empty one: a variable that is not set."""
    from lacli.serve.run import read_keys

    keys = [key.strip() for text in given for key in text.split(",")]
    if not all(keys):
        raise UsageError("--api-key is empty", "give a key, or leave it out")
    return [*keys, *(read_keys(file) if file else ())]


def _address(scheme: str, host: str, port: int) -> str:
    """An address as clients write it."""
    if host in ("0.0.0.0", "::"):
        return f"{scheme}://127.0.0.1:{port} and this machine's other addresses"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
