"""llama.cpp's example programs llama-lookahead and llama-lookup: one process an answer, statistics on its log."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.rivals.runs import PATIENCE, Patience, RivalRun, environment, failed, shared_flags, tied
from lacli.errors import LacliError, reason_of
from lacli.llamacpp.settings import ModelSettings
from lacli.text.files import Closing

MOST_TRIES = 10
"""The log has a thread of its own, and what that has not written when the process ends is lost: so ask again."""

ENCODED = re.compile(r"encoded +(\d+) tokens in +([\d.]+) seconds")
DECODED = re.compile(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +(\d+\.\d+) t/s")
"""The seconds are rounded to milliseconds, so the speed says them better."""
ACCEPTED = re.compile(r"n_accept += +(\d+)")
DRAFTED = re.compile(r"n_drafted += +(\d+)")
COLOUR = re.compile(rb"\x1b\[[\d;]*m")


class Program(Closing):
    """llama-lookahead or llama-lookup with one model. first_from_prefill: whether it counts the first token, which
    comes out of the prefill, among those that it decoded.
    """

    def __init__(
        self,
        program: Path,
        model: Path,
        model_settings: ModelSettings,
        *,
        offloaded: bool,
        first_from_prefill: bool,
        patience: Patience = PATIENCE,
    ) -> None:
        self._name = program.stem
        self._first_from_prefill = first_from_prefill
        self._seconds = patience.start_s + patience.answer_s
        # Both prefill in one batch.
        flags = ["-b", str(max(model_settings.batch, model_settings.context)), "--temp", "0", "--no-escape"]
        self._command = tied([str(program), *shared_flags(model, model_settings, offloaded=offloaded), *flags])
        self._folder = TemporaryDirectory(prefix="lacli-")

    def answer(self, prompt_text: str, prompt_tokens: Sequence[int], limit: int) -> RivalRun:
        """Decode at least `limit` tokens unless the answer ends before; the program tokenises the text itself.

        Raises LacliError when it fails, takes too long, prints nothing known or reads other tokens in the prompt.
        """
        assert limit > 0
        # A file takes prompts of any length, and no shell or escape changes them.
        file = Path(self._folder.name) / "prompt"
        file.write_bytes(prompt_text.encode())
        # They stop after one token more than -n.
        tokens = limit if self._first_from_prefill else limit - 1
        for _ in range(MOST_TRIES):
            out, log = self._run(["-bf", str(file), "-n", str(tokens)])
            if (run := self._parsed(out, log, prompt_text)) is None:
                continue
            if run.prompt_tokens != len(prompt_tokens):
                raise LacliError(
                    f"{self._name} reads {run.prompt_tokens} tokens in a prompt of {len(prompt_tokens)}",
                    "the numbers would not be comparable; is it of another version of llama.cpp?",
                )
            return run
        raise LacliError(
            f"{self._name} prints no statistics that lacli can read",
            "it may be of another version of llama.cpp; leave it out",
        )

    def close(self) -> None:
        self._folder.cleanup()

    def _run(self, flags: list[str]) -> tuple[bytes, str]:
        """What it wrote: the texts, and the log."""
        try:
            done = subprocess.run(
                [*self._command, *flags],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._seconds,
                env=environment(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LacliError(
                f"{self._name} did not finish within {self._seconds:g} seconds", "ask for fewer tokens with -n"
            ) from error
        except OSError as error:
            raise LacliError(f"{self._name} cannot be started: {reason_of(error)}", "leave it out") from error
        log = done.stderr.decode("utf-8", "replace")
        if done.returncode:
            raise failed(self._name, done.returncode, log)
        return done.stdout, log

    def _parsed(self, out: bytes, log: str, prompt: str) -> RivalRun | None:
        """The statistics of a log, or None where some are missing."""
        encoded, decoded, accepted = ENCODED.search(log), DECODED.search(log), ACCEPTED.search(log)
        drafted = DRAFTED.search(log)
        if not (encoded and decoded and accepted) or (self._first_from_prefill and not drafted):
            return None
        count, speed = int(decoded[1]), float(decoded[2])
        tokens = count - self._first_from_prefill
        # Guesses accepted behind the end of the answer are counted too.
        steps = max(tokens - int(accepted[1]), min(tokens, 1))
        return RivalRun(
            tokens=tokens,
            seconds=count / speed if speed else 0.0,
            steps=steps,
            accepted=int(accepted[1]),
            drafted=int(drafted[1]) if drafted else None,
            prompt_tokens=int(encoded[1]),
            prompt_s=float(encoded[2]),
            text=_text(out, prompt),
        )


def _text(out: bytes, prompt: str) -> str:
    """What was written after the prompt, without the colours of accepted tokens and without the last line breaks."""
    return COLOUR.sub(b"", out).decode("utf-8", "replace").partition(prompt)[2].rstrip("\n")
