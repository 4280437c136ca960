"""Function-preserving expansion: write a bigger llama GGUF that computes the same next token as a small one.

    python -m benchmarks.expand 7b.gguf --shape 7b --type Q4_0
    python -m benchmarks.expand OUT.gguf --small SMALL.gguf --width 512 --layers 12 --head-width 128

The bigger model runs at a real model's cost and says what the small one says, so benchmarks need no download. Types,
the file and the command line are here; why the function stays the same is told in `expansion.py`. Needs gguf, which
`pip install '.[test]'` brings. Exact in real numbers: the text is the small model's up to the rounding of the type.
Tensors are written piece by piece, so that memory does not grow with the model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

try:
    import gguf
except ModuleNotFoundError:
    raise SystemExit("expand: gguf is missing (pip install '.[test]' brings it)") from None
import numpy as np
import numpy.typing as npt

from benchmarks.expansion import ARCHITECTURE, Array, Expansion, Matrix, Norm, Source, changed_metadata
from benchmarks.shapes import SHAPES, Shape, check_fit
from lacli.errors import LacliError, UsageError, reason_of

Bytes = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]
"""Gets the bytes written and those of the whole file."""

SMALL_MODEL = Path(__file__).parent.parent / "tests" / "data" / "stdlib-7m.q8_0.gguf"
TYPES = {
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
NOISE_SCALE = 0.02
"""The standard deviation of the noise, about that of a real model's weights."""

PIECE = 2 << 20
"""Bytes that are written at once."""


