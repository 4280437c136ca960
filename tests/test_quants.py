"""The quant rule: which file of a repository is meant, and what is said when none or many are."""

from __future__ import annotations

import pytest

from lacli.errors import ModelLoadError
from lacli.hub.quants import (
    all_parts,
    choose,
    has_quant,
    models,
    quant_of,
)

REPOSITORY = "someone/model-GGUF"
PARTS = [f"big-Q6_K-{part:05d}-of-00003.gguf" for part in (1, 2, 3)]


def refused(files: list[str], quant: str = "") -> ModelLoadError:
    with pytest.raises(ModelLoadError) as caught:
        choose(files, quant, REPOSITORY)
    return caught.value


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["a-F16.gguf", "a-Q8_0.gguf", "a-Q4_K_M.gguf"], "a-Q4_K_M.gguf"),
        (["a-F16.gguf", "a-Q8_0.gguf", "a-Q4_K_S.gguf"], "a-Q8_0.gguf"),
        (["README.md", "a-F16.gguf", "a-Q6_K.gguf"], "a-F16.gguf"),
        (["model.gguf"], "model.gguf"),
        (["a.q4_k_m.gguf", "a.q8_0.gguf"], "a.q4_k_m.gguf"),
    ],
)
def test_without_a_quant_it_is_q4_k_m_then_q8_0_then_the_first(files: list[str], chosen: str) -> None:
    assert choose(files, "", REPOSITORY) == [chosen]


@pytest.mark.parametrize("quant", ["Q5_K_M", "q5_k_m", "Q5_k_M"])
@pytest.mark.parametrize("file", ["a-Q5_K_M.gguf", "a.q5_k_m.gguf", "folder/a-Q5_K_M-v2.gguf"])
def test_a_quant_is_found_before_a_dot_or_a_hyphen_in_any_case(quant: str, file: str) -> None:
    assert choose(["a-Q5_K_S.gguf", file, "a-Q8_0.gguf"], quant, REPOSITORY) == [file]


def test_a_dot_in_a_quant_is_a_dot() -> None:
    assert refused(["a-Q4xK.gguf"], "Q4.K").what == f"{REPOSITORY} has no Q4.K"


def test_f16_is_not_bf16() -> None:
    files = ["a-BF16.gguf", "a-F16.gguf"]
    assert choose(files, "F16", REPOSITORY) == ["a-F16.gguf"]
    assert choose(files, "bf16", REPOSITORY) == ["a-BF16.gguf"]
    assert choose(["a-BF16.gguf"], "F16", REPOSITORY) == ["a-BF16.gguf"]


def test_files_that_go_with_a_model_are_no_models() -> None:
    others = ["mmproj-Q8_0.gguf", "a-imatrix-Q8_0.gguf", "mtp-a-Q8_0.gguf", "imatrix.dat", "a-Q8_0.safetensors"]
    assert choose([*others, "mmproj/a-Q8_0.gguf"], "Q8_0", REPOSITORY) == ["mmproj/a-Q8_0.gguf"]
    assert "has no GGUF file" in refused(others, "Q8_0").what


def test_all_parts_of_a_split_model_come_and_the_first_is_opened() -> None:
    files = [PARTS[2], "small-Q2_K.gguf", PARTS[0], PARTS[1]]
    assert choose(files, "Q6_K", REPOSITORY) == PARTS
    assert choose(PARTS[::-1], "", REPOSITORY) == PARTS
    assert models(files) == [PARTS[0], "small-Q2_K.gguf"]


@pytest.mark.parametrize("lost", PARTS)
def test_a_part_that_is_missing_is_named(lost: str) -> None:
    error = refused([part for part in PARTS if part != lost], "Q6_K")
    assert "3 parts" in error.what and lost in error.what


def test_the_number_of_parts_that_are_missing_is_said() -> None:
    assert f"missing {PARTS[1]} and 1 more" in refused(PARTS[:1]).what


def test_several_models_of_a_quant_are_listed_to_choose_from() -> None:
    files = ["7b/a-Q4_K_M.gguf", "13b/a-Q4_K_M.gguf", "7b/a-Q8_0.gguf"]
    for quant in ("", "q4_k_m"):
        hint = refused(files, quant).hint
        assert all(f"hf:{REPOSITORY}/{file}" in hint for file in files[:2]) and "Q8_0" not in hint
    assert choose(files, "q8_0", REPOSITORY) == ["7b/a-Q8_0.gguf"]


def test_a_quant_that_does_not_exist_is_answered_with_those_that_do() -> None:
    error = refused(["a-Q4_K_M.gguf", "mmproj-F16.gguf", *PARTS], "Q5_0")
    assert error.what == f"{REPOSITORY} has no Q5_0"
    assert error.hint == "it has Q4_K_M, Q6_K"


def test_files_without_a_quant_in_their_names_are_listed_whole() -> None:
    assert refused(["model.gguf", "a-Q8_0.gguf"], "Q5_0").hint == (
        f"it has hf:{REPOSITORY}/model.gguf, hf:{REPOSITORY}/a-Q8_0.gguf"
    )


def test_a_repository_without_gguf_files_says_where_to_look() -> None:
    error = refused(["model.safetensors", "config.json"])
    assert "has no GGUF file" in error.what and "-GGUF" in error.hint


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("a-Q4_K_M.gguf", "Q4_K_M"),
        ("x/a.q8_0.gguf", "Q8_0"),
        (PARTS[1], "Q6_K"),
        ("model.gguf", ""),
        ("a-chat.gguf", ""),
        ("a-model_q4_k_m.gguf", "Q4_K_M"),
        ("model_IQ4_XS.gguf", "IQ4_XS"),
    ],
)
def test_the_quant_of_a_file_is_its_last_word_with_a_digit(file: str, quant: str) -> None:
    assert quant_of(file) == quant


def test_a_file_that_is_not_split_is_its_only_part() -> None:
    assert all_parts("a-00001-of-00000.gguf") == ["a-00001-of-00000.gguf"]
    assert all_parts("a.gguf") == ["a.gguf"]
    assert all_parts(PARTS[2]) == PARTS


@pytest.mark.parametrize(
    ("file", "quant", "sure"),
    [
        ("a-BF16.gguf", "F16", False),
        ("a-F16.gguf", "f16", True),
        ("qwen-7b-Q4_K_M.gguf", "q4_k_m", True),
        ("qwen-7b-Q4_K_M.gguf", "7b", True),
        ("qwen-7b-Q4_K_M.gguf", "b", False),
        ("qwen-7b-Q4_K_M.gguf", "M", False),
        ("qwen-7b-Q4_K_M.gguf", "4_K_M", False),
        ("qwen-7b-Q4_K_M.gguf", "gguf", False),
        ("qwen_7b_Q4_K_M.gguf", "Q4_K_M", True),
        ("a-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", True),
        ("Q8_0/a.gguf", "Q8_0", True),
        (PARTS[0], "Q6_K", True),
        (PARTS[0], "00001", False),
    ],
)
def test_a_part_of_a_word_is_surely_no_quant(file: str, quant: str, sure: bool) -> None:
    assert has_quant(file, quant) is sure
