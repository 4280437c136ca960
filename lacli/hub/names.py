"""What the text of a MODEL argument means: a file here, or a model on the Hugging Face Hub.

In this order: a path that exists or can be nothing else; an alias, or `alias:quant`; `hf:owner/repo`,
`hf:owner/repo:quant` or `hf:owner/repo/folder/file.gguf`, or the address of such a page; `owner/repo` or
`owner/repo:quant`. Only words are looked at; whether the hub has the model is `download.py`'s to find out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, unquote

from lacli.errors import ModelLoadError
from lacli.hub.aliases import (
    PREFIX,
    REPOSITORY,
    Alias,
    on_the_hub,
)
from lacli.text.format import offered, suggest

ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/+(?P<name>[^?#]+)\??(?P<query>[^#]*)", re.I)
PAGE = re.compile(r"(?<=/)(?P<repository>[^/]+)/(?:blob|resolve|raw|tree)/(?P<revision>[^/]+)(?=/|$)")
"""What a page's address has between the owner and the file."""

MODEL_IS = "MODEL is a path, owner/repo[:quant] or an alias: lacli list"
LONGEST_SHOWN = 80
MOST_OFFERED = 4


@dataclass(frozen=True)
class HubModel:
    """A model on the hub: its repository (`owner/repo`), and a quant or a file of it where one is named."""

    repository: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        """The name that means this model."""
        if self.file:
            return f"{PREFIX}{self.repository}/{self.file}"
        return f"{self.repository}:{self.quant}" if self.quant else self.repository


def read_name(text: str, aliases: Mapping[str, Alias]) -> Path | HubModel:
    """The path or the hub's model that a MODEL text means; the path may be of a file that does not exist.

    aliases: by their names in small letters. Raises ModelLoadError for a name that means nothing.
    """
    if not text.strip():
        raise ModelLoadError("MODEL is empty", MODEL_IS)
    text = _without_address(text)
    path = Path(os.path.expanduser(text))
    alias = aliases.get(text.lower())
    if _is_path(text) or _is_there(path, but_no_folder=alias is not None):
        return path
    if alias is not None:
        return alias_model(alias)
    if text.startswith(PREFIX):
        return _hub_name(text)
    name, _, quant = text.partition(":")
    if quant and (alias := aliases.get(name.lower())):
        return _alias_with(alias, quant)
    if model := _repository(text):
        return model
    offer = offered(nearest_names(text, aliases))
    raise ModelLoadError(f"no such model: {shortened(text)}", f"{offer} {MODEL_IS}".lstrip())


def alias_model(alias: Alias) -> Path | HubModel:
    """What an alias stands for, whatever lies in the present folder. Raises ModelLoadError for a broken `hf:` name."""
    text = alias.repository
    model = _hub_name(text) if text.startswith(PREFIX) else _repository(text)
    if model is None:
        return Path(text)
    return replace(model, quant=alias.quant) if alias.quant and not model.file else model


def _alias_with(alias: Alias, quant: str) -> HubModel:
    """Another quant of an alias's repository."""
    model = alias_model(alias)
    if not isinstance(model, HubModel) or model.file:
        raise ModelLoadError(f"{alias.name} means one file, {model}: it takes no quant", MODEL_IS)
    if named := _repository(f"{model.repository}:{quant}"):
        return named
    raise ModelLoadError(f"{shortened(quant)} is no quant", "Q4_K_M and Q8_0 are such")


def nearest_names(text: str, aliases: Mapping[str, Alias]) -> list[str]:
    """The aliases that a mistyped name may have meant, those that contain it first."""
    word = text.lower()
    containing = [name for name in aliases if len(word) > 2 and word in name]
    similar = suggest(word, aliases, MOST_OFFERED)
    return [aliases[name].name for name in dict.fromkeys([*containing, *similar])][:MOST_OFFERED]


def shortened(text: str) -> str:
    """The beginning of a text that may be a whole prompt in a model's place."""
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def _without_address(text: str) -> str:
    """`hf:owner/repo...` for the address of a page on the hub; any other text as it is.

    Raises ModelLoadError for the address of another revision than main.
    """
    match = ADDRESS.match(text)
    if match is None:
        return text
    page = PAGE.search(match["name"])
    if page and page["revision"] != "main":
        what = f"{shortened(text)} is of the revision {unquote(page['revision'])}"
        raise ModelLoadError(what, "only main can be named: hf:owner/repo/file.gguf")
    name = unquote(PAGE.sub(r"\g<repository>", match["name"], count=1)).rstrip("/")
    shown = parse_qs(match["query"]).get("show_file_info", [""])[0]
    return f"{PREFIX}{name}/{shown}" if shown else PREFIX + name


def _is_path(text: str) -> bool:
    """Whether a text can mean nothing but a path; one with spaces is a path or a prompt without its -p."""
    if text.startswith(PREFIX):
        return False
    begins = text.startswith((".", "~", "/")) or os.path.isabs(text)
    return not text or begins or "\\" in text or any(char.isspace() for char in text) or text.endswith(".gguf")


def _is_there(path: Path, *, but_no_folder: bool) -> bool:
    try:
        return path.is_file() if but_no_folder else path.exists()
    except (OSError, ValueError):  # too long for a path, or with a zero in it
        return False


def _repository(text: str) -> HubModel | None:
    match = REPOSITORY.fullmatch(text)
    return HubModel(match["repository"], match["quant"] or "") if match else None


def _hub_name(text: str) -> HubModel:
    if match := on_the_hub(text):
        return HubModel(**match.groupdict(default=""))
    raise ModelLoadError(
        f"{shortened(text)} names no model of the hub", "hf:owner/repo, hf:owner/repo:quant or hf:owner/repo/file.gguf"
    )
