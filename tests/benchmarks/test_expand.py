"""The expansion: the bigger model says what the small one says, in every type, and what does not fit is refused.

Types round: F16 and Q4_0 change the 7M model itself, so their expansions are held against the 7M model rewritten
in that type at its own size. What is then left is the order of sums, and the rounding of scaled queries.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks import expand
from benchmarks.expand import PIECE, SMALL_MODEL, TYPES
from benchmarks.expansion import Source
from benchmarks.shapes import SHAPES, Shape, check_fit, copies
from lacli.batch import from_tree
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from lacli.tree import Tree
from tests.fakes import tiny_models
from tests.fakes.margins import Logits
from tests.program import ROOT

SETTINGS = ModelSettings(context=256, gpu_layers=0, threads=1)
SMALL = Source(SMALL_MODEL).shape
WIDER_HEADS = Shape(512, 10, 8, 8, 1024, 5000, 128)
"""Its groups are smaller than the 7M model's, so key-value heads are copied."""

LARGER_GROUPS = Shape(320, 8, 12, 3, 768, 4096, 64)
PROMPT = (
    "<|im_start|>user\nWrite a Python function is_empty: Return true if the queue is empty.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
ANSWER = 40
"""Tokens."""

ROUNDING = {"F16": 0.05, "Q8_0": 0.5, "Q4_0": 0.5}
"""The most that a logit may move: the products of quantised types round their input too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("expand")


@pytest.fixture(scope="module", params=TYPES)
def type_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def rewritten(folder: Path, type_name: str) -> Path:
    """The 7M model at its own size in that type."""
    path = folder / f"small-{type_name}.gguf"
    expand.expand(SMALL_MODEL, path, SMALL, type_name)
    return path


@pytest.fixture(scope="module")
def greedy(rewritten: Path) -> tuple[list[int], Logits]:
    """The prompt and the small model's answer as tokens, and the logits after each."""
    with LlamaModel(rewritten, SETTINGS) as model:
        prompt = list(model.tokenize(PROMPT))
        return answer(model, prompt)


def answer(model: LlamaModel, tokens: list[int], length: int = ANSWER) -> tuple[list[int], Logits]:
    """These tokens and the most probable ones after them, and the logits after each of them."""
    rows, text = [], list(tokens)
    with LlamaEngine(model, SETTINGS, DecodeSettings(mode="plain")) as engine:
        for place in range(len(tokens) + length):
            assert engine.decode(from_tree(Tree(text[place]), place))
            rows.append(engine.logits()[-1].copy())
            if place + 1 == len(text):
                text.append(int(rows[-1].argmax()))
    return text[: len(rows)], np.array(rows)


def test_the_bigger_model_has_the_small_ones_logits(
    folder: Path, type_name: str, greedy: tuple[list[int], Logits]
) -> None:
    path = folder / f"big-{type_name}.gguf"
    expand.expand(SMALL_MODEL, path, WIDER_HEADS, type_name)
    tokens, expected = greedy
    with LlamaModel(path, SETTINGS) as model:
        _, logits = answer(model, tokens, 0)
    moved = np.abs(logits[:, : SMALL.vocabulary] - expected).max()
    assert moved < ROUNDING[type_name]
    ranked = np.sort(expected, axis=1)
    clear = ranked[:, -1] - ranked[:, -2] > 2 * moved
    assert clear.mean() > 0.8
    assert (logits.argmax(axis=1) == expected.argmax(axis=1))[clear].all()


@pytest.mark.parametrize(("shape", "type_name"), [(WIDER_HEADS, "F16"), (LARGER_GROUPS, "Q8_0")])
def test_the_greedy_text_is_the_small_models(shape: Shape, type_name: str, tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    expand.expand(SMALL_MODEL, path, shape, type_name)
    with LlamaModel(SMALL_MODEL, SETTINGS) as small, LlamaModel(path, SETTINGS) as big:
        tokens = list(small.tokenize(PROMPT))
        assert list(big.tokenize(PROMPT)) == tokens
        assert answer(big, tokens)[0] == answer(small, tokens)[0]


def test_the_small_model_rewritten_in_its_own_type_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "same.gguf"
    expand.expand(SMALL_MODEL, path, SMALL, "Q8_0")
    before, after = ({tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors} for file in (SMALL_MODEL, path))
    assert after.keys() == before.keys() | {"output.weight"}
    for name, tensor in before.items():
        kind = tensor.tensor_type
        assert np.array_equal(gguf.dequantize(tensor.data, kind), gguf.dequantize(after[name].data, kind)), name


def test_an_extra_token_is_never_the_most_probable_one(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    expand.expand(SMALL_MODEL, path, replace(SMALL, vocabulary=5000), "F16")
    with LlamaModel(path, SETTINGS) as model:
        _, logits = answer(model, list(model.tokenize(PROMPT)))
    small, extra = logits[:, : SMALL.vocabulary], logits[:, SMALL.vocabulary :]
    assert np.allclose(extra, small.mean(axis=1, keepdims=True), atol=0.05)


def test_the_file_holds_the_shape_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    size = expand.expand(SMALL_MODEL, path, WIDER_HEADS, "Q4_0", context=4096)
    source = Source(path)
    assert source.shape == WIDER_HEADS
    assert source.value("llama.context_length") == 4096
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    ratio = WIDER_HEADS.width / SMALL.width
    assert source.value(epsilon) * ratio == pytest.approx(Source(SMALL_MODEL).value(epsilon))
    matrices = [tensor for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) == 2]
    assert sum(int(tensor.n_elements) for tensor in matrices) == WIDER_HEADS.parameters
    assert {tensor.tensor_type.name for tensor in matrices} == {"Q4_0"}
    assert size == path.stat().st_size
    assert [left.name for left in tmp_path.iterdir()] == ["big.gguf"]


def test_every_row_of_a_matrix_larger_than_a_piece_is_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    shape = replace(SMALL, width=1024, vocabulary=4500)
    assert shape.vocabulary * shape.width * 2 > 4 * PIECE
    expand.expand(SMALL_MODEL, path, shape, "F16")
    own, wide = Source(SMALL_MODEL).tensor("token_embd.weight"), Source(path).tensor("token_embd.weight")
    assert np.array_equal(wide[: len(own), : own.shape[1]], own.astype(np.float16))
    assert not wide[len(own) :].any() and not wide[:, own.shape[1] :].any()


@pytest.mark.parametrize("name", [size.name for size in fields(Shape)])
def test_a_smaller_size_is_refused_and_named(name: str, tmp_path: Path) -> None:
    shape = replace(SMALL, **{name: getattr(SMALL, name) - 1})
    with pytest.raises(LacliError, match=f"is less than the small model's {getattr(SMALL, name)}"):
        expand.expand(SMALL_MODEL, tmp_path / "out.gguf", shape, "F16")


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (replace(SMALL, heads=5), "5 heads do not divide into 2 groups"),
        (replace(SMALL, heads=6, key_value_heads=3, head_width=65), "65 is odd"),
        (replace(SMALL, width=300), "300 is not a multiple of 32"),
        (replace(SMALL, feed_forward=800 + 1), "801 is not a multiple of 32"),
    ],
)
def test_what_does_not_fit_is_said_plainly(shape: Shape, words: str, tmp_path: Path) -> None:
    with pytest.raises(LacliError, match=words):
        expand.expand(SMALL_MODEL, tmp_path / "out.gguf", shape, "Q8_0")
    assert not list(tmp_path.iterdir())


