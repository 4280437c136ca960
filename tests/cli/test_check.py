"""`lacli check` as a person runs it, on the 7M model and on models that take back less than a tree."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lacli.batch import Ints
from lacli.check.compare import Comparison, Run
from lacli.llamacpp.context import LlamaContext
from tests.fakes.tiny_models import write_lfm2
from tests.program import Done, call


def check(*arguments: str) -> Done:
    return call("check", "-c", "256", "-t", "1", "-n", "24", "--each", "2", *arguments)


@pytest.mark.parametrize(
    "flags", [(), ("--temp", "0.8", "-s", "7"), ("--strict", "--temp", "0.8", "-n", "48")], ids=str
)
def test_a_quick_model_has_no_bug(flags: tuple[str, ...]) -> None:
    done = check("--json", *flags)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["bugs"], found["answers"], found["prompts"]) == (0, 8, 2)
    assert (found["context"], found["temperature"], found["seed"]) == (256, 0.8 if flags else 0, 7 if flags else None)
    if "--strict" in flags:
        assert found["strict"] and found["identical"] == 8
        assert (found["flash_attention"], found["cache_type_k"]) == ("on", "q8_0")


def test_a_mistake_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongRows(LlamaContext):
        """Reads each row's choice from the row before it."""

        def greedy(self) -> Ints:
            return np.roll(super().greedy(), 1)

    monkeypatch.setattr("lacli.engine.libraries.LlamaContext", WrongRows)
    done = check("--mode", "lookahead", "-W", "3", "-G", "3")
    assert done.code == 3
    assert "BUG: rounding does not explain" in done.out


@pytest.mark.parametrize(
    ("flags", "modes", "said"),
    [
        ((), ["jacobi", "lookup", "auto"], "drafts of at most 8 tokens"),
        (("-b", "6", "--mode", "auto"), ["auto"], "drafts of at most 4 tokens"),
        (("--mode", "lookahead"), [], "no lookahead, and drafts of at most 8 tokens"),
    ],
)
def test_a_model_that_goes_back_along_chains_is_checked_without_lookahead(
    flags: tuple[str, ...], modes: list[str], said: str, tmp_path: Path
) -> None:
    write_lfm2(tmp_path / "model.gguf")
    done = call("check", str(tmp_path / "model.gguf"), "--json", "--each", "2", "-n", "16", *flags)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [mode["mode"] for mode in found["modes"]] == modes
    assert (found["answers"], found["bugs"]) == (2 * len(modes), 0)
    assert f"{said}: a model with a recurrent state" in done.err


def test_ctrl_c_later_shows_what_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the second mode begins."""
    answered = Comparison.one

    def pressed(self: Comparison, *arguments: Any) -> Run:
        if arguments[2] in seen:
            signal.raise_signal(signal.SIGINT)
        seen.append(arguments[2])
        return answered(self, *arguments)

    seen: list[Any] = []
    monkeypatch.setattr(Comparison, "one", pressed)
    done = check("-q", "-n", "8", "--json")
    found = json.loads(done.out)
    assert done.code == 130 and found["stopped"] and found["summary"].startswith("Stopped early")
    assert [(mode["mode"], mode["answers"]) for mode in found["modes"]] == [("jacobi", 2)]
    nothing = check("-q", "-n", "8", "--mode", "lookup")
    assert (nothing.code, nothing.out) == (130, "")


def test_prompts_are_a_file_and_each_takes_some_of_every_class(tmp_path: Path) -> None:
    rows = [{"prompt": "Count.", "class": "a"}, {"prompt": "Count again."}, {"turns": ["Say yes.", "Why?"]}]
    mine = tmp_path / "mine.jsonl"
    mine.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = (*("check", "-q", "-c", "256", "-n", "4", "--mode", "lookup", "--json"), "--prompts", str(mine))
    assert json.loads(call(*flags).out)["prompts"] == 3
    assert json.loads(call(*flags, "--each", "1").out)["prompts"] == 2


def test_the_help_names_the_modes_checked_by_default() -> None:
    words = " ".join(check("-h").out.split())
    assert "lookahead, auto. [default: all]" in words
    assert "lookahead, auto. [default: auto]" in " ".join(call("run", "-h").out.split())
