"""`lacli serve`: a model behind OpenAI's protocol, for programs that speak it."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from functools import partial
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer

from lacli.cli import options
from lacli.cli.chat import ANSWERING
from lacli.cli.environment import setting, variable_of, yes_or_no
from lacli.cli.groups import typed, with_groups
from lacli.cli.ignored import KEYS
from lacli.cli.prompt_options import PromptOptions
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.settings import DecodeSettings
from lacli.text.format import counted

SERVER = "Server"

Host = Annotated[
    str,
    setting("--host", metavar="ADDRESS", rich_help_panel=SERVER,
            help="Address to listen on, several with commas, or unix:PATH for a socket file."),
]  # fmt: skip
Port = Annotated[int, setting("--port", min=0, max=65535, rich_help_panel=SERVER, help="Port. 0 takes a free one.")]
Parallel = Annotated[
    int | None,
    setting("-np", "--parallel", min=1, rich_help_panel=SERVER, show_default="4, or 1 with --strict",
            help="Answers decoded at a time. They share the context of -c."),
]  # fmt: skip
Queue = Annotated[
    int,
    setting("--queue", min=0, rich_help_panel=SERVER,
            help="Requests of a key that may wait; more are refused with 503."),
]  # fmt: skip
Drain = Annotated[
    float,
    setting("--drain", min=0, rich_help_panel=SERVER, help="Seconds that running answers have when the server ends."),
]
Alias = Annotated[
    str,
    setting("-a", "--alias", show_default="the file's", rich_help_panel=SERVER,
            help="Name that clients see; of several with commas the first by the alphabet."),
]  # fmt: skip
Tags = Annotated[
    str, setting("--tags", show_default=False, rich_help_panel=SERVER, help="Words beside the name, with commas.")
]
ContextShift = Annotated[
    bool,
    setting("--context-shift/--no-context-shift", parser=yes_or_no, rich_help_panel=SERVER,
            help="In a full context an answer goes on, and half of its tokens are forgotten. Prompts have to fit."),
]  # fmt: skip
Slots = Annotated[
    bool, setting("--slots/--no-slots", parser=yes_or_no, rich_help_panel=SERVER, help="Answer GET /slots.")
]
Metrics = Annotated[
    bool, setting("--metrics/--no-metrics", parser=yes_or_no, rich_help_panel=SERVER, help="Answer GET /metrics.")
]
Page = Annotated[bool, setting("--ui/--no-ui", parser=yes_or_no, rich_help_panel=SERVER, help="Show the page at /.")]
Cors = Annotated[
    str,
    setting("--cors-origins", "--cors", metavar="ORIGINS", rich_help_panel=SERVER, show_default=False,
            help="Pages whose scripts may ask: https://a.example, localhost for all of this machine, or *."),
]  # fmt: skip


def _unless_typed(context: typer.Context, parameter: typer.CallbackParam, given: Any) -> Any:
    """What is given of keys; the environment's makes room for what is typed, which is processed first."""
    is_replaced = variable_of(context, parameter) and typed(context).intersection(KEYS)
    return parameter.get_default(context) if is_replaced else given


ApiKey = Annotated[
    list[str] | None,
    setting("--api-key", metavar="KEY", rich_help_panel=SERVER, show_default=False, callback=_unless_typed,
            help="Ask for this key, or one of several with commas. Each is an owner of its texts."),
]  # fmt: skip
ApiKeyFile = Annotated[
    str | None,
    setting("--api-key-file", metavar="FILE", rich_help_panel=SERVER, show_default=False, callback=_unless_typed,
            help="Keys, one a line."),
]  # fmt: skip
NoAuth = Annotated[
    bool,
    setting("--no-auth", rich_help_panel=SERVER, callback=_unless_typed,
            help="Let everybody in who reaches the address."),
]  # fmt: skip
SslCertFile = Annotated[
    str,
    setting("--ssl-cert-file", metavar="FILE", rich_help_panel=SERVER, show_default=False,
            help="Certificate in PEM, for https."),
]  # fmt: skip
SslKeyFile = Annotated[
    str, setting("--ssl-key-file", metavar="FILE", rich_help_panel=SERVER, show_default=False, help="Its private key.")
]
MaxBody = Annotated[
    int, setting("--max-body", min=1, metavar="MIB", rich_help_panel=SERVER, help="MiB of a request at most.")
]


ENDING = "the server is ending"

RESTART_S = 5
"""Seconds from a server's end to another's start, chosen: a service manager's pause and a small model's loading."""