def test_groups_that_have_to_be_split_need_as_many_key_value_heads() -> None:
    small = replace(SMALL, heads=8, key_value_heads=2)
    assert copies(small, replace(small, heads=9, key_value_heads=3)) == 2
    with pytest.raises(LacliError, match="2 groups of 4 query heads need 4 groups of 3, and there are 3"):
        check_fit(small, replace(small, heads=9, key_value_heads=3))


PUBLISHED = {"0.5b": 0.494, "1b": 1.236, "3b": 3.213, "7b": 6.738, "13b": 13.016, "34b": 33.744}
"""Billions of parameters of the models that the shapes are named after; the first three have one matrix for embedding
and output."""


@pytest.mark.parametrize("name", SHAPES)
def test_the_named_shapes_are_real_models_and_take_the_small_model(name: str) -> None:
    shape = SHAPES[name]
    check_fit(SMALL, shape)
    for type_name in TYPES:
        expand.check_blocks(shape, expand.weights(type_name))
    second = shape.vocabulary * shape.width if name in ("0.5b", "1b", "3b") else 0
    assert (shape.parameters - second) / 1e9 == pytest.approx(PUBLISHED[name], rel=0.001)


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2 * 10**9, 10**9, 10**9))
    with pytest.raises(LacliError, match=r"needs 26\.\d GB and its disk has 1\.0 GB left"):
        expand.expand(SMALL_MODEL, tmp_path / "13b.gguf", SHAPES["13b"], "F16")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_no_half_file_and_an_older_one_as_it_was(
    failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "big.gguf"
    out.write_bytes(b"older")
    parts: list[int] = []

    def fail_in_the_middle(done: int, total: int) -> None:
        parts.append(len(list(tmp_path.glob("*.part"))))
        if done > total / 2:
            raise failure

    with pytest.raises(LacliError if isinstance(failure, OSError) else KeyboardInterrupt):
        expand.expand(SMALL_MODEL, out, WIDER_HEADS, "F16", progress=fail_in_the_middle)
    assert set(parts) == {1}
    assert [left.name for left in tmp_path.iterdir()] == ["big.gguf"]
    assert out.read_bytes() == b"older"


@pytest.fixture
def unusable(tmp_path: Path) -> Iterator[dict[str, Path]]:
    text, other = tmp_path / "text.gguf", tmp_path / "other.gguf"
    text.write_text("no model at all")
    tiny_models.write_qwen2(other)
    yield {"cannot read": text, "cannot read .*none": tmp_path / "none.gguf", "not of the architecture": other}


@pytest.mark.parametrize("words", ["cannot read", "cannot read .*none", "not of the architecture"])
def test_a_small_model_that_cannot_be_expanded_is_refused(
    words: str, unusable: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(LacliError, match=words):
        expand.expand(unusable[words], tmp_path / "out.gguf", SHAPES["0.5b"], "F16")


def test_other_types_shorter_contexts_and_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Q5_K is unknown"):
        expand.expand(SMALL_MODEL, tmp_path / "out.gguf", SMALL, "Q5_K")
    with pytest.raises(LacliError, match="--context 100 is less than the small model's 2048"):
        expand.expand(SMALL_MODEL, tmp_path / "out.gguf", SMALL, "F16", context=100)
    with pytest.raises(LacliError, match="there is no folder"):
        expand.expand(SMALL_MODEL, tmp_path / "none" / "out.gguf", SMALL, "F16")


def test_the_command_line_overrides_sizes_of_a_shape(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    sizes = ["--width", "288", "--kv-heads", "4", "--head-width", "96", "--type", "Q8_0"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.expand", out, *sizes], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Source(out).shape == replace(SMALL, width=288, key_value_heads=4, head_width=96)


def test_the_command_line_says_an_error_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/expand.py", str(tmp_path / "out.gguf"), "--layers", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "expand: --layers 3 is less than the small model's 8 (a shape can only grow)\n"


def test_a_missing_library_is_said_in_one_line_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.delitem(sys.modules, "benchmarks.expand")
    with pytest.raises(SystemExit, match=r"^expand: gguf is missing \(pip install '\.\[test\]' brings it\)$"):
        importlib.import_module("benchmarks.expand")
