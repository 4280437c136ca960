"""The command `lacli serve`: serves a model to programs, by OpenAI's and Anthropic's protocols."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lacli.cli import options
from lacli.cli.options import Loading, PromptOptions, group, parameters_of, with_groups
from lacli.errors import LacliError, UsageError
from lacli.settings import PARALLEL, check_options, option
from lacli.text.files import read_text


@dataclass(frozen=True)
class ServerOptions:
    """Options of the server: its address, keys and certificate, and the routes that it answers."""

    host: str = option("127.0.0.1", "Address, or unix:PATH.")
    port: int = option(8080, "Port. 0: a free one.", least=0, most=65535)
    parallel: int = option(0, "Decode this many answers at a time.", "-np", "--parallel", least=0, shown=str(PARALLEL))
    drain: float = option(10.0, "Seconds to finish answers when the server stops.", least=0)
    alias: str = option("", "Names of the model in replies, separated by commas.", "-a", "--alias", shown="the file's")
    api_key: tuple[str, ...] = option((), "Accept only requests with this key. Repeatable.", repeated=True)
    api_key_file: str = option("", "Read keys from a file, one a line.", metavar="FILE")
    no_auth: bool = option(False, "Accept requests without a key.")
    ssl_cert_file: str = option("", "Certificate in PEM, for https.", metavar="FILE")
    ssl_key_file: str = option("", "Private key of the certificate.", metavar="FILE")
    tags: str = option("", "Tags of the model, separated by commas.")
    slots: bool = option(True, "Answer GET /slots.")
    slot_save_path: str = option("", "Folder for saved slots (POST /slots/ID).", metavar="FOLDER")
    metrics: bool = option(True, "Answer GET /metrics.")
    ui: bool = option(True, "Show the page at /.")
    cors_origins: str = option("", "Web pages that may send requests: https://a.example, localhost or *.")
    measure: bool = option(True, "Measure the step costs of a new model once.")

    def __post_init__(self) -> None:
        check_options(self)
        if bool(self.ssl_cert_file) != bool(self.ssl_key_file):
            raise UsageError("https needs a certificate and its key", "give --ssl-cert-file and --ssl-key-file")

    @property
    def keys(self) -> list[str]:
        """The keys of --api-key and --api-key-file. Lines of the file that begin with # are comments.

        Raises UsageError if --api-key is empty (perhaps an unset variable), and LacliError if the file has no key.
        """
        keys, path = [key.strip() for text in self.api_key for key in text.split(",")], self.api_key_file
        if not all(keys):
            raise UsageError("--api-key is empty", "give a key, or leave --api-key out")
        lines = [line.strip() for line in read_text(path).splitlines() if not line.startswith("#")] if path else []
        if path and not any(lines):
            raise LacliError(f"{path} has no key", "give a file with one key on each line")
        return [*keys, *filter(None, lines)]


@with_groups(
    model=options.model_of,
    own=group(ServerOptions, *parameters_of(ServerOptions)),
    question=options.prompt_group,
    loading=options.loading_group(Loading),
)
def serve(
    model: str | None, *, own: ServerOptions, question: PromptOptions, loading: Loading, quiet: options.Quiet = False
) -> None:
    """Answer requests of OpenAI's and Anthropic's protocols, several at a time.

    Settings in a request override these flags.
    """
    try:
        from lacli.serve import app, run
    except ImportError as error:
        raise UsageError(f"lacli serve needs {error.name}", "in lacli's folder: pip install '.[serve]'") from error
    from lacli.model import Model
    from lacli.terminal.screen import Screen

    screen = Screen(quiet=quiet)
    hosts = [each.strip("[]") for each in _names(own.host)] or [ServerOptions.host]
    access = run.access_for(hosts, own.keys, _names(own.cors_origins), no_auth=own.no_auth)
    socket_file = own.host.removeprefix(run.UNIX) if own.host.startswith(run.UNIX) else None
    with ExitStack() as stack:
        listening = [] if socket_file else [*map(stack.enter_context, run.open_sockets(hosts, own.port))]
        slots = own.parallel or (1 if loading.decode_settings.strict else PARALLEL)
        engine = stack.enter_context(
            loading.opened(model, question, screen, slots, often_alone=not own.parallel, measure=own.measure)
        )
        answering = stack.enter_context(Model(engine, loading.sampling))
        # A client may use the name that MODEL had on the command line.
        asked = [] if model is None or Path(model).exists() else [model]
        names = sorted(_names(own.alias)) or [engine.model.path.stem, *asked]
        shown_at = {"/slots": own.slots, "/metrics": own.metrics, "/": own.ui}
        settings = app.ServeSettings(
            tuple(names),
            loading.sampling,
            question.system,
            question.max_tokens,
            question.stops,
            tags=tuple(sorted(_names(own.tags))),
            slot_save_path=own.slot_save_path,
            off=[path for path, shown in shown_at.items() if not shown],
            verbose=loading.verbose,
        )
        scheme = "https" if own.ssl_cert_file else "http"
        places = [
            f"{scheme}://{f'[{host}]' if ':' in host else host}:{each.getsockname()[1]}"
            for host, each in zip(hosts, listening, strict=False)
        ]
        told = f"{names[0]} answers at {' and '.join(places or hosts)}, {engine.slots} at a time; Ctrl-C ends it"
        run.log_from(logging.WARNING if quiet else logging.INFO)
        server = run.Listener(
            app.Server(answering, settings).app(access),
            drain_s=own.drain,
            begun=lambda: screen.warn(told),
            uds=socket_file,
            ssl_certfile=own.ssl_cert_file or None,
            ssl_keyfile=own.ssl_key_file or None,
        )
        run.serve(server, listening or None)


def _names(text: str) -> list[str]:
    """Return the comma-separated names in `text`, without repetitions."""
    return [*dict.fromkeys(each.strip() for each in text.split(",") if each.strip())]
