"""Bad input: each mistake of a user gives one line with a hint, never a traceback. Exit codes are 1, or 2 for usage."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from lacli import DecodeSettings, LacliError, ModelSettings
from lacli.batch import Batch, from_tokens
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ContextSize
from lacli.settings import ModeName
from lacli.tree import Tree
from tests.fakes.tiny_models import write_diffusion, write_embedding, write_unknown_architecture
from tests.program import PROGRAM, Done, call, run

FAILED, USAGE = 1, 2


def complaint(done: Done, code: int = FAILED) -> str:
    """Check that a run failed with this exit code and printed one line only; return the line."""
    lines = done.err.splitlines()
    assert done.code == code, done
    assert len(lines) == 1 and done.err.endswith("\n"), done.err
    assert re.fullmatch(r"lacli: \S.* \(\S.*\)", lines[0]), "an error, then a hint in parentheses"
    assert done.out == ""
    return lines[0]


def refused(*arguments: str, code: int = FAILED, stdin: bytes = b"") -> str:
    """Return the error line of `lacli run -q` with these arguments."""
    return complaint(call("run", "-q", *arguments, stdin=stdin), code)


ASKED = ("run", "-q", "-p", "hi")

SLIPS = [
    (FAILED, ("run", "-q", "nosuch.gguf", "-p", "hi"), "no such file: nosuch.gguf"),
    (USAGE, ("run", "-q", "-p", " "), "the prompt is empty"),
    (USAGE, ("run", "-q"), "there is no prompt"),
    (USAGE, ("run", "-q", "a/model"), "there is no prompt for the model 'a/model' (give one with -p"),
    (USAGE, ("chat", "-f", __file__), "/read FILE in a chat"),
    (FAILED, ("run", "-q", "-f", "nosuch.txt"), "cannot read nosuch.txt: No such file"),
    (FAILED, (*ASKED, "-sysf", "."), "cannot read .: Is a directory"),
    *((FAILED, (*ASKED, flag, os.fsdecode(b"caf\xe9")), f"{flag} is not UTF-8") for flag in ("-sys", "--stop")),
    (USAGE, (*ASKED, "--raw", "-sys", "Be brief."), "a system prompt needs one"),
    (USAGE, (*ASKED, "-sys", "Be brief.", "-sysf", __file__), "both given"),
    (USAGE, (*ASKED, "-N", "1"), "-N is 1 (-N must be at least 2)"),
    (USAGE, (*ASKED, "-ctk", "f17"), "did you mean f16?"),
    (USAGE, (*ASKED, "-fa", "off", "-ctv", "q8_0"), "needs flash attention"),
    (USAGE, (*ASKED, "-n", "many"), "invalid value for '-n'"),
    (USAGE, (*ASKED, "-ngl", "most"), "-ngl: 'most' is no number of layers (give a whole number, auto or all)"),
    (USAGE, (*ASKED, "--mode", "magic"), "'--mode': 'magic' is not one of 'plain'"),
    (USAGE, (*ASKED, "--chat-template", "chatlm"), "did you mean chatml?"),
    (USAGE, ("bench", "--classes", "edits"), "did you mean edit?"),
    (USAGE, ("run", "model.gguf", "hello", "-p", "hi"), "the prompt is given twice"),
    (USAGE, ("run", "model.gguf", "-m", "other.gguf"), "two models are named: model.gguf and other.gguf"),
    (USAGE, ("run", "model.gguf", "Why", "is", "it?"), "unexpected extra argument(s) (is it?)"),
    (USAGE, (*ASKED, "-j", __file__), "-jf FILE reads one"),
    (USAGE, ("run", "-q", "--prompts", __file__, "--replicas", "2"), "leave --replicas out"),
    (USAGE, ("serve", "-q", "--port", "0", "--replicas", "2"), "leave --replicas out"),
    (USAGE, (*ASKED, "-e"), "there is no -e (lacli decodes no escapes; $'a\\nb' has"),
    *((USAGE, (*ASKED, *flags), "llama-export-lora") for flags in (("--lora", "x"), ("--lora=x",))),
    *(
        (USAGE, ("run", "m.gguf", flag, "draft.gguf"), "lacli needs no draft model")
        for flag in ("-md", "--model-draft")
    ),
    *((USAGE, (command, "-f", "x"), f"no such option: -f (lacli {command} -h") for command in ("rm", "list", "serve")),
    (FAILED, ("run", "-q", "nosuch.gguf", "-p", "-e"), "no such file: nosuch.gguf"),
    (USAGE, ("chat", "-sys", "-e", "-f", "x"), "there is no -f (lacli run has it"),
    (USAGE, ("bensh",), "no such command 'bensh'. Did you mean 'bench'"),
    (USAGE, ("run", "--no-stdin", "-p", "-"), "--no-stdin"),
    (USAGE, (*ASKED, "-x", "--json"), "-x cannot be combined with --json or --prompts"),
    (FAILED, (*ASKED, "-n", "3", "-x"), "the answer has no complete fenced block"),
    (USAGE, (*ASKED, "-l", "99999+1"), "a bias names token 99999, and the model has"),
    (USAGE, (*ASKED, "--grammar", 'root ::= "a'), "the grammar cannot be used: unexpected end of input"),
]
"""Exit codes, command lines, and words of the error line."""


@pytest.mark.parametrize(
    ("code", "arguments", "words"), SLIPS, ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else ""
)
def test_a_slip_on_the_command_line_is_one_line_with_a_hint(code: int, arguments: tuple[str, ...], words: str) -> None:
    line = complaint(call(*arguments), code)
    assert words in line and len(line) < 300


def test_a_path_that_is_no_model_says_what_it_is(tmp_path: Path) -> None:
    assert "Is a directory" in refused(str(tmp_path), "-p", "hi")
    path = tmp_path / "model.gguf"
    path.write_bytes(b"Hello, world.\n")
    assert f"{path} is not a GGUF file" in refused(str(path), "-p", "hi")
    if os.geteuid():  # root may read everything
        path.chmod(0)
        assert "Permission denied" in refused(str(path), "-p", "hi")


@pytest.mark.parametrize(
    "flags",
    [
        *("-W 255 -G 0 -N 2", "-W 0 -G 255 -N 2", "-W 0 -G 0 -N 2", "-b 4294967296"),
        *("-N 99999 -b 2999940", "-ngl 99999999999", "-c 1", "-ctk q8_0 -ctv q8_0"),
    ],
)
def test_the_largest_sizes_run_and_absurd_ones_are_only_cut(flags: str, tiny: Path) -> None:
    assert call("run", str(tiny), *flags.split(), "-p", "hi", "-n", "3").code == 0


def test_a_truncated_model_wherever_it_ends(tiny: Path, tmp_path: Path) -> None:
    raw = tiny.read_bytes()
    path = tmp_path / "truncated.gguf"
    for length in [4, 8, 23, 30, *range(100, len(raw), len(raw) // 10), len(raw) - 1]:
        path.write_bytes(raw[:length])
        assert "fetch it again" in refused(str(path), "-p", "hi"), length


def test_an_assertion_of_llama_cpp_is_a_line_and_not_a_crash(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "two-tokens-alike.gguf"
    raw = tiny.read_bytes()
    a, b = ((1).to_bytes(8, "little") + letter for letter in (b"a", b"b"))
    assert raw.count(a + b) == 1
    path.write_bytes(raw.replace(a + b, a + a))
    done = run("run", "-q", str(path), "-p", "hi")
    assert "GGML_ASSERT" in complaint(done) and "fetch it again" in done.err


@pytest.fixture(scope="module", params=["all logits", "one token's logit"])
def numberless(tiny: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    """Return the file of a model whose logits are NaN, all of them or only the last token's."""
    path = tmp_path_factory.mktemp("damaged") / "numberless.gguf"
    path.write_bytes(tiny.read_bytes())
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path, "r+").tensors}
    damaged = tensors["output_norm.weight"] if request.param == "all logits" else tensors["output.weight"][-1]
    damaged[0] = np.nan
    return str(path)


