"""The output of `lacli list` at several widths of a terminal, in a pipe and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from lacli.hub.cache import LocalModel
from lacli.hub.names import Alias, alias_model, read_aliases
from lacli.hub.report import Inventory, inventory_json, inventory_text, running_memory, take_inventory
from lacli.llamacpp.gguf import read_header
from tests.fakes import hub_cache
from tests.loading import STDLIB_7M, smollm2

NOW = 2_000_000_000.0
DAY = 86_400
LONG = "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF"


def inventory(*extra: LocalModel) -> Inventory:
    header = read_header(STDLIB_7M)
    models = [
        LocalModel(f"{LONG}:Q8_0", Path("/hub/a"), LONG, "a-Q8_0.gguf", 4_700_000_000, NOW - 3 * DAY, header),
        LocalModel("smollm2-135m", smollm2(), size=98_362_432, last_used=NOW - DAY, header=read_header(smollm2())),
        *extra,
    ]
    aliases = dict(read_aliases()) | {"coder": Alias("coder", LONG, "Q8_0", "words " * 12)}
    return Inventory(models, aliases, Path("/hub"), Path("/home/me/.config/lacli/models.txt"))


def line_of(name: str, shown: str) -> str:
    """Return an alias's line. It is the first with this name; models below the aliases may have it too."""
    return next(line for line in shown.split("\n") if line.split()[:1] == [name])


@pytest.mark.parametrize("width", [0, 80, 300])
def test_all_that_is_known_is_shown_and_no_alias_is_wider_than_the_terminal(width: int) -> None:
    damaged = LocalModel("me/\x1b[31m[bold]b:Q4_0", Path("/hub/b"), problem="damaged: cut off")
    shown = inventory_text(inventory(damaged), width, NOW)
    assert "\x1b" not in shown and "me/␛[31m[bold]b:Q4_0" in shown, "names from files cannot control the terminal"
    aliases, *_ = shown.split("\n\n")
    assert not width or max(map(len, aliases.split("\n"))) <= width
    words = " ".join(shown.split())
    for part in ("4.7 GB", "3 days ago", "1 day ago", "damaged: cut off", "smollm2-135m", "models.txt", "42.5 GB"):
        assert part in words
    for alias in read_aliases().values():
        assert alias.words in line_of(alias.name, shown), "in one line"
        assert width == 80 or line_of(alias.name, shown).endswith(str(alias_model(alias)))
    if not width:
        model = ["4.7", "GB", "16.2", "MB", "Q8_0", "2,048", "3", "days", "ago"]
        assert line_of(f"{LONG}:Q8_0", shown).split()[1:] == model


def test_json_has_bytes_names_and_times_in_utc() -> None:
    found = inventory_json(inventory())
    first, installed = found["models"]
    assert first["memory"] == running_memory(read_header(STDLIB_7M))
    assert (first["name"], first["size"], first["type"]) == (f"{LONG}:Q8_0", 4_700_000_000, "Q8_0")
    assert first["last_used"] == "2033-05-15T03:33:20+00:00"
    assert (installed["name"], installed["repository"], installed["problem"]) == ("smollm2-135m", None, None)
    _, alias = (each for each in found["aliases"] if each["on_disk"])
    assert (alias["name"], alias["model"], alias["size"]) == ("coder", f"{LONG}:Q8_0", first["size"])
    (absent,) = (each for each in found["aliases"] if each["name"] == "llama-3.1-8b")
    assert (absent["size"], absent["memory"]) == (4_900_000_000, 6_000_000_000)


def test_aliases_find_their_models_and_the_installed_one_is_there(cache: Path, model: Path, tmp_path: Path) -> None:
    link = hub_cache.add(cache, "me/a", "a-Q8_0.gguf", model)
    own = tmp_path / "models.txt"
    own.write_text(f"yes me/a Q8_0\nany me/a\nno me/a Q4_0\nmine {model}\ngone {model}x.gguf\n")
    found = take_inventory(own)
    assert [(each.name, each.path) for each in found.models] == [
        ("me/a:Q8_0", link),
        ("smollm2-135m", smollm2()),
        ("mine", model),
    ]
    here = {name for name, alias in found.aliases.items() if found.here(alias)}
    assert here == {"yes", "any", "mine", "smollm2-135m"}
