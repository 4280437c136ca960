"""Settings: ranges, contradictions and addresses; strict decoding gives the same text in every mode."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp as lib
import pytest

from lacli.batch import Batch, from_tokens
from lacli.errors import LacliError, UsageError
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.gguf import architecture_and_types
from lacli.llamacpp.library import TILED_SWITCH
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampling import ALTERS_GREEDY, SamplingSettings
from lacli.llamacpp.settings import EXACT_CELLS, ContextSize, ModelSettings, endpoints, shared_settings, strict_settings
from lacli.settings import DecodeSettings, Option, options_of
from lacli.tree import Origin, Tree
from tests import program
from tests.fakes import strict_answers
from tests.loading import STDLIB_7M

DRAWING = {"temp": 0.8}


@pytest.mark.parametrize("option", [each for each in options_of(SamplingSettings).values() if each.most is not None])
def test_a_setting_may_reach_both_ends_of_its_range_and_not_leave_it(option: Option) -> None:
    name, least, most = option.name, option.least, option.most
    assert least is not None and most is not None
    given: dict[str, Any] = {**DRAWING, name: least}
    assert getattr(SamplingSettings(**given), name) == least
    assert getattr(SamplingSettings(**{**given, name: most}), name) == most
    step = 1 if isinstance(getattr(SamplingSettings(), name), int) else 0.5
    for outside in (least - step, most * 2 + step, math.nan):
        with pytest.raises(UsageError) as raised:
            SamplingSettings(**{**given, name: outside})
        assert str(raised.value).startswith(f"{name} is ")
        assert "must be" in raised.value.hint and "\n" not in str(raised.value)
        assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"grammar": "root ::= [a]", "json_schema": "{}"}, "a grammar and a JSON schema"),
        ({"logit_bias": ((3, math.inf),)}, "the bias of token 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        SamplingSettings(**given)
    assert words in str(raised.value) and raised.value.hint and "\n" not in str(raised.value)


def test_a_sampler_is_needed_exactly_if_the_most_probable_token_may_not_win() -> None:
    assert SamplingSettings().greedy
    assert not SamplingSettings(temp=0.1).greedy
    assert SamplingSettings(top_k=3, top_p=0.5, min_p=0.5, seed=1, dry_base=2.0, repeat_last_n=3).greedy
    changed: dict[str, Any] = dict.fromkeys(ALTERS_GREEDY, 0.5)
    changed |= {"logit_bias": ((1, 1.0),), "ignore_eos": True, "grammar": "root ::= [a]", "json_schema": "{}"}
    assert not any(SamplingSettings(**{name: value}).greedy for name, value in changed.items())


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("192.168.1.2:50052", ("192.168.1.2:50052",)),
        ("box:1, Other.Lan ,box:1", ("box:1", "other.lan:50052")),
        ("", ()),
    ],
)
def test_addresses_are_read_as_llama_cpp_writes_them(text: str, read: tuple[str, ...]) -> None:
    assert endpoints(text) == read


@pytest.mark.parametrize("text", ["box:1,,", "box:0", "box:65536", ":50052", "http://box:1", "[::1]:50052"])
def test_a_text_that_is_no_address_is_said_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="is no address") as caught:
        endpoints(text)
    assert caught.value.hint and "\n" not in str(caught.value)


LOADING, DECODING = ModelSettings(), DecodeSettings(strict=True)

FORMATS = {
    "f16": (lib.LLAMA_FTYPE_MOSTLY_F16, {"f16"}),
    "q4_0": (lib.LLAMA_FTYPE_MOSTLY_Q4_0, {"q4_0", "q6_K"}),
    "q4_k": (lib.LLAMA_FTYPE_MOSTLY_Q4_K_M, {"q4_K", "q6_K"}),
}


def made_strict(*types: str) -> tuple[ModelSettings, DecodeSettings]:
    return strict_settings(LOADING, DECODING, frozenset(types), on_gpu=False)


@pytest.fixture(scope="module", params=["q8_0", *FORMATS])
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the bundled model in one of FORMATS."""
    if request.param == "q8_0":
        return STDLIB_7M
    path = tmp_path_factory.mktemp("formats") / f"{request.param}.gguf"
    parameters = lib.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize, parameters.nthread = FORMATS[request.param][0], True, 1
    assert lib.llama_model_quantize(str(STDLIB_7M).encode(), str(path).encode(), parameters) == 0
    assert architecture_and_types(path)[1] == FORMATS[request.param][1]
    return path


@pytest.mark.parametrize(
    ("texts", "asked", "on_gpu", "chosen"),
    [(3, "auto", False, "off"), (4, "auto", False, "on"), (4, "off", False, "off"), (4, "auto", True, "auto")],
)
def test_four_sequences_on_a_cpu_turn_flash_attention_on(texts: int, asked: Any, on_gpu: bool, chosen: str) -> None:
    settings = shared_settings(replace(LOADING, flash_attention=asked), texts, on_gpu=on_gpu)
    assert settings.attention(on_gpu=on_gpu) == chosen


