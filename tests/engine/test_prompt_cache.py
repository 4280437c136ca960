"""Prompt caches: saved tokens are not decoded again, and no file makes an answer wrong."""

from __future__ import annotations

import os
import resource
import signal
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lacli
from lacli import DecodeSettings, ModelSettings
from lacli.batch import from_tokens
from lacli.engine import prompt_cache
from lacli.engine.load import open_engine
from lacli.engine.prompt_cache import PromptCache, key_of, load_slot, save_slot
from lacli.errors import LacliError, PromptError, UsageError
from lacli.llamacpp.context import DecodingContext
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M

SETTINGS = ModelSettings(context=512, threads=1, gpu_layers=0)
PLAIN = DecodeSettings(mode="plain")
TEXT = "the thing and the rest of the section " * 6

WRITERS: dict[str, Callable[[Path], None]] = {
    "attention": tiny_models.write_llama,
    "a sliding window": tiny_models.write_gemma_swa,
    "a recurrent state": tiny_models.write_mamba,
    "both": tiny_models.write_lfm2,
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    tiny_models.write_llama(path := tmp_path / "tiny.gguf")
    return path


def ask(
    model: Path,
    prompt: Sequence[int],
    cache: Path | None = None,
    settings: ModelSettings = SETTINGS,
    decode_settings: DecodeSettings = PLAIN,
    *,
    read_only: bool = False,
) -> tuple[tuple[int, ...], int, list[str]]:
    """Return an answer's tokens, the number of reused prompt tokens, and the messages about the cache."""
    said: list[str] = []
    with open_engine(model, settings, decode_settings) as engine:
        if cache:
            engine.cache = PromptCache(cache, engine, said.append, read_only=read_only)
        text, pieces = engine.generate(prompt, 12)
        for _ in pieces:
            pass
        found = text.answer()
    return found.tokens, found.statistics.reused_tokens, said


def tokens_of(model: Path, text: str = TEXT) -> list[int]:
    with open_engine(model, SETTINGS, PLAIN) as engine:
        return engine.model.tokenize(text)


@pytest.mark.parametrize("mode", ["plain", "auto"])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_prompt_goes_on_after_a_files_tokens_and_a_different_one_is_answered_as_without_it(
    kind: str, mode: str, tmp_path: Path
) -> None:
    model, cache, settings = tmp_path / "model.gguf", tmp_path / "a.cache", DecodeSettings(mode=mode)  # type: ignore[arg-type]
    WRITERS[kind](model)
    prompt = tokens_of(model)
    assert len(prompt) > 2 * tiny_models.SLIDING_WINDOW
    answer, reused, said = ask(model, prompt, cache, SETTINGS, settings)
    assert reused == 0 and said[0].startswith(f"a.cache keeps {len(prompt) + len(answer) - 1} tokens, ")
    longer, other = [*prompt, *answer, 5, 6, 7], [*prompt[:-9], 9, 8, 7]
    found, reused, said = ask(model, longer, cache, SETTINGS, settings)
    assert found == ask(model, longer, None, SETTINGS, settings)[0]
    assert reused == len(prompt) + len(answer) - 1
    assert said[0].startswith(f"{reused} of {len(longer)} tokens were in a.cache, ")
    found, reused, said = ask(model, other, cache, SETTINGS, settings, read_only=True)
    assert found == ask(model, other, None, SETTINGS, settings)[0]
    # A file lacks the cells that a sliding window has dropped, and a recurrent state cannot be cut back.
    assert reused == (len(prompt) - 9 if kind == "attention" else 0)
    assert ("needs all tokens of the file" in said[0]) == (kind != "attention")


def rows_after(context: DecodingContext, prompt: Sequence[int]) -> np.ndarray:
    """Decode the last token, with the other tokens in the cache; return its logits."""
    batch = from_tokens(prompt[-1:], len(prompt) - 1)
    batch.outputs[0], batch.wanted = 1, 1
    assert context.decode(batch)
    return context.logits().copy()


@pytest.mark.parametrize("types", ["f16", "f32", "bf16", "q8_0", "q4_0", "q5_1", "iq4_nl"])
def test_a_restore_keeps_the_logits_to_the_bit(types: str, tiny: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, cache_type_k=types, cache_type_v=types, flash_attention="on")
    prompt = tokens_of(tiny)
    with open_engine(tiny, settings, DecodeSettings(mode="lookahead")) as engine:
        context, slot, key = engine.context, engine.admission.slot(), key_of(engine)
        assert isinstance(context, DecodingContext)
        assert context.decode(from_tokens(prompt[:-1], 0))
        slot.tokens, slot.past = prompt, len(prompt) - 1
        size = save_slot(engine, slot, tmp_path / "a", key)
        before = rows_after(context, prompt)
        engine.admission.refill(slot, [])
        assert load_slot(engine, slot, tmp_path / "a", key) == size == (tmp_path / "a").stat().st_size
        assert slot.past == len(prompt) - 1 and (rows_after(context, prompt) == before).all()


def test_a_restored_recurrent_state_is_not_rolled_back_by_a_step_before_it(tmp_path: Path) -> None:
    tiny_models.write_lfm2(tmp_path / "model.gguf")
    with open_engine(tmp_path / "model.gguf", SETTINGS, DecodeSettings(mode="lookup")) as engine:
        context, slot, key = engine.context, engine.admission.slot(), key_of(engine)
        assert isinstance(context, DecodingContext) and context.max_rollback > 1
        assert context.decode(from_tokens([5, 6, 7, 8], 0))
        slot.tokens, slot.past = [5, 6, 7, 8], 4
        save_slot(engine, slot, tmp_path / "a", key)
        load_slot(engine, slot, tmp_path / "a", key)
        assert slot.past == 4 and not context.remove(0, 3, -1)
        slot.cut(3)
        assert slot.past == 0


def altered(path: Path) -> Path:
    """Copy a model with other signs of some weights in the middle of the file, and one nanosecond newer."""
    other, raw, times = path.parent / "other" / path.name, bytearray(path.read_bytes()), path.stat()
    other.parent.mkdir()
    middle = len(raw) // 2
    raw[middle + 3 : middle + 403 : 4] = [byte ^ 0x80 for byte in raw[middle + 3 : middle + 403 : 4]]
    other.write_bytes(raw)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    return other


def test_another_model_library_or_setting_is_read_anew_with_a_sentence_and_replaces_the_file(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, cache = tokens_of(tiny), tmp_path / "a.cache"
    quantised = replace(SETTINGS, cache_type_k="q8_0")
    strict = DecodeSettings(mode="plain", strict=True)
    for model, settings, decode_settings, what in (
        (altered(tiny), SETTINGS, PLAIN, "content"),
        (tiny, quantised, PLAIN, "cache_type_k"),
        (tiny, replace(SETTINGS, flash_attention="on"), PLAIN, "flash_attention"),
        (tiny, replace(SETTINGS, repack=False), PLAIN, "repack"),
    ):
        ask(tiny, prompt, cache)
        found, reused, said = ask(model, prompt, cache, settings, decode_settings)
        assert (found, reused) == (ask(model, prompt, None, settings, decode_settings)[0], 0)
        assert said[0] == f"a.cache was saved with another {what} (use a new file): everything is read anew"
        assert ask(model, prompt, cache, settings, decode_settings)[1] == len(prompt) - 1
        cache.unlink()
    like_strict = replace(SETTINGS, flash_attention="on", cache_type_k="q8_0", cache_type_v="q8_0")
    ask(tiny, prompt, cache, like_strict)
    assert ask(tiny, prompt, cache, like_strict, strict)[2][0].startswith("a.cache was saved with another --strict")
    ask(tiny, prompt, cache)
    monkeypatch.setattr("lacli.auto.model_cost.build_files", lambda: [("another",)])
    assert ask(tiny, prompt, cache)[2][0].startswith("a.cache was saved with another library (use a new file): ")


def test_weights_that_differ_in_the_middle_of_a_large_file_are_another_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lacli.text.records.HASHED", 64)
    prompt, cache = tokens_of(tiny), tmp_path / "a.cache"
    ask(tiny, prompt, cache)
    other = altered(tiny)
    found, reused, said = ask(other, prompt, cache)
    assert (found, reused) == (ask(other, prompt)[0], 0)
    assert "another time of the model's file" in said[0]


def test_positions_that_a_longer_context_scales_otherwise_are_another_key(tiny: Path) -> None:
    keys = []
    with open_engine(tiny, SETTINGS, PLAIN) as engine:
        for engine.model.scaled_from in (0, 512, 511):
            keys.append(key_of(engine))
    assert keys[0] == keys[1] != keys[2]


def test_a_damaged_file_and_any_other_is_refused_in_one_line_and_stays(tiny: Path, tmp_path: Path) -> None:
    prompt, cache = tokens_of(tiny), tmp_path / "a.cache"
    ask(tiny, prompt, cache)
    raw = cache.read_bytes()
    line = raw.index(b"\n")
    # The places are in the format, the key, the tokens, the state and the checksum.
    places = (12, 60, line - 9, line + (len(raw) - line) // 2, len(raw) - 1)
    damaged = [raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :] for at in places for bit in (0, 7)]
    parts = [raw[:size] for size in (len(raw) - 1, len(raw) - 4, line + 3, line, 40, 0)]
    for wrong in (*damaged, *parts, b"notes", b'{"format": "lacli prompt cache", ', b"\n" * 99):
        cache.write_bytes(wrong)
        with pytest.raises(PromptError, match="a.cache is no prompt cache, or a damaged one") as caught:
            ask(tiny, prompt, cache)
        assert caught.value.exit_code == 1 and "\n" not in str(caught.value)
        assert cache.read_bytes() == wrong


@pytest.mark.parametrize("name", ["/dev/null", "/", "missing/a.cache"])
def test_a_path_that_cannot_hold_a_file_is_refused_before_anything_is_read(
    name: str, tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(LacliError, match="is no prompt cache|cannot read|cannot write in"):
        ask(tiny, [5, 6, 7], tmp_path / name)


def test_a_folder_that_cannot_be_written_is_said_at_once_unless_the_file_is_only_read(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, cache = tokens_of(tiny), tmp_path / "a.cache"
    ask(tiny, prompt, cache)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(LacliError, match="cannot write in"):
        ask(tiny, prompt, cache)
    assert ask(tiny, prompt, cache, read_only=True)[1] == len(prompt) - 1


@pytest.mark.parametrize("call", ["os.fsync", "os.replace"])
def test_a_write_that_breaks_off_leaves_the_old_file_and_says_why(
    call: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, cache = tokens_of(tiny), tmp_path / "caches" / "a.cache"
    cache.parent.mkdir()
    ask(tiny, prompt, cache)
    before = cache.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(LacliError, match="cannot write .*a.cache: No space left"):
        patched.setattr(call, full)
        ask(tiny, [*prompt, 5, 6], cache)
    assert cache.read_bytes() == before and [*cache.parent.iterdir()] == [cache]
    assert ask(tiny, prompt, cache)[1] == len(prompt) - 1


@pytest.mark.parametrize("moment", ["in the middle", "os.fsync", "os.replace"])
def test_a_program_that_is_killed_while_it_writes_leaves_the_old_file(moment: str, tiny: Path, tmp_path: Path) -> None:
    prompt, cache = tokens_of(tiny), tmp_path / "a.cache"
    ask(tiny, prompt, cache)
    before = cache.read_bytes()
    with open_engine(tiny, SETTINGS, PLAIN) as engine:
        slot, key = engine.admission.slot(), key_of(engine)
        load_slot(engine, slot, cache, key)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads only wait, and the child ends at once
            child = os.fork()
        if not child:
            try:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                if moment == "in the middle":
                    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before)))
                else:
                    setattr(os, moment.removeprefix("os."), lambda *_: os.kill(os.getpid(), signal.SIGKILL))
                save_slot(engine, slot, cache, key)
            finally:
                os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) in (signal.SIGKILL, signal.SIGXFSZ)
    assert cache.read_bytes() == before
    assert ask(tiny, prompt, cache)[1] == len(prompt) - 1


def test_a_full_disk_is_noticed_before_the_write_and_the_answer_is_there(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, answered = tmp_path / "a.cache", []
    monkeypatch.setattr(prompt_cache, "free_disk", lambda folder: 1000)
    with pytest.raises(LacliError, match=r"a.cache takes \d+ kB, and 1 kB are free"):  # noqa: SIM117
        with open_engine(tiny, SETTINGS, PLAIN) as engine:
            engine.cache = PromptCache(cache, engine, print)
            text, pieces = engine.generate(engine.model.tokenize(TEXT), 4)
            answered = [*pieces]
            assert text.answer().tokens
    assert answered and not cache.exists()
    engine.close()


def test_a_file_is_for_its_owner_and_written_again_only_if_it_gets_longer_or_was_of_little_use(
    tiny: Path, tmp_path: Path
) -> None:
    prompt, cache = tokens_of(tiny), tmp_path / "a.cache"
    ask(tiny, prompt, cache)
    assert cache.stat().st_mode & 0o777 == 0o600
    written = cache.stat().st_mtime_ns
    assert len(ask(tiny, [*prompt[:-1], 7], cache)[2]) == 1 and cache.stat().st_mtime_ns == written
    assert ask(tiny, [*prompt, 7, 7, 7], cache, read_only=True)[2][0].startswith(f"{len(prompt)} of ")
    assert cache.stat().st_mtime_ns == written
    assert ask(tiny, [7, *prompt[:50]], cache)[2][1].startswith("a.cache keeps 62 tokens")


def test_more_tokens_than_the_context_has_are_read_anew(tiny: Path, tmp_path: Path) -> None:
    cache, long = tmp_path / "a.cache", tokens_of(tiny, TEXT * 3)[:300]
    ask(tiny, long, cache)
    found, reused, said = ask(tiny, long[:200], cache, replace(SETTINGS, context=256))
    assert (found, reused) == (ask(tiny, long[:200], None, replace(SETTINGS, context=256))[0], 0)
    assert "no room for 311 saved tokens" in said[0]


def test_of_several_copies_no_state_is_kept(tiny: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, replicas=2, devices=("CPU",))
    with pytest.raises(UsageError, match="one copy of a model"):
        ask(tiny, [5, 6, 7], tmp_path / "a", settings, DecodeSettings(mode="lookahead"))


def test_a_programs_model_goes_on_with_what_another_has_read_and_its_slots_share_it(tmp_path: Path) -> None:
    question, cache = "How do I make a path? " * 9, tmp_path / "a.cache"
    notes: list[str] = []
    answers = []
    for prompt_cache_ in (None, cache, cache):
        with lacli.load(STDLIB_7M, threads=1, context=1024, prompt_cache=prompt_cache_) as model:
            answers.append(model.generate([question, question + "And more?"], max_tokens=8))
            notes += model.engine.notes
    assert {tuple(each.text for each in pair) for pair in answers} == {tuple(each.text for each in answers[0])}
    first, second = answers[2]
    assert min(first.statistics.reused_tokens, second.statistics.reused_tokens) > 50
    assert any("tokens were in a.cache" in note for note in notes)