@dataclass(frozen=True)
class Weights:
    """A type of weights: the numbers in a block and its bytes."""

    name: str
    tensor_type: gguf.GGMLQuantizationType
    file_type: int
    block: int
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` numbers."""
        return columns // self.block * self.block_bytes

    def encode(self, values: Array) -> Bytes:
        """Rows of numbers as rows of bytes; zeros fill up the last block."""
        padded = np.pad(values, ((0, 0), (0, -values.shape[1] % self.block)))
        encoded = np.ascontiguousarray(gguf.quantize(padded, self.tensor_type))
        return encoded.view(np.uint8).reshape(len(values), -1)


def weights(type_name: str) -> Weights:
    """The type of that name; UsageError for another."""
    if type_name not in TYPES:
        raise UsageError(f"--type {type_name} is unknown", f"choose from {', '.join(TYPES)}")
    tensor_type, file_type = TYPES[type_name]
    return Weights(type_name, tensor_type, file_type, *gguf.GGML_QUANT_SIZES[tensor_type])


class Filling:
    """What stands where nothing of the small model does: zeros, or places of one stretch of noise, encoded once."""

    def __init__(self, kind: Weights, longest_row: int) -> None:
        self._random = np.random.default_rng(0)
        self._zero = kind.encode(np.zeros((1, kind.block), np.float32))
        blocks = 2 * max(PIECE, longest_row) // kind.block_bytes
        noise = self._random.standard_normal((blocks, kind.block), dtype=np.float32) * np.float32(NOISE_SCALE)
        self._noise = kind.encode(noise)

    def fill(self, piece: Bytes, *, noise: bool) -> None:
        """Overwrite all rows of a piece."""
        blocks = piece.reshape(-1, self._zero.shape[1])
        start = int(self._random.integers(len(self._noise) - len(blocks) + 1))
        blocks[:] = self._noise[start : start + len(blocks)] if noise else self._zero


def expand(
    small_path: Path,
    out_path: Path,
    shape: Shape,
    type_name: str,
    context: int | None = None,
    progress: Progress = lambda done, total: None,
) -> int:
    """Write the small model in the bigger shape; matrices get the type, norms stay F32. Returns the file's bytes.

    context: the length it says it was trained on, the small model's if None. LacliError where sizes do not fit, the
    disk is too small or the small model is of another kind; the file appears only when it is whole.
    """
    source, kind = Source(small_path), weights(type_name)
    check_fit(source.shape, shape)
    check_blocks(shape, kind)
    own_context = source.value("llama.context_length")
    if context is not None and context < own_context:
        raise LacliError(f"--context {context} is less than the small model's {own_context}", "a shape can only grow")
    check_disk(out_path, shape, kind)
    changed = changed_metadata(source, shape, kind.file_type, context or own_context)
    part = out_path.with_name(out_path.name + ".part")
    try:
        write(Expansion(source, shape), kind, changed, part, progress)
        size = part.stat().st_size
        os.replace(part, out_path)
    except OSError as error:
        raise LacliError(f"cannot write {out_path}: {reason_of(error)}", "the unfinished file is removed") from error
    finally:
        part.unlink(missing_ok=True)
    return size


def check_blocks(shape: Shape, kind: Weights) -> None:
    """Refuse rows that do not divide into the type's blocks."""
    rows = {"--width": shape.width, "heads * head width": shape.heads * shape.head_width,
            "--feed-forward": shape.feed_forward}  # fmt: skip
    for name, length in rows.items():
        if length % kind.block:
            raise LacliError(f"{name} {length} is not a multiple of {kind.block}", f"{kind.name} needs whole blocks")


def check_disk(out_path: Path, shape: Shape, kind: Weights) -> None:
    """Refuse to begin what the disk has no room for."""
    folder = out_path.resolve().parent
    if not folder.is_dir():
        raise LacliError(f"there is no folder {folder}", "make it first")
    needed, free = shape.parameters // kind.block * kind.block_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise LacliError(f"{out_path} needs {needed / 1e9:.1f} GB and its disk has {free / 1e9:.1f} GB left",
                         "choose another disk, --type or --shape")  # fmt: skip


def write(expansion: Expansion, kind: Weights, changed: dict[str, Any], path: Path, progress: Progress) -> None:
    """Write metadata and the list of tensors, then the tensors, a piece at a time."""
    tensors = list(expansion.tensors())
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    copy_metadata(expansion.source, writer, changed)
    for tensor in tensors:
        if isinstance(tensor, Norm):
            writer.add_tensor_info(tensor.name, tensor.values.shape, tensor.values.dtype, tensor.values.nbytes)
            continue
        size = tensor.rows * kind.row_bytes(tensor.columns)
        shape = (tensor.rows, tensor.columns)
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), size, raw_dtype=kind.tensor_type)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        write_tensors(tensors, kind, writer, progress)
    finally:
        writer.close()


def write_tensors(tensors: list[Matrix | Norm], kind: Weights, writer: gguf.GGUFWriter, progress: Progress) -> None:
    """Write the values in the order of the list, each from a multiple of the file's alignment on."""
    assert writer.fout is not None, "the header is written"
    file: BinaryIO = writer.fout[0]
    matrices = [tensor for tensor in tensors if isinstance(tensor, Matrix)]
    total = sum(matrix.rows * kind.row_bytes(matrix.columns) for matrix in matrices)
    filling = Filling(kind, max(kind.row_bytes(matrix.columns) for matrix in matrices))
    done = 0
    for tensor in tensors:
        writer.write_padding(file, file.tell())
        if isinstance(tensor, Norm):
            file.write(tensor.values.data)
            continue
        for piece in pieces(tensor, kind, filling):
            file.write(piece.data)
            done += piece.nbytes
            progress(done, total)
    writer.write_padding(file, file.tell())


def pieces(matrix: Matrix, kind: Weights, filling: Filling) -> Iterator[Bytes]:
    """Yield the rows of a matrix as bytes, some at a time; each is overwritten by the next."""
    width = kind.row_bytes(matrix.columns)
    count = max(1, PIECE // width)
    buffer = np.empty((count, width), np.uint8)
    own = kind.encode(matrix.own()) if matrix.own else None
    for start in range(0, matrix.rows, count):
        piece = buffer[: min(count, matrix.rows - start)]
        filling.fill(piece, noise=matrix.noise)
        if own is not None and matrix.places is not None:
            places = matrix.places[start : start + len(piece)]
            piece[places >= 0, : own.shape[1]] = own[places[places >= 0]]
        yield piece


def copy_metadata(source: Source, writer: gguf.GGUFWriter, changed: dict[str, Any]) -> None:
    """Write the small model's metadata with the `changed` values in place of its own, or as new keys."""
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue  # the writer makes these itself
        value = changed[key] if key in changed else field.contents()
        writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for key, value in changed.items():
        if isinstance(value, float) and key not in source.fields:
            writer.add_float32(key, value)
        elif key not in source.fields:
            writer.add_uint32(key, value)


def read_command_line() -> argparse.Namespace:
    """The options; a size that is not given is None."""
    parser = argparse.ArgumentParser(description="Write a bigger GGUF that computes the same next token.")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument(
        "--small", type=Path, default=SMALL_MODEL, metavar="SMALL.gguf", help="default: the tests' 7M model"
    )
    parser.add_argument("--shape", choices=SHAPES, help="a real model's sizes; without it the small model's own")
    parser.add_argument("--type", choices=TYPES, default="Q4_0", help="of the weights (default: Q4_0)")
    flags = {"key_value_heads": "--kv-heads"}
    for size in fields(Shape):
        flag = flags.get(size.name, "--" + size.name.replace("_", "-"))
        parser.add_argument(flag, dest=size.name, type=int, metavar="N", help="in place of the shape's")
    parser.add_argument("--context", type=int, metavar="N", help="context length (default: the small model's)")
    return parser.parse_args()


def show_progress(done: int, total: int) -> None:
    """Rewrite a line on a terminal; write nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r{done / 1e9:.2f} of {total / 1e9:.2f} GB", end="" if done < total else "\n", file=sys.stderr)


def main() -> None:
    """Write the file that the command line asks for."""
    arguments = read_command_line()
    begin = perf_counter()
    try:
        base = SHAPES[arguments.shape] if arguments.shape else Source(arguments.small).shape
        given = {size.name: getattr(arguments, size.name) for size in fields(Shape)}
        shape = replace(base, **{name: value for name, value in given.items() if value is not None})
        size = expand(arguments.small, arguments.out, shape, arguments.type, arguments.context, show_progress)
    except LacliError as error:
        print(f"expand: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit("expand: interrupted, nothing is left of the file") from None
    print(
        f"{arguments.out}: {size / 1e9:.2f} GB, {arguments.type}, {perf_counter() - begin:.0f} seconds", file=sys.stderr
    )


if __name__ == "__main__":
    main()
