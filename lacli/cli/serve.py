"""`lacli serve`: a model behind OpenAI's protocol, for programs that speak it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from lacli.cli import options
from lacli.cli.chat import ANSWERING
from lacli.cli.environment import setting
from lacli.cli.groups import with_groups
from lacli.cli.options import PromptOptions
from lacli.errors import UsageError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.settings import DecodeSettings

SERVER = "Server"

Host = Annotated[
    str,
    setting("--host", metavar="ADDRESS", rich_help_panel=SERVER,
            help="Address to listen on, or unix:PATH for a socket file."),
]  # fmt: skip
Port = Annotated[int, setting("--port", min=0, max=65535, rich_help_panel=SERVER, help="Port. 0 takes a free one.")]
Parallel = Annotated[
    int,
    setting("-np", "--parallel", min=0, rich_help_panel=SERVER, show_default="4, or 1 with --strict",
            help="Answers decoded at a time. They share the context of -c."),
]  # fmt: skip
Queue = Annotated[
    int, setting("--queue", min=0, rich_help_panel=SERVER, help="Requests that may wait; more are refused with 503.")
]
Drain = Annotated[
    float,
    setting("--drain", min=0, rich_help_panel=SERVER, help="Seconds that running answers have when the server ends."),
]
Alias = Annotated[
    str, setting("-a", "--alias", show_default="the file's", rich_help_panel=SERVER, help="Name that clients see.")
]
ApiKey = Annotated[
    list[str] | None,
    setting("--api-key", metavar="KEY", rich_help_panel=SERVER, show_default=False,
            help="Ask for this key. Repeatable: each is an owner of its texts."),
]  # fmt: skip
ApiKeyFile = Annotated[
    str | None,
    setting("--api-key-file", metavar="FILE", rich_help_panel=SERVER, show_default=False, help="Keys, one a line."),
]
NoAuth = Annotated[bool, setting("--no-auth", rich_help_panel=SERVER, help="Let everybody in who reaches the address.")]
MaxBody = Annotated[
    int, setting("--max-body", min=1, metavar="MIB", rich_help_panel=SERVER, help="MiB of a request at most.")
]


@with_groups(asked=options.model_name, **ANSWERING)
def serve(
    asked: str | None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    parallel: Parallel = 0,
    queue: Queue = 32,
    drain: Drain = 10,
    alias: Alias = "",
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    no_auth: NoAuth = False,
    max_body: MaxBody = 8,
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

    Requests that say how tokens are drawn win over these flags.
    """
    try:
        from lacli.serve import app, guard, run
    except ImportError as error:
        raise UsageError(f"lacli serve needs {error.name}", "pip install 'lacli[serve]'") from error
    from lacli import PARALLEL
    from lacli.api.model import Model
    from lacli.session.session import Session
    from lacli.terminal.screen import Screen, loading_model
    from lacli.text.records import state_file

    screen = Screen(color=color, quiet=quiet)
    keys = [*(api_key or ()), *(guard.read_keys(api_key_file) if api_key_file else ())]
    guarded = guard.guard_settings(host, keys, no_auth=no_auth, body=max_body * 2**20)
    listening = run.open_socket(host, port)
    path = options.model_path(asked, screen, offline)
    with listening:
        with loading_model(screen, verbose=verbose) as loading:
            session = Session(
                path,
                model_settings,
                decode_settings,
                sampling,
                template=prompt_options.template,
                template_variables=prompt_options.variables,
                replicas=copies,
                texts=parallel or (1 if decode_settings.strict else PARALLEL),
                verbose=verbose,
                loading=loading,
            )
        session.use_known(state_file(), learns=learn)
        screen.notes(session.notes, session.warnings)
        with Model(session, sampling) as model:
            settings = app.ServeSettings(
                alias or path.stem, sampling, prompt_options.max_tokens, prompt_options.stops, queue
            )
            where = listening.getsockname()
            place = host if host.startswith("unix:") else f"http://{host}:{where[1]}"
            screen.say(f"lacli: {path.name} answers at {place}, {session.texts} at a time; Ctrl-C ends it")
            try:
                run.serve(app.Server(model, settings).app(guarded), listening, drain_s=drain, said=partial(screen.note))
            finally:
                session.keep_learned()