@pytest.mark.parametrize(
    "command",
    [
        *(f"run -q -n 8 -c 256 -p hi --mode {mode} --temp {temp}" for mode in ("plain", "auto") for temp in (0, 1)),
        "check -q -n 4 -c 256",
        "bench -q -n 4 -c 512 -r 1 --classes chat",
    ],
)
def test_no_command_takes_an_answer_without_numbers_for_an_answer(numberless: str, command: str) -> None:
    assert "NaN" in complaint(call(*command.split(), "-m", numberless))


@pytest.mark.parametrize("mode", ["plain", "auto"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_choices_made_by_the_backend_are_checked_too(tiny: Path, tmp_path: Path, mode: ModeName, value: float) -> None:
    path = tmp_path / "numberless.gguf"
    path.write_bytes(tiny.read_bytes())
    norm = next(each.data for each in gguf.GGUFReader(path, "r+").tensors if each.name == "output_norm.weight")
    norm[:] = value
    model_settings = ModelSettings(context=256, threads=1, gpu_layers=0)
    with (
        LlamaModel(path, model_settings) as model,
        LlamaContext(model, model_settings, ContextSize.of(DecodeSettings(mode=mode)), backend_greedy=True) as engine,
    ):
        assert engine.decode(from_tokens([5], 0)) and engine.decode(Batch(1).set_tree(Tree(5), 1))
        with pytest.raises(LacliError, match="NaN or infinite"):
            engine.greedy()


def test_a_chat_template_that_is_none(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "template.gguf"
    path.write_bytes(tiny.read_bytes().replace(b"{% endfor %}", b"{% endif  %}"))
    answered = call("run", str(path), "-p", "hi", "-n", "1")
    assert answered.code == 1 and "the chat template is broken" in answered.err and "--chat-template" in answered.err
    assert answered.err.count("\n") == 1
    raw = call("run", str(path), "--raw", "-p", "hi", "-n", "1")
    assert raw.code == 0 and "template" not in raw.err


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_embedding, "model.gguf is an embedding model"),
        (write_diffusion, "encoder-decoder or diffusion model"),
        (write_unknown_architecture, "unknown model architecture: 'nonesuch'"),
    ],
)
def test_a_model_of_another_kind(write: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path)
    assert words in refused(str(path), "-p", "hi")


