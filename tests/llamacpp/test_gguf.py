"""The header of a GGUF file, compared with the gguf package's reader and with llama.cpp's loader."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest

from lacli.errors import ModelLoadError
from lacli.llamacpp.gguf import parts, read_header
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import ModelSettings
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M

CPU = ModelSettings(gpu_layers=0, threads=1)

WRITERS: list[Callable[[Path], None]] = [
    tiny_models.write_llama,
    tiny_models.write_gemma_swa,
    tiny_models.write_mamba,
    tiny_models.write_lfm2,
]


@pytest.mark.parametrize("write", WRITERS)
def test_the_header_says_what_llama_cpp_finds_when_it_loads_the_model(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write(path)
    header = read_header(path)
    with LlamaModel(path, CPU) as model:
        assert header.architecture == model.description.split()[0]
        assert header.parameters == model.parameters
        assert 0 <= header.weights - model.size < 4096, "only the tensors' padding may differ"
        assert (header.trained_tokens, header.vocabulary) == (model.trained_tokens, model.vocabulary)
        assert header.template == model.chat_template
    assert (header.file_type, header.size) == ("F32", path.stat().st_size)
    assert header.kv_heads == (0, 1, 0) or write is not tiny_models.write_lfm2


def test_keys_are_what_the_gguf_package_reads() -> None:
    header, reader = read_header(STDLIB_7M), gguf.GGUFReader(STDLIB_7M)

    def value(key: str) -> object:
        return reader.fields[key].contents()

    assert header.name == value("general.name")
    assert header.layers == value("llama.block_count")
    assert header.embedding == value("llama.embedding_length")
    assert header.heads == (value("llama.attention.head_count"),)
    assert header.kv_heads == (value("llama.attention.head_count_kv"),)
    width = header.embedding // header.heads[0]
    assert header.cell_values == 2 * width * header.kv_heads[0] * header.layers
    assert header.parameters == sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert header.file_type == gguf.LlamaFileType(int(str(value("general.file_type")))).name.removeprefix("MOSTLY_")


def test_the_header_of_a_split_model_counts_all_parts_whichever_is_named(tmp_path: Path, tiny: Path) -> None:
    files, whole = tiny_models.write_llama_split(tmp_path), read_header(tiny)
    for file in files:
        header = read_header(file)
        assert parts(file) == files and header.size == sum(each.stat().st_size for each in files)
        assert (header.parameters, header.template) == (whole.parameters, whole.template)


def _written(path: Path, file_type: int | None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_string("llama.context_length", "not a number")
    writer.add_array("llama.attention.head_count", ["neither", "is this"])
    writer.add_uint32("general.name", 7)
    half, single = gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.F32
    writer.add_tensor_info("large", [64, 64], np.dtype(np.float16), 64 * 64 * 2, half)
    writer.add_tensor_info("small", [8], np.dtype(np.float32), 32, single)
    writer.add_tensor_info("smaller", [4], np.dtype(np.float32), 16, single)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:
        file.write(bytes(64 * 64 * 2 + 256))
    return path


@pytest.mark.parametrize(("number", "name"), [(7, "Q8_0"), (1024 + 15, "Q4_K_M"), (999, "F16"), (None, "F16")])
def test_the_type_is_named_as_in_llama_h_or_is_the_type_of_most_parameters(
    number: int | None, name: str, tmp_path: Path
) -> None:
    header = read_header(_written(tmp_path / "a.gguf", number))
    assert header.file_type == name
    assert (header.trained_tokens, header.heads, header.name, header.template) == (0, (), "7", ""), (
        "keys of wrong types do no harm"
    )


@pytest.mark.parametrize("kept", [0, 10, 5_000])
def test_a_file_that_is_cut_off_cannot_be_read(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    tiny_models.write_llama(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelLoadError, match="cut.gguf"):
        read_header(path)


def test_a_damaged_header_is_an_error_or_another_header(tmp_path: Path) -> None:
    """Each byte of the header is changed alone, in a file of a few hundred bytes."""
    raw = _written(tmp_path / "whole.gguf", 7).read_bytes()
    header = raw.index(b"smaller") + 40
    for at in range(header):
        for byte in (1, 0xFF):
            (tmp_path / "a.gguf").write_bytes(raw[:at] + bytes([byte]) + raw[at + 1 :])
            with suppress(ModelLoadError):
                read_header(tmp_path / "a.gguf")