@with_groups(asked=options.model_name, **ANSWERING)
def serve(
    asked: str,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    parallel: Parallel = None,
    queue: Queue = 256,
    drain: Drain = 10,
    alias: Alias = "",
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    no_auth: NoAuth = False,
    ssl_cert_file: SslCertFile = "",
    ssl_key_file: SslKeyFile = "",
    max_body: MaxBody = 8,
    tags: Tags = "",
    context_shift: ContextShift = False,
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
    learn: options.Learn = True,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    color: options.ColorWhen = "auto",
) -> None:
    """Answer programs that speak OpenAI's protocol, several at a time.

    Requests that say how tokens are drawn, and how many, win over these flags; so does a system message over -sys.
    """
    try:
        from lacli.serve import access, app, guard, origins, run
    except ImportError as error:
        raise UsageError(f"lacli serve needs {error.name}", "in lacli's folder: pip install '.[serve]'") from error
    from lacli import PARALLEL
    from lacli.api.model import Model
    from lacli.auto.model_cost import SERVING
    from lacli.llamacpp.model import giving_way
    from lacli.serve.meter import MAX_WAIT_S
    from lacli.session.session import Session
    from lacli.terminal.interrupts import ctrl_c_ends_at_once
    from lacli.terminal.screen import Screen, loading_model
    from lacli.text.records import state_file

    sys.stderr = access.own_stderr(sys.stderr)
    screen = Screen(color=color, quiet=quiet)
    keys = [*guard.given_keys(api_key or ()), *(guard.read_keys(api_key_file) if api_key_file else ())]
    # An address of IPv6 may be given as it stands in a link.
    hosts = [*dict.fromkeys(re.sub(r"^\[(.*)\]$", r"\1", each) for each in _names(host))]
    guarded = guard.guard_settings(hosts, keys, no_auth=no_auth, body=max_body * 2**20)
    certificate = run.checked_certificate(ssl_cert_file, ssl_key_file)
    pages = origins.checked_origins(_names(cors_origins))
    system = prompt_options.system
    listening = run.open_sockets(hosts, port)
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
        session.use_known(state_file(), learns=learn)
        if learn and session.texts > 1 and session.settings.mode == "auto" and session.wants_cost:
            screen.note(f"measuring what steps cost here, about {SERVING.seconds:g} s; --no-learn leaves it out")
            session.learn_cost(SERVING, state_file(), screen.note, ctrl_c_ends_at_once())
        screen.notes(session.notes, session.warnings)
        if context_shift and (refusal := session.shift_refusal):
            screen.warn(refusal)
            context_shift = False
        with Model(session, sampling) as model:
            # A client may ask for the name that the model was started by.
            names = sorted(_names(alias)) or [path.stem, *([asked] if not Path(asked).exists() else [])]
            settings = app.ServeSettings(
                names[0],
                sampling,
                system,
                prompt_options.max_tokens,
                prompt_options.stops,
                queue,
                aliases=tuple(names),
                tags=tuple(sorted(_names(tags))),
                shifts=context_shift,
                slots=slots,
                metrics=metrics,
                page=ui,
                verbose=verbose,
            )
            scheme = "https" if certificate else "http"
            places = [_address(scheme, name, each.getsockname()) for name, each in zip(hosts, listening, strict=True)]
            place = " and ".join(places)
            for name, each in zip(hosts, listening, strict=True):
                run.listen(name, each)
            asking = f", for {counted(len(keys), 'key')}" if keys else ""
            told = f"{settings.name} answers at {place}, {session.texts} at a time{asking}; Ctrl-C ends it"
            said, warned = access.unless_full(screen.note), access.unless_full(screen.warn)
            warned(told)
            try:
                served = app.Server(model, settings).app(guarded, pages, said)
                run.serve(
                    served,
                    listening,
                    drain_s=drain,
                    said=said,
                    warned=warned,
                    busy=lambda: model.load[0],
                    refuse=partial(model.take_no_more, ENDING, ceil(min(drain + RESTART_S, MAX_WAIT_S))),
                    stop=partial(model.stop, ENDING),
                    certificate=certificate,
                )
            finally:
                session.keep_learned()


def _names(text: str) -> list[str]:
    """The names of a list with commas between them, each once."""
    return [*dict.fromkeys(each.strip() for each in text.split(",") if each.strip())]


def _address(scheme: str, host: str, name: str | tuple[str, int]) -> str:
    """An address as clients write it; `name`: of the socket that listens there."""
    if isinstance(name, str):
        return host
    if host in ("0.0.0.0", "::"):
        return f"{scheme}://127.0.0.1:{name[1]} and this machine's other addresses"
    return f"{scheme}://[{host}]:{name[1]}" if ":" in host else f"{scheme}://{host}:{name[1]}"