def test_a_prompt_longer_than_the_context_and_the_context_that_fits() -> None:
    asked = ["--raw", "-p", "def f(x): return x\n" * 60]
    line = refused(*asked, "-c", "256")
    assert "the context 256 (" in line
    fits = re.search(r"-c \d+", line)
    assert fits and call("run", *asked, *fits[0].split(), "-n", "1").code == 0


def test_a_closed_standard_input() -> None:
    shell = ("sh", "-c", 'exec "$@" <&-', "sh", *PROGRAM)
    assert "there is no prompt" in complaint(run("run", "-q", program=shell), USAGE)
    assert "standard input is closed" in complaint(run("run", "-q", "-p", "-", program=shell))
    assert run("run", "-q", "-p", "hi", "-n", "1", program=shell).code == 0


def test_a_batch_smaller_than_a_step_of_mode_auto_makes_its_steps_smaller(tiny: Path) -> None:
    for flags, rows in (("-b 8", 8), ("-b 3 --strict", 2), ("-b 8 --auto-rows 64", 8)):
        done = call("run", str(tiny), *flags.split(), "-p", "hi", "-n", "3", "--json")
        assert done.code == 0 and json.loads(done.out)["auto_rows"] == rows, flags


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system pages, and nothing is refused")
def test_a_context_beyond_memory() -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cell = 4096  # bytes, and less than the 7M model's, so this is twice the memory and more
    before = resource.getrlimit(resource.RLIMIT_AS)
    line = refused("-c", str(2 * memory // cell), "-p", "hi")
    assert "-c 4096" in line
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_a_stdout_that_takes_nothing(flags: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = run("run", "-q", "-p", "hi", "-n", "5", *flags, stdout=full)
    assert "cannot write to standard output: No space left" in complaint(done)


def test_a_closed_stdout_and_a_closed_stderr() -> None:
    asked = ("run", "-p", "hi", "-n", "2")
    closed = run(*asked, "-q", program=("sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM))
    assert "cannot write to standard output: it is closed" in complaint(closed)
    mute = run(*asked, program=("sh", "-c", 'exec "$@" 2>&-', "sh", *PROGRAM))
    assert mute == Done(0, call(*asked).out, "")
