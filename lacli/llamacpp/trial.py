"""The program of a trial: decode batches with the bundled model, in a process that may crash (see probe.py)."""

from __future__ import annotations

import gzip
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from lacli.batch import Batch
from lacli.llamacpp.context import LlamaContext
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.settings import CPU, ContextSize, ModelSettings
from lacli.settings import DecodeSettings
from lacli.text.format import counted

ROWS = (1, 2, 16)
"""Rows of the tried batches: one row, a few rows and a whole AMX tile have kernels of their own."""


def main(folder: Path, *, repack: bool) -> None:
    """Decode every batch with the bundled model (recipes/trial.py), a line for each before it begins."""
    with suppress(ImportError):  # Windows has no core dumps
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    path = folder / "trial.gguf"
    path.write_bytes(gzip.decompress((files("lacli") / "data" / "trial.gguf.gz").read_bytes()))
    settings = ModelSettings(context=256, batch=ROWS[-1], gpu_layers=0, repack=repack, devices=(CPU,))
    chain = DecodeSettings(mode="lookup", lookup_draft=ROWS[-1] - 1)
    with LlamaModel(path, settings) as model, LlamaContext(model, settings, ContextSize.of(chain)) as context:
        for rows in ROWS:
            print(counted(rows, "row"), flush=True)
            context.clear()
            assert context.decode(Batch(rows).set_rows(range(rows), range(rows), [(0,)] * rows, [True] * rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), repack=sys.argv[2] == "repack")