def strict_answers_of(path: Path, threads: int) -> list[Any]:
    """Return the tokens of strict answers to all questions in each mode, from a process of its own."""
    command = [sys.executable, "-m", "tests.fakes.strict_answers", str(path), str(threads)]
    done = subprocess.run(command, capture_output=True, check=True, env=program.environment(), cwd=program.ROOT)
    found: list[Any] = json.loads(done.stdout)
    return found


def test_a_seed_gives_the_same_texts_in_every_mode(model_path: Path) -> None:
    plain, *others = strict_answers_of(model_path, 1)
    assert sum(map(len, plain)) > 20 * len(strict_answers.QUESTIONS)
    assert others == [plain] * (len(strict_answers.MODES) - 1)


def test_a_seed_gives_the_same_texts_on_two_threads() -> None:
    plain, *others = strict_answers_of(STDLIB_7M, 2)
    assert len(plain[0]) > 5 and others == [plain] * (len(strict_answers.SHORT) - 1)


@pytest.mark.parametrize(("cells", "agree"), [*((cells, True) for cells in EXACT_CELLS), ("f16", False)])
def test_only_exact_cells_make_batches_of_all_sizes_agree(cells: str, agree: bool) -> None:
    model_settings, _ = strict_settings(
        ModelSettings(context=512, gpu_layers=0, threads=1), DECODING, frozenset({"q8_0"}), on_gpu=False
    )
    model_settings = replace(model_settings, cache_type_k=cells, cache_type_v=cells)
    chain = DecodeSettings(mode="lookup", lookup_draft=63)
    tokens, sizes = range(300, 748), (1, 2, 8, 32, 64)
    with (
        LlamaModel(STDLIB_7M, model_settings) as model,
        LlamaContext(model, model_settings, ContextSize.of(chain)) as engine,
    ):
        found = [logits_in_batches(engine, tokens[:-64], tokens[-64:], size) for size in sizes]
    assert all(each == found[0] for each in found) is agree


def logits_in_batches(engine: LlamaContext, before: Sequence[int], tokens: Sequence[int], size: int) -> list[bytes]:
    """Decode `tokens` in batches of `size` after the tokens `before`; return the bytes of each token's logits."""
    engine.clear()
    assert engine.decode(from_tokens(before, 0, 0))
    found = []
    for start in range(0, len(tokens), size):
        chain = Tree(tokens[start])
        chain.add_path(tokens[start + 1 : start + size], 0, Origin.CHAIN)
        assert engine.decode(Batch(len(chain)).set_tree(chain, len(before) + start))
        found += [row.tobytes() for row in engine.logits()]
    return found


@pytest.mark.parametrize(
    ("types", "min_outputs", "repack"),
    [
        (["q8_0"], 1, True),
        (["q4_0", "q6_K"], 1, True),
        (["q4_K", "q6_K"], 1, False),
        (["f16"], 2, True),
        (["f32", "q8_0"], 2, True),
        (["iq4_nl"], 1, True),
        (["iq4_nl", "q3_K"], 2, False),
    ],
)
def test_the_kernels_follow_from_the_weights(types: list[str], min_outputs: int, repack: bool) -> None:
    model_settings, decode_settings = made_strict(*types)
    assert decode_settings.constraints.min_outputs == min_outputs
    assert model_settings.repack is repack
    assert model_settings.tiled is all(name in ("q8_0", "f16", "f32", "iq4_nl") for name in types)


@pytest.mark.parametrize(
    ("model_settings", "on_gpu", "words"),
    [
        (LOADING, True, "on the CPU only"),
        (ModelSettings(flash_attention="off"), False, "needs flash attention"),
        (ModelSettings(cache_type_k="q4_0"), False, "needs q8_0 or bf16 cells, not q4_0"),
    ],
)
def test_what_strict_decoding_cannot_keep_is_refused(model_settings: ModelSettings, on_gpu: bool, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        strict_settings(model_settings, DECODING, frozenset({"q8_0"}), on_gpu=on_gpu)


def test_kernels_that_a_process_has_chosen_already_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TILED_SWITCH, "1")
    with pytest.raises(LacliError, match="--strict comes too late"):
        LlamaModel(STDLIB_7M, ModelSettings(gpu_layers=0, tiled=False))
    monkeypatch.setenv(TILED_SWITCH, "0")
    LlamaModel(STDLIB_7M, ModelSettings(gpu_layers=0, tiled=True)).close()
    assert os.environ[TILED_SWITCH] == "0", "tiled kernels stay off"
