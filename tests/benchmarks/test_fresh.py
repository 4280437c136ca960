"""The benchmark of fresh processes with fake contenders: their prompts and turns, short answers, and the tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fresh
from benchmarks.fresh import Ask, Plan, Prompt, asking_lacli, flags_of
from benchmarks.fresh_table import Answer, Row, tables
from lacli.errors import LacliError

PROMPTS = {kind: [Prompt(kind, place, "", (1, 2)) for place in range(6)] for kind in ("edit", "maths", "question")}


def row(contender: str, prompt: str, seconds: float, *, tokens: int = 64, text: str = "abc", rows: float = 2.0) -> Row:
    kind, place = prompt.split()
    answer = Answer(tokens, seconds, text, tokens // 2, None if contender == "llama-lookup" else rows)
    return Row("m.gguf", 64, kind, int(place), contender, answer)


def cells(text: str, number: int = 0) -> dict[str, dict[str, str]]:
    """Return the cells of table number `number` in a text, by row and column."""
    table = [part for part in text.split("\n\n") if part.startswith("|")][number]
    header, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


ROWS = [
    *(row("auto", prompt, 0.5, text="ab", rows=3.0) for prompt in ("edit 0", "edit 1", "maths 0")),
    *(row("plain", prompt, 1.0) for prompt in ("edit 0", "edit 1", "maths 0")),
    row("llama-lookup", "edit 0", 0.25, text="abcde"),
    row("llama-lookup", "edit 1", 1.0, text="ax"),
    row("llama-lookup", "maths 1", 1.0),
]


def test_tables_have_times_as_fast_as_plain_then_tokens_and_rows_a_step_and_texts_that_are_plains() -> None:
    found = cells(tables(ROWS))
    assert [*found] == ["edit", "maths", "all"] and [*found["all"]] == ["", "plain", "auto", "llama-lookup"]
    assert found["all"]["plain"] == "64.0/s"
    assert (found["edit"]["auto"], found["all"]["auto"]) == ("2.00", "2.00 (2.00-2.00)")
    assert (found["edit"]["llama-lookup"], found["maths"]["llama-lookup"]) == ("2.00", ""), "the mean of 4 and 1"

    found = cells(tables(ROWS), 1)
    assert (found["all"]["auto"], found["edit"]["llama-lookup"]) == ("2.00 (3.0)", "2.00")
    assert found["plain's texts"]["auto"] == "3 of 3", "shorter texts are equal up to their ends"
    assert found["plain's texts"]["llama-lookup"] == "1 of 2", "a longer text and a different one"


def test_each_prompt_is_asked_of_all_and_another_begins_each_time(capfd: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, str, int]] = []

    def asking(name: str) -> Ask:
        def ask(prompt: Prompt, limit: int) -> Answer:
            asked.append((name, prompt.kind, prompt.place))
            if name == "fails":
                raise LacliError("it broke")
            return Answer(64, 0.5, "abc", 32)

        return ask

    contenders = {name: asking(name) for name in ("plain", "auto", "fails", "slow")}
    rows = list(Plan("m.gguf", 64, 3, contenders, frozenset({"slow"}), math.inf).rows(PROMPTS))
    assert Counter(name for name, *_ in asked) == {"plain": 9, "auto": 9, "fails": 9, "slow": 3}
    assert [place for name, _, place in asked if name == "slow"] == [0, 0, 0], "first prompts only"
    begins = [name for (name, *prompt), (_, *before) in zip(asked[1:], asked, strict=False) if prompt != before]
    assert Counter([asked[0][0], *begins]) == {"plain": 3, "auto": 3, "fails": 3}
    assert {row.contender for row in rows} == {"plain", "auto", "slow"}
    assert "maths 0, fails: left out: it broke" in capfd.readouterr().err


def test_lacli_gets_the_rendered_prompt_and_a_copy_of_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seen").write_text(".")

    def lacli(arguments: Sequence[str], cache: Path) -> dict[str, Any]:
        seen = cache / "seen"
        text = seen.read_text()
        seen.write_text(text + ".")
        assert "--raw" in arguments and "--prompt=<user>Hi" in arguments and arguments[3:5] == ["--mode", "auto"]
        return {"text": text, "prompt_n": 2, "predicted_n": 64, "predicted_ms": 200.0, "steps": 32, "rows_mean": 1.5}

    monkeypatch.setattr(fresh, "lacli", lacli)
    ask = asking_lacli(Path("m.gguf"), flags_of("auto"), tmp_path)
    for _ in range(2):
        assert ask(Prompt("edit", 0, "<user>Hi", (1, 2)), 64) == Answer(64, 0.2, ".", 32, 1.5)
    with pytest.raises(LacliError, match="reads 2 tokens in a prompt of 3"):
        ask(Prompt("edit", 0, "<user>Hi", (1, 2, 3)), 64)
