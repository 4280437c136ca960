"""`lacli chat`: a session, a conversation, a reader and a screen put together, and taken apart again.

Flags and names of models are read before; the loop is `loop.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from lacli.auto.store import store_for
from lacli.chat.actions import Actions
from lacli.chat.adjust import (
    OTHERS,
    Adjusted,
    choices,
    value_of,
    with_values,
)
from lacli.chat.commands import argument_of, names
from lacli.chat.completion import Vocabulary
from lacli.chat.conversation import Conversation
from lacli.chat.keys import ALL, KEYS
from lacli.chat.lines import Editing
from lacli.chat.loop import Loop
from lacli.chat.reader import open_lines
from lacli.chat.saved import SavedChat
from lacli.chat.talk import Chat
from lacli.chat.transcript import Transcript
from lacli.cost.known import tell
from lacli.cost.store import CostStore
from lacli.errors import LacliError
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.session.session import Session
from lacli.settings import MODES, Switch
from lacli.terminal.ending import loading_model
from lacli.terminal.screen import Screen
from lacli.text.files import is_terminal
from lacli.text.format import counted


@dataclass(frozen=True)
class ChatPlan:
    """How a chat begins and what it keeps.

    model: as the user typed it. variables: what the template gets beside a conversation. saved: a chat to go on with,
    whose settings hold but for those `given` on the command line, by their fields' names. first: a message to begin
    with. log: a file to add to. history: the file of typed lines, store: the folder of kept texts, costs: that of
    measured costs, None for none. editor: the command line of the user's editor, "" for one that is found. commands:
    lines of a pipe may be commands.
    """

    model: str = ""
    system: str = ""
    template: str = ""
    adjusted: Adjusted = field(default_factory=Adjusted)
    variables: Mapping[str, object] = field(default_factory=dict)
    saved: SavedChat | None = None
    given: frozenset[str] = frozenset()
    first: str = ""
    log: str | None = None
    history: Path | None = None
    store: Path | None = None
    costs: Path | None = None
    editor: str = ""
    color: Switch = "auto"
    status: bool = True
    stats: bool = False
    explain: bool = False
    context_shift: bool = False
    commands: bool = False
    verbose: bool = False
    replicas: ReplicaSettings | None = None


def chat(path: Path, plan: ChatPlan, loading: ModelSettings, screen: Screen) -> int:
    """Talk until the user ends it; the exit code. Raises Interrupted for Ctrl-C at the prompt."""
    plan = _going_on(plan.saved, plan) if plan.saved else plan
    with ExitStack() as stack:
        transcript = stack.enter_context(Transcript(plan.log, _now)) if plan.log else None
        with loading_model(screen):
            store, notes = store_for(path, plan.adjusted.decoding, plan.store, changing=True)
            opened = Session(
                path,
                loading,
                plan.adjusted.decoding,
                _with_seed(plan),
                template=plan.template,
                template_variables=plan.variables,
                past_texts=store.texts if store else (),
                replicas=plan.replicas,
                verbose=plan.verbose,
            )
        session = stack.enter_context(opened)
        # Also where another mode begins: /mode may change it.
        notes += tell(session, CostStore(plan.costs)) if plan.costs else []
        messages = plan.saved.messages if plan.saved else ()
        talk = Chat(
            session,
            plan.adjusted,
            Conversation(plan.system, messages),
            context_shift=plan.context_shift,
        )
        talk.store = store
        interactive = is_terminal(sys.stdin)
        actions = Actions(talk, plan.model, plan.template, transcript)
        loop = Loop(
            talk,
            actions,
            screen,
            transcript=transcript,
            interactive=interactive,
            status=plan.status,
            stats=plan.stats,
            explain=plan.explain,
            commands=interactive or plan.commands,
        )
        vocabulary = Vocabulary({name: argument_of(name) for name in names()}, KEYS, choices, MODES)
        editing = Editing(vocabulary, screen.note, plan.history, loop.status, plan.editor, plan.color)
        lines = stack.enter_context(open_lines(editing))
        others = actions.differences(plan.saved) if plan.saved else []
        screen.notes([*notes, *session.notes, *talk.notes, *others], session.warnings)
        if interactive:
            known = f", {counted(len(messages), 'message')} loaded" if messages else ""
            screen.note(f"{session.model.description}, context {talk.cells} tokens{known}; /help for help, Ctrl-D ends")
        if transcript and (
            trouble := transcript.begin(plan.model, plan.template, plan.system, plan.adjusted, messages)
        ):
            screen.note(trouble)
        loop.run(lines, plan.first)
        # Somebody who types has seen what went wrong; a script has not.
        return LacliError.exit_code if loop.failed and not interactive else 0


def _with_seed(plan: ChatPlan) -> SamplingSettings:
    """How the session samples: with the saved chat's seed where the user has set none."""
    sampling = plan.adjusted.sampling
    return replace(sampling, seed=plan.saved.seed) if plan.saved and sampling.seed < 0 else sampling


def _now() -> datetime:
    return datetime.now().astimezone()


def _going_on(saved: SavedChat, plan: ChatPlan) -> ChatPlan:
    """The plan with what was saved, where the flags do not say otherwise."""
    given = {key.field: value_of(plan.adjusted, key) for key in ALL.values() if key.field in plan.given}
    for form, other in OTHERS.items():
        if given.get(form):
            given.setdefault(other, "")
    adjusted = with_values(saved.adjusted, given)
    strict = (plan.adjusted if "strict" in plan.given else saved.adjusted).decoding.strict
    return replace(
        plan,
        system=plan.system if plan.given & {"system", "system_file"} else saved.system,
        template=plan.template if "chat_template" in plan.given else saved.template,
        adjusted=replace(adjusted, decoding=replace(adjusted.decoding, strict=strict)),
    )
