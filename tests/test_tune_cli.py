"""`lacli tune` and --preset tuned as a person meets them, on the demo model with a clock of the test's."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from time import time
from typing import Any

import pytest

from lacli.cost.known import machine_key
from lacli.cost.measure import measure
from lacli.resolve import find_model
from lacli.settings import DecodeSettings, ModelSettings
from lacli.tune.search import Search
from lacli.tune.store import Tuned, TunedStore
from tests.program import Done, call, start
from tests.tiny_models import write_lfm2, write_mamba

READERS = (
    *("lacli.bench.rounds", "lacli.bench.warm_up", "lacli.decode", "lacli.cache", "lacli.tune.product"),
    *("lacli.tune.search", "lacli.tune.confirm"),
)
SECONDS = "5"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Folders of the test's own."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "def area(width, height):\n    return width * height\n" * times} for times in (1, 2, 3)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small field of candidates."""
    fields = {"WINDOWS": (0, 1), "NGRAMS": (3,), "GUESSES": (1, 2), "DRAFTS": (2, 4), "MATCHES": (2,)}
    for name, values in fields.items():
        monkeypatch.setattr(f"lacli.tune.candidates.{name}", values)


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock that ticks whenever it is read, so that what a step costs does not depend on the machine."""
    ticks = count()

    def tick() -> float:
        return next(ticks) / 1000

    monkeypatch.setattr("lacli.cost.known.measure", partial(measure, clock=tick))
    for module in READERS:
        monkeypatch.setattr(f"{module}.perf_counter", tick, raising=False)
    return tick


def tuned(home: dict[str, str], *arguments: str) -> Done:
    finished = call("tune", "--seconds", SECONDS, "-n", "8", *arguments, env=home)
    assert finished.code == 0, finished.err
    return finished


def found(home: dict[str, str], *arguments: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(tuned(home, "--json", *arguments).out)
    return parsed


def kept(home: dict[str, str]) -> list[Path]:
    return sorted((Path(home["XDG_CONFIG_HOME"]) / "lacli" / "tuned").glob("*"))


def answered(home: dict[str, str], *arguments: str) -> dict[str, Any]:
    done = call("run", "-p", "hi", "-n", "4", "--json", *arguments, env=home)
    assert done.code == 0, done.err
    parsed: dict[str, Any] = json.loads(done.out)
    return parsed


def test_what_is_found_is_shown_remembered_and_used(home: dict[str, str], prompts: str) -> None:
    finished = tuned(home, "--prompts", prompts)
    for part in (
        "model     llama 7.3M Q8_0",
        "prompts   3 prompts of",
        "The search: ",
        "The last round: ",
        "| plain ",
    ):
        assert part in finished.out
    assert "about 5 seconds" in finished.err and "comparing" in finished.err
    (path,) = kept(home)
    mode = json.loads(path.read_text())["tuned"]["settings"]["mode"]
    preset, by_hand = finished.out.splitlines()[-2:]
    typed = preset.split()
    assert typed[:4] == ["lacli", "run", "--preset", "tuned"] and by_hand.startswith(f"  lacli run --mode {mode}")
    assert answered(home, *typed[2:])["mode"] == mode
    assert answered(home, "--preset", "tuned")["mode"] == mode
    said = call("run", "-p", "hi", "-n", "1", "--preset", "tuned", env=home).err
    assert "--preset tuned: " in said and "when it was tuned just now" in said


def test_json_has_what_the_tables_have(home: dict[str, str], prompts: str) -> None:
    data = found(home, "--prompts", prompts)
    (path,) = kept(home)
    result = json.loads(path.read_text())["tuned"]
    assert data["settings"] == result["settings"] and data["remembered"] is True
    assert data["speedup"] == pytest.approx(result["speedup"], abs=1e-4)
    assert [row["setting"] for row in data["last_round"]][:2] == ["plain", "auto"]
    assert data["last_round"][0]["speedup"] == 1
    rounds = [row["rounds"] for row in data["search"]]
    assert rounds == sorted(rounds, reverse=True) and rounds[0] > 1


@pytest.fixture
def lookup(home: dict[str, str]) -> None:
    """A result for the preset to find."""
    settings = DecodeSettings(mode="lookup", lookup_match=3, lookup_draft=4)
    key = machine_key(find_model(None), ModelSettings(threads=1, gpu_layers=0))
    folder = Path(home["XDG_CONFIG_HOME"]) / "lacli" / "tuned"
    assert TunedStore(folder).save(key, Tuned(settings, 1.5, None, None, 1.1, 9, time())) == ""


def test_flags_beside_the_preset_win_over_it(home: dict[str, str], lookup: None) -> None:
    assert answered(home, "--preset", "tuned")["mode"] == "lookup"
    assert answered(home, "--preset", "tuned", "--mode", "jacobi")["mode"] == "jacobi"
    stats = ("run", "-p", "hi", "-n", "4", "--stats", "--preset", "tuned")
    assert "match up to 3, draft 4" in call(*stats, env=home).err
    assert "match up to 3, draft 7" in call(*stats, "--lookup-draft", "7", env=home).err
    assert "match up to 3, draft 4" in call(*stats[:-2], env={**home, "LACLI_PRESET": "tuned"}).err
    assert answered(home, "--preset", "tuned", "--mode", "lookahead", "-W", "3")["window"] == 3


def test_chat_and_bench_and_check_take_the_preset(home: dict[str, str], prompts: str, lookup: None) -> None:
    talked = call("chat", "--commands", "-n", "4", "--preset", "tuned", stdin=b"hi\n/stats\n", env=home)
    assert talked.code == 0 and "lookup, match up to 3, draft 4" in talked.err + talked.out
    few = ("-q", "--prompts", prompts, "--each", "1", "-r", "1", "-n", "8")
    compared = call("bench", *few, "--modes", "lookup", "--preset", "tuned", env=home)
    assert compared.code == 0 and "lookup" in compared.out
    assert call("check", "--prompts", "1", "-n", "4", "--preset", "tuned", "-q", env=home).code == 0


def test_a_saved_chat_goes_on_with_the_tuned_setting(home: dict[str, str], tmp_path: Path, lookup: None) -> None:
    saved = tmp_path / "chat.json"
    talk = ("chat", "--commands", "-n", "4", "--mode", "plain")
    assert call(*talk, stdin=f"hi\n/save {saved}\n".encode(), env=home).code == 0
    again = call("chat", "--commands", "--load", str(saved), "--preset", "tuned", stdin=b"hi\n/stats\n", env=home)
    assert "lookup, match up to 3, draft 4" in again.err + again.out
    again = call("chat", "--commands", "--load", str(saved), stdin=b"hi\n/stats\n", env=home)
    assert "mode      plain" in again.err + again.out


@pytest.mark.parametrize("command", ["run", "chat", "bench", "check"])
def test_the_preset_without_a_result_is_one_line(home: dict[str, str], command: str) -> None:
    asked = ("-p", "hi") if command == "run" else ("-q",)
    done = call(command, *asked, "--preset", "tuned", env=home)
    assert done.code == 2 and done.out == ""
    assert "there is no tuned setting of stdlib-7m.q8_0.gguf (lacli tune MODEL finds one)" in done.err


def test_a_result_for_other_flags_is_told_apart(home: dict[str, str], lookup: None) -> None:
    done = call("run", "-p", "hi", "--preset", "tuned", "-t", "2", env=home)
    assert done.code == 2 and "only with 1 thread" in done.err


def test_the_printed_command_finds_the_result_of_other_flags(home: dict[str, str], prompts: str) -> None:
    shown = tuned(home, "--prompts", prompts, "-t", "2", "-ctk", "q8_0", "-fa", "on").out
    preset, by_hand = (line.removesuffix("   (the same)").split()[2:] for line in shown.splitlines()[-2:])
    assert preset[:2] == ["--preset", "tuned"] and {"-t", "-ctk", "-fa"} < set(preset)
    assert answered(home, *preset)["mode"] == answered(home, *by_hand)["mode"]
    assert call("run", "-p", "hi", *preset[:2], env=home).code == 2


def test_a_flag_beside_the_preset_is_said_without_a_number(home: dict[str, str], lookup: None) -> None:
    asked = ("run", "-p", "hi", "-n", "1", "--preset", "tuned")
    said = call(*asked, "--lookup-draft", "7", env=home).err
    assert "--preset tuned: lookup match 3 draft 4, but with --lookup-draft 7\n" in said
    said = call(*asked, "--mode", "auto", env=home).err
    assert "--preset tuned: lookup match 3 draft 4 is not used, because of --mode auto\n" in said


def test_a_renamed_copy_finds_and_forgets_what_the_other_has_found(
    home: dict[str, str], tmp_path: Path, lookup: None
) -> None:
    copy = tmp_path / "renamed.gguf"
    copy.write_bytes(find_model(None).read_bytes())
    assert answered(home, str(copy), "--preset", "tuned")["mode"] == "lookup"
    assert json.loads(call("tune", "--forget", "--json", str(copy), env=home).out) == {
        "model": "renamed.gguf",
        "forgotten": 1,
    }
    assert call("run", "-p", "hi", "--preset", "tuned", env=home).code == 2


def test_a_file_in_the_folders_place_points_to_where_the_folders_are_shown(home: dict[str, str]) -> None:
    folder = Path(home["XDG_CONFIG_HOME"]) / "lacli" / "tuned"
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    done = call("run", "-p", "hi", "--preset", "tuned", env=home)
    assert done.code == 2 and f"--preset tuned: {folder} is no folder (lacli doctor shows the folders)" in done.err
    assert str(folder) in call("doctor", env=home).out


def test_a_setting_of_small_batches_can_be_typed_again(home: dict[str, str], prompts: str) -> None:
    shown = tuned(home, "--prompts", prompts, "-b", "8").out
    preset, by_hand = (line.removesuffix("   (the same)").split()[2:] for line in shown.splitlines()[-2:])
    for flags in (preset, by_hand):
        answered(home, *flags)
        answered(home, *flags, "-b", "8")


def test_forgetting(home: dict[str, str], lookup: None) -> None:
    assert len(kept(home)) == 1
    assert "forgot 1 tuned setting of" in call("tune", "--forget", env=home).err
    assert not kept(home)
    again = call("tune", "--forget", env=home)
    assert again.code == 0 and "there is no tuned setting of" in again.err


def test_a_folder_that_cannot_be_written_is_said_and_the_result_is_shown(
    home: dict[str, str], prompts: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    home["XDG_CONFIG_HOME"] = str(tmp_path / "file")
    data = found(home, "--prompts", prompts)
    assert data["remembered"] is False and "cannot keep it" in data["trouble"]
    assert "It is not remembered: cannot keep it in " in data["summary"] and data["flags"]


def test_a_recurrent_model_that_takes_nothing_back_is_remembered_as_plain(home: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tiny-mamba.gguf"
    write_mamba(path)
    assert "There is nothing to tune: a recurrent model" in tuned(home, str(path)).out
    assert answered(home, str(path), "--preset", "tuned")["mode"] == "plain"


def test_a_hybrid_models_candidates_are_chains(home: dict[str, str], tmp_path: Path, prompts: str) -> None:
    path = tmp_path / "tiny-lfm2.gguf"
    write_lfm2(path)
    data = found(home, str(path), "--prompts", prompts)
    assert {row["setting"].split()[0] for row in data["search"]} == {"auto", "lookup"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--prompts", "nowhere.jsonl"), 1, "cannot read nowhere.jsonl"),
        (("--prompts", "{empty}"), 1, "holds no prompts"),
        (("--prompts", "{bad}"), 1, "not JSON"),
        (("--classes", "poems"), 2, "there is no prompt class poems"),
        (("--seconds", "0"), 2, "--seconds"),
        (("--seconds", "soon"), 2, "--seconds"),
        (("-n", "0"), 2, "-n"),
        (("nowhere.gguf",), 1, "no such file"),
    ],
)
def test_bad_input_is_one_line(
    home: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bad").write_text("prompt: hello\n")
    given = [each.format(empty=tmp_path / "empty", bad=tmp_path / "bad") for each in arguments]
    done = call("tune", "-q", *given, env=home)
    assert (done.code, done.out, len(done.err.splitlines())) == (code, "", 1)
    assert words in done.err and not kept(home)


def test_prompts_longer_than_the_context_are_one_line(home: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "word " * 3000}))
    done = call("tune", "-q", "--prompts", str(path), env=home)
    assert (done.code, done.out) == (1, "") and "no prompt fits into the context" in done.err


def test_ctrl_c_in_the_search_shows_it_and_leaves_no_file(
    home: dict[str, str], prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Search.play

    def interrupted(search: Search, current: Any) -> Any:
        yield from play(search, current)
        if current.number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Search, "play", interrupted)
    done = call("tune", "--seconds", SECONDS, "-n", "8", "--prompts", prompts, env=home)
    assert done.code == 130 and not kept(home)
    shown = done.out.replace("\n", " ")
    assert "The search: " in shown and "Stopped, so nothing is remembered." in shown and "The last round" not in shown


def test_ctrl_c_ends_a_real_run_with_130(home: dict[str, str], prompts: str) -> None:
    with start("tune", "--seconds", "600", "--prompts", prompts, env=home) as process:
        assert process.stderr
        for line in process.stderr:
            if b"comparing" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert b"nothing is remembered" in out and b"Traceback" not in err and not kept(home)
