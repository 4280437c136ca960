"""`lacli run`: one question, one answer streamed to the screen, and what it cost if asked.

Takes settings and text; flags and files are read before, terminals are `ui.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lacli.auto.model_cost import known_cost
from lacli.auto.past_texts import open_texts
from lacli.errors import Interrupted
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings, ReplicaSettings
from lacli.session.generation import Generation
from lacli.session.report import Explanation, against_plain, as_json, as_lines, watching
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.terminal.interrupts import hidden_keys, without_ctrl_c
from lacli.terminal.screen import Screen, loading_model
from lacli.text.reasoning import begun_reasoning, mark_reasoning

LAST = 16
"""Tokens at the end of a prompt that say whether a thought begins there."""


@dataclass(frozen=True)
class Question:
    """What is asked and how the answer is to end.

    limit: tokens, -1 for none. template: as --chat-template takes it. variables: as Session takes them.
    """

    text: str
    system: str = ""
    raw: bool = False
    limit: int = -1
    stops: tuple[str, ...] = ()
    template: str = ""
    variables: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """How the answer is shown: as it comes or as JSON, with numbers, with llama.cpp's log, with a line a step."""

    json: bool = False
    stats: bool = False
    verbose: bool = False
    explain: bool = False


def ask(
    path: Path,
    question: Question,
    model_settings: ModelSettings,
    decode_settings: DecodeSettings,
    sampling: SamplingSettings,
    output: Output,
    screen: Screen,
    texts: Path | None = None,
    costs: Path | None = None,
    replicas: ReplicaSettings | None = None,
) -> None:
    """Answer one question. Raises Interrupted after Ctrl-C, when the text or the JSON object so far is out.

    texts, costs: the file of kept texts and of measured costs, None for none. replicas: as Session takes it.
    """
    with loading_model(screen):
        store, notes = open_texts(path, decode_settings, texts)
        opened = Session(
            path,
            model_settings,
            decode_settings,
            sampling,
            template=None if question.raw else question.template,
            template_variables=question.variables,
            kept=store.texts if store else (),
            replicas=replicas,
            verbose=output.verbose,
        )
    with opened as session:
        cost = known_cost(costs, path, session.model_settings) if costs and session.settings.mode == "auto" else None
        if cost:
            session.use_cost(cost)
        session.notes[:0] = notes
        screen.notes(session.notes, session.warnings)
        prompt = session.prompt(question.text, question.system, raw=question.raw)
        generation = _answer(session, prompt, question, output, screen)
        if store and (trouble := store.add([*prompt, *generation.answer().tokens])):
            session.notes.append(trouble)
            screen.note(trouble)
        _conclude(session, generation, question, output, screen)


def _answer(session: Session, prompt: list[int], question: Question, output: Output, screen: Screen) -> Generation:
    """The answer, which is shown as it comes, and its steps where they are explained."""
    wait = screen.shared and not output.json
    explanation = Explanation(screen.row, planned=session.settings.mode == "auto", wait=wait)
    tells = not wait and len(session.copies.names) > 1
    generation = session.generate(
        prompt,
        question.limit,
        (*question.stops, *session.turn_ends),
        watch=watching(
            explanation if output.explain else None, partial(_tell_losses, session, screen) if tells else None
        ),
    )
    stopped = False
    try:
        _stream(generation, output, screen, begun=begun_reasoning(session.text(prompt[-LAST:], special=True)))
    except KeyboardInterrupt:
        stopped = True
    finally:
        screen.end_line()
        explanation.end()
        _tell_losses(session, screen)
    if stopped:
        if output.json:
            with without_ctrl_c():
                _print_object(session, generation, screen)
        raise Interrupted("")
    return generation


def _tell_losses(session: Session, screen: Screen) -> None:
    """Say which copies have failed: it is about the answer, and so said also where notes are not wanted."""
    for loss in session.losses():
        screen.say(f"lacli: {loss}")
        session.notes.append(loss)


def _stream(generation: Generation, output: Output, screen: Screen, *, begun: str) -> None:
    if output.json:
        for _ in generation:
            pass
    else:
        # Left open, an error's traceback would keep it, and with it a decoder, longer than the model.
        with closing(mark_reasoning(generation, begun)) as pieces, hidden_keys():
            screen.write(pieces)


def _print_object(session: Session, generation: Generation, screen: Screen) -> None:
    """Print the answer so far as one JSON object."""
    screen.line(json.dumps(as_json(session, generation.answer()), ensure_ascii=False))


def _conclude(session: Session, generation: Generation, question: Question, output: Output, screen: Screen) -> None:
    answer = generation.answer()
    if not output.json:
        screen.legend(answer.statistics.accepted_from)
    if answer.finish_reason == "length" and answer.statistics.tokens != question.limit:
        screen.note(
            f"the context of {session.engine.cells} tokens is full and the answer ends here; -c makes it larger"
        )
    if output.json:
        _print_object(session, generation, screen)
    if output.stats:
        screen.report(as_lines(session, answer))
        if session.settings.mode != "plain" and answer.tokens:
            sentence = against_plain(answer, session.plain_tokens_per_second(), session.settings.mode)
            if sentence:
                screen.report(sentence)
