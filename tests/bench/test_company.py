"""Several texts at a time, on the demo model: what is asked, that company changes no text, and what does not go."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lacli.bench.rounds import Rounds, Trial
from tests.fakes.tiny_models import write_mamba
from tests.program import Done, call

TOLD = ("What is", "Show me", "A list of", "Explain", "Write", "Name")


pytestmark = pytest.mark.usefixtures("known")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """A file of six short prompts of two classes."""
    rows = [{"prompt": f"{words} os.path", "class": "even" if at % 2 else "odd"} for at, words in enumerate(TOLD)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "mine.jsonl")


def together(prompts: str, *arguments: str) -> Done:
    return call("bench", "--prompts", prompts, "-n", "12", "-r", "1", "--full", *arguments)


def rows(done: Done) -> list[dict[str, Any]]:
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert isinstance(found, list)
    return found


def test_each_mode_answers_the_same_prompts_in_groups_of_each_number(prompts: str) -> None:
    found = rows(together(prompts, "--parallel", "3", "--json"))
    whole = [row for row in found if row["class"] == "all"]
    assert [(row["mode"], row["parallel"], row["prompts"]) for row in whole] == [
        (mode, number, 6) for mode in ("plain", "lookup", "auto") for number in (1, 3)
    ]
    alone, three = whole[:2]
    assert alone["steps"] == alone["tokens"] > 3 * (three["steps"] - 12) and alone["tokens_per_step"] == 1
    assert alone["rows_per_step"] == 1 and 2 < three["rows_per_step"] <= 3
    assert (alone["total_speedup"], alone["text_slowdown"]) == (1.0, 1.0)
    assert {row["speedup"] for row in found if row["mode"] == "plain"} == {1.0}
    assert {row["setting"] for row in whole} == {"plain", "lookup", "auto"}
    for row in whole:
        assert row["identical_n"] == row["prompts"] or row["verdict"] == "rounding"
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    assert not {name for row in found for name in row if f"`{name}`" not in page}


def test_a_step_of_several_texts_wants_a_core_once(prompts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[Trial] = []

    def noted(rounds: Rounds, *_: object) -> float:
        trials.extend(trial for found in rounds.trials.values() for trial in found)
        return 1.0

    monkeypatch.setattr("lacli.bench.run._core_share", noted)
    together(prompts, "--parallel", "3", "--modes", "plain")
    assert trials and all(each.core_wanted_s(2) <= 2 * (each.seconds + each.prompt_s) for each in trials)


def test_people_get_a_summary_and_a_table_where_they_ask(prompts: str) -> None:
    shown = together(prompts, "--parallel", "1,3", "--modes", "lookup").out
    assert "\n3 at a time:  plain " in shown and "tokens/s" in shown and "slower" not in shown
    detailed = together(prompts, "--parallel", "1,3", "--modes", "lookup", "--details").out
    assert "\nodd    1, plain" in detailed and "x alone" in detailed
    assert "| 3, lookup " in together(prompts, "--parallel", "1,3", "--modes", "lookup", "-o", "md").out


def test_the_cells_of_c_are_divided_and_classes_of_too_few_prompts_are_named(prompts: str) -> None:
    file = Path(prompts)
    file.write_text(file.read_text() + json.dumps({"prompt": "word " * 300, "class": "odd"}) + "\n")
    plain = ("--parallel", "3", "--modes", "plain", "--json")
    assert [row["n_ctx"] for row in rows(together(prompts, *plain, "-c", "512"))] == [512] * 6
    few = together(prompts, "--parallel", "4", "--modes", "plain", "--json")
    assert {row["class"] for row in rows(few)} == {"odd"} and "left out: even: 3 of its prompts" in few.err
    refused = together(prompts, "--parallel", "30", "-c", "300")
    assert refused.code == 1 and "30 prompts of a class, of at most 1 token each" in refused.err


def test_a_short_time_makes_answers_shorter_where_their_length_is_not_named(
    prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.bench.plan.LADDER", ((1, 1, 16),))
    for flags, tokens in (((), "16"), (("-n", "20"), "20")):
        done = call("bench", "--prompts", prompts, "--parallel", "3", "--modes", "plain", "--seconds", "6", *flags)
        assert done.code == 0 and f"answers of up to {tokens} tokens" in done.err, done.err


def test_a_mode_is_left_out_where_its_texts_have_too_few_sequence_ids(prompts: str) -> None:
    lookahead = ("--modes", "lookahead", "-W", "60", "-N", "2", "-G", "60", "-n", "4")
    done = together(prompts, "--parallel", "3", *lookahead, "--json")
    assert {(row["mode"], row["parallel"]) for row in rows(done)} == {("plain", 1), ("plain", 3), ("lookahead", 1)}
    assert "left out: lookahead W=60 N=2 G=60: 3 texts at a time with 121 sequences" in done.err


def test_a_recurrent_model_is_measured_plainly(tmp_path: Path, prompts: str) -> None:
    write_mamba(tmp_path / "mamba.gguf")
    done = call("bench", str(tmp_path / "mamba.gguf"), "--prompts", prompts, "-n", "4", "-r", "1", "--full",
                "--parallel", "1,3", "--json")  # fmt: skip
    assert {row["mode"] for row in rows(done)} == {"plain"} and "do not go back together" in done.err


def test_ctrl_c_prints_what_was_finished(prompts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = Rounds.__iter__

    def pressed(rounds: Rounds) -> Iterator[None]:
        for number, _ in enumerate(go_on(rounds), start=1):
            yield
            if number == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Rounds, "__iter__", pressed)
    done = together(prompts, "--parallel", "3")
    assert done.code == 130 and "stopped after 15 of 36 answers" in done.err
    assert "3 at a time:  plain " in done.out and "not judged" not in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1-",), "--parallel '1-' is neither a number nor a range"),
        (("0,1",), "--parallel is 0"),
        (("2", "--check"), "--check"),
        (("2", "--plot", "a.svg"), "--plot"),
        (("2", "--strict"), "--strict"),
        (("2", "--replicas", "2"), "--replicas"),
        (("2", "--temp", "1"), "sampling"),
        (("2", "-W", "1,2"), "several values of -W"),
        (("2", "-N", "3,5"), "several values of -W, -N or -G"),
    ],
)
def test_what_does_not_go_with_several_texts_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = call("bench", "--parallel", *arguments)
    assert (done.code, done.out) == (2, "") and words in done.err and len(done.err.splitlines()) == 1
