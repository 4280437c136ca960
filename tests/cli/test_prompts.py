"""lacli run --prompts: each answer is as alone, no written line is lost, and a second run continues."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lacli import DecodeSettings, ModelSettings
from lacli.cli.prompts import Answers, PromptRow, answers_in
from lacli.errors import LacliError
from lacli.terminal.screen import Screen
from tests.loading import generate, load
from tests.program import Done, call

Row = dict[str, Any]

ROWS: list[Row] = [
    {"prompt": "What is a list?", "id": 7, "max_tokens": 9},
    {"prompt": "def f(x):", "raw": True},
    {"prompt": "What is a bytes object?", "system": "Answer briefly."},
    {"turns": ["What is a set?", "And a frozenset?"]},
    {"prompt": "What is a dict?", "max_tokens": 2},
]
PLAIN = ("--mode", "plain", "-n", "5")
ANSWERS = [
    {"index": 0, "id": "a", "prompt": "one", "text": "1"},
    {"index": 1, "prompt": "two", "text": "2"},
    {"index": 2, "prompt": ["three", "four"], "text": ["3", "4"]},
]
LINES = [f"{json.dumps(answer)}\n" for answer in ANSWERS]
ASKED = [PromptRow({name: row[name] for name in ("id", "prompt") if name in row}) for row in ANSWERS]


def run(folder: Path, *flags: str, rows: Sequence[Row] = ROWS, env: dict[str, str] | None = None) -> Done:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return call("run", "--prompts", str(prompts), *PLAIN, *flags, env=env)


def rows_of(text: str) -> list[Row]:
    return [json.loads(line) for line in text.splitlines()]


def texts_of(text: str) -> list[Any]:
    """Return the answers in the order of their rows, None for a row without an answer."""
    return [row.get("text") for row in sorted(rows_of(text), key=lambda row: int(row["index"]))]


def test_every_prompt_gets_the_answer_that_it_gets_alone(tmp_path: Path) -> None:
    done = run(tmp_path)
    rows = sorted(rows_of(done.out), key=lambda row: int(row["index"]))
    assert done.code == 0 and "lacli: 5 answers, " in done.err
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row.get("id") for row in rows] == [7, *[None] * 4]
    assert [row["prompt"] for row in rows] == [row.get("prompt") or row["turns"] for row in ROWS]
    with load(model_settings=ModelSettings(threads=1), decode_settings=DecodeSettings(mode="plain")) as session:
        alone = [
            generate(
                session,
                row["prompt"],
                max_tokens=row.get("max_tokens", 5),
                raw=row.get("raw", False),
                system=row.get("system", ""),
            )
            for row in ROWS
            if "prompt" in row
        ]
        first, second = ROWS[3]["turns"]
        answer = generate(session, first, max_tokens=5).text
        asked = session.prompts.question(second, history=[(first, answer)])
        behind = session.generate(asked, 5, session.prompts.template.stops)
        turns = [answer, "".join(piece.text for piece in behind.pieces)]
    assert [row["text"] for row in rows] == [*(each.text for each in alone[:3]), turns, alone[3].text]
    single = [row for row in rows if row["index"] != 3]
    assert [row["finish_reason"] for row in single] == [each.finish_reason for each in alone]
    assert [row["prompt_n"] for row in single] == [each.statistics.prompt_tokens for each in alone]
    assert [row["predicted_n"] for row in single] == [each.statistics.tokens for each in alone]


def test_draws_are_the_same_alone_and_with_others_and_each_row_has_a_seed_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # -np 4 turns flash attention on, so it is off in both runs. The seeds are fixed. With others a draw may be so close
    # to another token on some processor that other sequences change it.
    monkeypatch.setattr("lacli.engine.load.new_seed", count(11).__next__)
    drawn = ("--temp", "2", "-s", "7", "-fa", "off")
    assert texts_of(run(tmp_path, *drawn).out) == texts_of(run(tmp_path, *drawn, "-np", "1").out)
    rows = rows_of(run(tmp_path, "--temp", "2", rows=[{"prompt": "What is a list?"}] * 2).out)
    assert rows[0]["seed"] != rows[1]["seed"]
    alone = call("run", *PLAIN, "-q", "--temp", "2", "-s", str(rows[1]["seed"]), "-p", "What is a list?")
    assert alone.out.removesuffix("\n") == rows[1]["text"].removesuffix("\n")
    # A grammar alone does not sample.
    assert "seed" not in rows_of(run(tmp_path, "-j", '{"type": "integer"}', rows=[{"prompt": "A number."}]).out)[0]


@pytest.mark.parametrize("torn", ["", LINES[1][:3], LINES[1][:20], LINES[1].strip()])
def test_finished_lines_stay_and_a_line_that_was_cut_off_is_written_anew(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(LINES[2] + torn)
    with answers_in(str(path), ASKED, Screen()) as lines:
        assert lines.answered == {2}
        lines.add(ANSWERS[1])
        assert path.read_text() == LINES[2] + LINES[1]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of a file's size")
def test_a_line_without_room_is_an_error_and_no_answer_and_nothing_of_it_stays(tmp_path: Path) -> None:
    from resource import RLIMIT_FSIZE, getrlimit, setrlimit

    path, limits = tmp_path / "out.jsonl", getrlimit(RLIMIT_FSIZE)
    with (
        pytest.raises(LacliError, match=r"cannot write .*out.jsonl: File too large \(free disk space"),
        answers_in(str(path), ASKED, Screen()) as lines,
    ):
        lines.add(ANSWERS[0])
        setrlimit(RLIMIT_FSIZE, (len(LINES[0]) + 20, limits[1]))
        try:
            lines.add(ANSWERS[1])
        finally:
            setrlimit(RLIMIT_FSIZE, limits)
    assert lines.answered == {0} and path.read_text() == LINES[0]


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks that leave a file readable")
def test_a_file_that_another_run_writes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with answers_in(str(path), ASKED, Screen()) as lines:
        lines.add(ANSWERS[0])
        with (
            pytest.raises(LacliError, match=r"another run is writing .*out.jsonl"),
            answers_in(str(path), ASKED, Screen()),
        ):
            pass
    assert path.read_text() == LINES[0]


def test_a_second_run_asks_what_has_no_answer_yet(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = run(tmp_path, "-o", str(out))
    assert (done.code, done.out) == (0, "")
    whole = sorted(out.read_text().splitlines(keepends=True), key=lambda line: int(json.loads(line)["index"]))
    out.write_text(whole[3].replace('"text": [', '"text": ["kept", ') + whole[1] + whole[2][:30])
    done = run(tmp_path, "-o", str(out))
    assert done.code == 0 and f"2 of 5 answers in {out} already, by stdlib-7m.q8_0.gguf" in done.err
    wanted = {row["index"]: row["text"] for row in rows_of("".join(whole))}
    wanted[3] = ["kept", *wanted[3]]
    assert {row["index"]: row["text"] for row in rows_of(out.read_text())} == wanted
    before = out.read_text()
    assert run(tmp_path, "-o", str(out), "-m", "/no/model.gguf").code == 0
    assert out.read_text() == before


def test_a_prompt_that_cannot_be_decoded_has_an_error_and_the_others_go_on(tmp_path: Path) -> None:
    long = "two " * 600
    rows: list[Row] = [{"prompt": "one"}, {"prompt": long}, {"turns": ["three", long]}, {"prompt": "four"}]
    out = tmp_path / "out.jsonl"
    for already in ("", "2 of 4 answers in"):
        done = run(tmp_path, "-o", str(out), "-c", "512", rows=rows)
        assert done.code == 1 and already in done.err
        assert 'lacli: no answer to 2 of 4 prompts (see "error" in their lines)' in done.err
        found = [row for _, row in sorted({row["index"]: row for row in rows_of(out.read_text())}.items())]
        assert [row.keys() & {"text", "error"} for row in found] == [{"text"}, {"error"}, {"text", "error"}, {"text"}]
        assert all(row["error"].startswith("the prompt has 6") for row in found[1:3]), found
        # The answers before a turn without room are kept.
        assert len(found[2]["text"]) == 1 and found[2]["predicted_n"] > 0


def test_ctrl_c_leaves_the_answers_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Answers.add

    def interrupted(lines: Answers, row: Row) -> None:
        add(lines, row)
        if len(lines.answered) == 2:
            signal.raise_signal(signal.SIGINT)

    rows: list[Row] = [*({"prompt": word, "max_tokens": 3} for word in ("one", "two")), {"prompt": "three"}]
    out, env = tmp_path / "out.jsonl", {"XDG_CACHE_HOME": str(tmp_path), "LACLI_LEARN": "1"}
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "add", interrupted)
        # The last answer still runs when Ctrl-C comes.
        endless = ("-n", "-1", "--ignore-eos", "--mode", "auto")
        done = run(tmp_path, "-o", str(out), *endless, rows=rows, env=env)
    last = "lacli: stopped: 2 of 3 answers written (the same command with -o continues)"
    assert (done.code, done.err.splitlines()[-1]) == (130, last)
    assert run(tmp_path, "-o", str(out), rows=rows).code == 0
    assert texts_of(out.read_text()) == texts_of(run(tmp_path, rows=rows).out)


@pytest.mark.parametrize(
    ("place", "changed"), [(1, {"prompt": "three"}), (1, {"prompt": "two", "system": "Answer briefly."}), (3, {})]
)
def test_answers_to_other_prompts_are_not_taken_for_these(tmp_path: Path, place: int, changed: Row) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(LINES[0] + json.dumps({**ANSWERS[1], "index": place}) + "\n")
    asked = [ASKED[0], PromptRow(changed), ASKED[2]]
    with pytest.raises(LacliError, match=f"row {place} of .* answers another"), answers_in(str(path), asked, Screen()):
        pass


@pytest.mark.parametrize("text", ["def main():\n    pass\n", "[]\n", '{"index": "x"}\n{', "dear diary"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    refused = pytest.raises(LacliError, match="has a line that is not an answer .give another name")
    with refused, answers_in(str(path), ASKED, Screen()):
        pass
    assert path.read_text() == text


def test_an_error_is_no_answer_and_of_two_lines_the_later_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    error = json.dumps({"index": 0, "id": "a", "prompt": "one", "error": "too long"})
    answers = [json.dumps({**row, "model": "a.gguf"}) + "\n" for row in ANSWERS[1:]]
    path.write_text(f"{error}\n{''.join(answers)}")
    with answers_in(str(path), ASKED, Screen()) as lines:
        assert lines.answered == {1, 2} and lines.models == {"a.gguf"}
        lines.add(ANSWERS[0])
    path.write_text("".join(LINES) + error + "\n")
    with answers_in(str(path), ASKED, Screen()) as lines:
        assert lines.answered == {1, 2}
