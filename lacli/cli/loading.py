"""How `lacli run` shows answers, and the session that it opens for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lacli.cli import options
from lacli.cli.prompt_options import PromptOptions
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.settings import DecodeSettings, Detail

if TYPE_CHECKING:
    from lacli.auto.past_texts import TextStore
    from lacli.session.session import Session
    from lacli.terminal.screen import Screen


@dataclass(frozen=True)
class Output:
    """How the answer is shown: as it comes or as JSON, with numbers, with llama.cpp's log, with a line a step."""

    json: bool = False
    stats: Detail = ""
    verbose: bool = False
    explain: bool = False


@dataclass(frozen=True)
class Loading:
    """What sessions are made of.

    `model`: as MODEL is; None for the demo model. `replicas`: as Session takes it. `texts`, `known`: the file of kept
    texts and of what is known of models, None for none. `learns`: as `Session.use_known` takes it.
    """

    model: str | None
    model_settings: ModelSettings
    decode_settings: DecodeSettings
    sampling: SamplingSettings
    replicas: ReplicaSettings
    offline: bool = False
    texts: Path | None = None
    known: Path | None = None
    learns: bool = True

    @contextmanager
    def opened(
        self, question: PromptOptions, output: Output, screen: Screen, parallel: int | None = None
    ) -> Iterator[tuple[Session, TextStore | None]]:
        """Load the model with the kept texts: for a question, or for several of its kind, `parallel` at a time."""
        from lacli.auto.past_texts import open_texts
        from lacli.session.session import Session
        from lacli.terminal.interrupts import without_ctrl_c
        from lacli.terminal.screen import loading_model

        path = options.model_path(self.model, screen, self.offline)
        with loading_model(screen, verbose=output.verbose) as loading:
            store, notes = open_texts(path, self.decode_settings, self.texts)
            opened = Session(
                path,
                self.model_settings,
                self.decode_settings,
                self.sampling,
                template=None if question.raw else question.template,
                template_variables=question.variables,
                past_texts=store.texts if store else (),
                replicas=self.replicas,
                texts=parallel,
                verbose=output.verbose,
                loading=loading,
                reading=partial(screen.reading, shown=not output.verbose),
            )
        with opened as session:
            if self.known:
                session.use_known(self.known, learns=self.learns)
            session.notes[:0] = notes
            screen.notes(session.notes, session.warnings)
            try:
                yield session, store
            finally:
                with without_ctrl_c():
                    session.keep_learned()
