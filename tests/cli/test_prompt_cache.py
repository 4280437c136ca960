"""--prompt-cache in run, chat and --prompts: files, messages and answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.program import call

FILE = "def area(width, height):\n    return width * height\n" * 8
SIZES = ("-n", "6", "-c", "2048", "--mode", "plain")


@pytest.fixture
def kept(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of a file to ask about and of a prompt cache, which does not exist yet."""
    (tmp_path / "area.py").write_text(FILE)
    return str(tmp_path / "area.py"), str(tmp_path / "notes.cache")


def test_a_second_question_about_a_file_reads_the_question_alone(kept: tuple[str, str]) -> None:
    file, cache = kept
    first = call("run", "-f", file, "-p", "What is area?", *SIZES, "--prompt-cache", cache)
    assert re.search(r"^lacli: notes.cache keeps [\d,]+ tokens, .+ can read the text$", first.err, re.MULTILINE)
    asked = ("run", "-f", file, "-p", "What is width?", *SIZES, "--json")
    with_cache = call(*asked, "--prompt-cache", cache, "--prompt-cache-ro")
    found, fresh = json.loads(with_cache.out), json.loads(call(*asked).out)
    assert found["tokens"] == fresh["tokens"] and found["prompt_n"] - found["cache_n"] < 30 < found["cache_n"]
    line = f"lacli: {found['cache_n']:,} of {found['prompt_n']:,} tokens were in notes.cache, "
    assert line in with_cache.err and "keeps" not in with_cache.err
    # A system prompt, another template or none change the tokens.
    for flags in (("-sys", "Be brief."), ("--chat-template", "chatml"), ("--raw",)):
        changed, plain = (json.loads(call(*asked, *flags, *more).out) for more in (("--prompt-cache", cache), ()))
        assert changed["tokens"] == plain["tokens"]


def test_a_saved_chat_goes_on_with_its_cache_without_a_further_word(kept: tuple[str, str], tmp_path: Path) -> None:
    file, cache = kept
    chat = ("chat", "--commands", *SIZES, "--stats")
    saved = tmp_path / "chat.json"
    said = f"/read {file}\nWhat is area?\nAnd width?\n/save {saved}\n".encode()
    first = call(*chat, "--prompt-cache", cache, stdin=said)
    assert first.code == 0 and first.err.count("keeps") == 1, first.err
    written = Path(cache).read_bytes()
    loaded = call("chat", "--commands", "--stats", "--load", str(saved), stdin=b"And height?\n")
    brought = re.search(r"([\d,]+) of ([\d,]+) tokens were in notes.cache", loaded.err)
    assert loaded.code == 0 and brought, loaded.err
    assert int(brought[2]) - int(brought[1]) < 40 < int(brought[1])
    plain = json.loads(saved.read_text().splitlines()[0])
    assert plain["prompt_cache"] == cache
    # The file now has the new turn, and a chat without the file gives the same answer.
    assert Path(cache).read_bytes() != written
    Path(cache).unlink()
    again = call("chat", "--commands", "--load", str(saved), stdin=b"And height?\n")
    assert again.out == loaded.out and "notes.cache" not in again.err and not Path(cache).exists()
