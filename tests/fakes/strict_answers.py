"""Print the tokens of strict answers in several modes as JSON: `python -m tests.fakes.strict_answers MODEL THREADS`.

It is a separate program because ggml chooses its kernels once a process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lacli.engine.load import open_engine
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.settings import DecodeSettings
from tests.loading import generate

LONG = "\n\n".join(f"def step_{n}(self, value):\n    self.total += {n}\n    return value * {n}" for n in range(22))
QUESTIONS = (
    f"Add a docstring to these functions:\n```python\n{LONG}\n```",
    "Show me the source code of `json.dumps`.",
    "Rename the argument `x` to `count` in this function:\n```python\ndef take(x):\n    return [x] * x\n```",
)
MODES = (
    DecodeSettings(mode="plain", strict=True),
    DecodeSettings(mode="jacobi", window=9, strict=True),
    DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5, strict=True),
    DecodeSettings(mode="lookahead", window=0, ngram=3, guesses=9, strict=True),
)
SHORT = (MODES[0], MODES[2])


def main() -> None:
    """Print the answers; with several threads, which are slow on a busy machine, one short answer in two modes."""
    threads = int(sys.argv[2])
    model_settings = ModelSettings(context=1024, gpu_layers=0, threads=threads)
    modes, questions, limit = (MODES, QUESTIONS, 32) if threads == 1 else (SHORT, QUESTIONS[1:2], 12)
    found = []
    for decode_settings in modes:
        with open_engine(
            Path(sys.argv[1]), model_settings, decode_settings, SamplingSettings(seed=7, temp=1.0)
        ) as engine:
            found.append([generate(engine, each, max_tokens=limit).tokens for each in questions])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
