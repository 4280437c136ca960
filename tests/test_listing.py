"""The tables of `lacli list` at several widths, its JSON, and sizes and ages in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from lacli.hub.aliases import Alias, read_aliases
from lacli.llamacpp.gguf import read_header
from lacli.resolve import demo_model
from lacli.shelf.cached import Stored, Unfinished
from lacli.shelf.listing import Shelf, shelf_json, shelf_text
from lacli.text.format import (
    age_in_words,
    count_in_words,
    memory_in_words,
    size_in_words,
    tokens_in_words,
)

NOW = 2_000_000_000.0
DAY = 86_400
LONG = "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF"


def shelf(*extra: Stored, own: bool = False) -> Shelf:
    header = read_header(demo_model())
    stored = [
        Stored(f"{LONG}:Q8_0", Path("/hub/a"), LONG, "a-Q8_0.gguf", (), 4_700_000_000, NOW - 3 * DAY, header),
        Stored("", demo_model(), size=7_948_640, used=NOW, header=header),
        *extra,
    ]
    aliases = dict(read_aliases()) | {"coder": Alias("coder", LONG, "Q8_0", "words " * 12, own)}
    broken_off = [Unfinished("me/a", Path("/hub/b.incomplete"), 1_200_000, NOW - 100)]
    return Shelf(stored, broken_off, aliases, Path("/hub"), Path("/home/me/.config/lacli/models.txt"))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_but_a_single_word(width: int) -> None:
    text = shelf_text(shelf(Stored("me/b:Q4_0", Path("/hub/b"), problem="damaged: cut off", older=10**9)), width, NOW)
    wide = [line for line in text.split("\n") if len(line) > width]
    assert not wide or width < 80
    assert all(
        " " not in line.strip().removesuffix(" (bundled)").removesuffix(", unfinished download") for line in wide
    )


def test_the_whole_list_fits_two_screens_of_80_columns() -> None:
    lines = shelf_text(shelf(), 80, NOW).split("\n")
    assert len(lines) < 50
    for alias in read_aliases().values():
        (line,) = (line for line in lines if line.startswith(f"{alias.name} "))
        assert alias.words.startswith(line.split(None, 1)[1])


def test_what_commits_before_take_is_a_note_below_the_model() -> None:
    lines = shelf_text(shelf(Stored("me/b:Q4_0", Path("/hub/b"), size=1, older=2_000_000_000)), 80, NOW).split("\n")
    (at,) = (index for index, line in enumerate(lines) if line.startswith("me/b:Q4_0"))
    assert lines[at + 1].strip() == "2.0 GB more are of other commits"


def test_without_a_terminal_every_model_and_alias_is_one_line() -> None:
    lines = shelf_text(shelf(), 0, NOW).split("\n")
    (line,) = (line for line in lines if line.startswith(f"{LONG}:Q8_0"))
    assert line.split()[1:] == ["4.7", "GB", "Q8_0", "2048", "3", "days", "ago"]
    for alias in read_aliases().values():
        (line,) = (line for line in lines if line.startswith(f"{alias.name} "))
        assert alias.words in line and line.endswith(f"{alias.repository}:{alias.quant}")


@pytest.mark.parametrize("width", [0, 20, 40, 60, 80, 200])
def test_all_that_is_known_is_shown_at_every_width(width: int) -> None:
    text = " ".join(shelf_text(shelf(), width, NOW).split())
    for part in ("4.7 GB", "3 days ago", "me/a, unfinished download", "1.2 MB", "(bundled)", "models.txt"):
        assert part in text
    for alias in read_aliases().values():
        assert alias.name in text and alias.words in text
        # Where there is no room for the repository, the JSON has it.
        assert f"{alias.repository}:{alias.quant}" in text or (0 < width < 200 and "lacli list --json" in text)


def test_signs_tell_which_aliases_are_on_disk_and_whose_they_are() -> None:
    def signs(of: str, text: str) -> str:
        (line,) = (line for line in text.split("\n") if line.startswith(f"{of} "))
        return line.split()[1]

    text = shelf_text(shelf(own=True), 80, NOW)
    assert signs("coder", text) == "*+"
    assert signs("phi-4", text) == "chat"
    assert "+ of your own" in text
    assert "+ of your own" not in shelf_text(shelf(), 80, NOW)


def test_a_problem_stands_below_its_model() -> None:
    lines = shelf_text(shelf(Stored("me/b:Q4_0", Path("/hub/b"), problem="damaged: cut off")), 80, NOW).split("\n")
    (at,) = (index for index, line in enumerate(lines) if line.startswith("me/b:Q4_0"))
    assert lines[at + 1].strip() == "damaged: cut off"


def test_names_from_files_cannot_control_the_terminal() -> None:
    text = shelf_text(shelf(Stored("me/\x1b[31mb:Q4_0", Path("/hub/b"))), 80, NOW)
    assert "\x1b" not in text


def test_json_has_bytes_names_and_times_in_utc() -> None:
    found = shelf_json(shelf(own=True))
    first, bundled = found["models"]
    assert (first["name"], first["size"], first["type"]) == (f"{LONG}:Q8_0", 4_700_000_000, "Q8_0")
    assert first["last_used"] == "2033-05-15T03:33:20+00:00"
    assert (bundled["name"], bundled["repository"]) == (None, None)
    (alias,) = (each for each in found["aliases"] if each["on_disk"])
    assert (alias["name"], alias["model"], alias["own"]) == ("coder", f"{LONG}:Q8_0", True)
    assert found["unfinished"][0]["size"] == 1_200_000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (5, "just now"),
        (60, "1 minute ago"),
        (2 * 3600 + 5, "2 hours ago"),
        (DAY, "1 day ago"),
        (13 * DAY, "13 days ago"),
        (14 * DAY, "2 weeks ago"),
        (60 * DAY, "2 months ago"),
        (800 * DAY, "2 years ago"),
    ],
)
def test_ages_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert age_in_words(seconds) == words


def test_numbers_are_said_in_their_units() -> None:
    sizes = [size_in_words(size) for size in (0, 1, 4_700_000, 358_339_936, 4_700_000_000, 400_000_000_000)]
    assert sizes == ["0 kB", "1 kB", "4.7 MB", "358 MB", "4.7 GB", "400 GB"]
    assert [memory_in_words(mib) for mib in (0.4, 338.2, 5_530)] == ["0.4 MiB", "338 MiB", "5.4 GiB"]
    assert [tokens_in_words(tokens) for tokens in (0, 512, 32_768, 131_072, 40_960, 100_000)] == [
        "-",
        "512",
        "32k",
        "128k",
        "40k",
        "100000",
    ]
    assert [count_in_words(count) for count in (7_344_384, 630_139_776, 7_615_616_512)] == ["7.3M", "630M", "7.6B"]
