"""Models by a short name: the list that comes with lacli, and the user's own.

One model a line, its columns separated by spaces; lines that begin with # say nothing:

    alias  repository  quant  words

- alias: the name, in small letters or capitals.
- repository: `owner/repo` on the Hugging Face Hub, one file there as `hf:owner/repo/folder/file.gguf`, or a path
  (`~/models/a.gguf`; in quotes where it has spaces; a relative one starts at the list's folder).
- quant: such as Q4_K_M, or - for none.
- words: what it is.

Only the first two are needed in the user's own list, whose entries replace those of the same name. A broken line there
is passed over, so that all other names go on working.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from lacli.errors import LacliError
from lacli.text.files import MAX_RECORD, read_file

LIST = "models.txt"
LINE = re.compile(r'(?P<name>[^\s"]+)\s+(?P<repository>"[^"]+"|[^\s"]+)(?:\s+(?P<rest>.*))?')
NAME = re.compile(r"[\w+][\w.+-]*(?<!\.gguf)")
QUANT = re.compile(r"-|(?:UD-)?(?:(?:I?Q|TQ|FP|MXFP|NVFP)\d\w*|F16|F32|F64|BF16)", re.IGNORECASE)
PREFIX = "hf:"
"""What a name of the hub may begin with."""

PART = r"\w(?:[\w.-]*\w)?"
"""An owner, a repository's name or a quant, as a pattern."""

REPOSITORY = re.compile(rf"(?P<repository>{PART}/{PART})(?::(?P<quant>{PART}))?")
FILE = re.compile(rf"(?P<repository>{PART}/{PART})/(?P<file>[^:]+\.gguf)")
HOW = "a line is: alias repository [quant] [words]"


@dataclass(frozen=True)
class Alias:
    """A model's short name.

    repository: `owner/repo`, `hf:owner/repo/file.gguf` or a path. quant: "" for none. own: from the user's list.
    """

    name: str
    repository: str
    quant: str = ""
    words: str = ""
    own: bool = False


def on_the_hub(text: str) -> re.Match[str] | None:
    """What a text that begins with `hf:` names: its repository and perhaps a quant, or its repository and a file."""
    name = text.removeprefix(PREFIX).lstrip("/")
    return REPOSITORY.fullmatch(name) or FILE.fullmatch(name)


def packaged_list() -> Path:
    """The list that comes with lacli: among the package's data, or at the root of a checkout."""
    package = Path(str(files("lacli")))
    installed = package / "data" / LIST
    return installed if installed.is_file() else package.parent / LIST


def read_aliases(own: Path | None = None, say: Callable[[str], None] | None = None) -> dict[str, Alias]:
    """All aliases by their names in small letters; `own` is the user's list, which need not exist.

    say: is told in a sentence what of that list is broken, and passed over.
    """
    found, broken = read_list(packaged_list())
    assert not broken, broken
    if own is not None and own.exists():
        of_user, broken = read_list(own, own=True)
        found += of_user
    if broken and say is not None:
        others = f" and {len(broken) - 1} more" if broken[1:] else ""
        say(f"passed over: {broken[0].what}{others} ({broken[0].hint})")
    return {alias.name.lower(): alias for alias in found}


def read_list(path: Path, *, own: bool = False) -> tuple[list[Alias], list[LacliError]]:
    """The aliases of one list, in its order, and what is wrong in it: an error that names the line for each."""
    seen: dict[str, int] = {}
    aliases: list[Alias] = []
    broken: list[LacliError] = []
    folder = path.parent.absolute()
    try:
        for number, line in _lines(path):
            try:
                alias = _read_line(line, folder, own=own)
                if first := seen.get(alias.name.lower()):
                    raise ValueError(f"{alias.name} is in line {first} already")
            except ValueError as error:
                broken.append(LacliError(f"{path}, line {number}: {error}", HOW))
                continue
            seen[alias.name.lower()] = number
            aliases.append(alias)
    except LacliError as error:
        broken.append(error)
    return aliases, broken


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = read_file(path, MAX_RECORD).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LacliError(f"{path} is not UTF-8 text", HOW) from error
    except OSError as error:
        raise LacliError(f"cannot read {path}: {error.strerror}", "it is the list of your own model names") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()


def _read_line(line: str, folder: Path, *, own: bool) -> Alias:
    """Raises ValueError saying what is wrong."""
    match = LINE.fullmatch(line)
    if match is None:
        raise ValueError("no repository" if len(line.split()) == 1 else "a quote is not closed")
    if not NAME.fullmatch(match["name"]):
        raise ValueError(f"{match['name']} is no name: letters, digits and . _ + -, no . or - first, no .gguf last")
    words = (match["rest"] or "").split()
    quant = words.pop(0).strip("-") if words and QUANT.fullmatch(words[0]) else ""
    repository = _repository(match["repository"].strip('"'), folder)
    return Alias(match["name"], repository, quant, " ".join(words), own)


def _repository(text: str, folder: Path) -> str:
    if text.startswith(PREFIX):
        if on_the_hub(text):
            return text
        raise ValueError(f"{text} names no model of the hub")
    if ":" not in text and REPOSITORY.fullmatch(text) and not text.endswith(".gguf"):
        return text
    path = Path(os.path.expanduser(text))
    if path.suffix != ".gguf":
        raise ValueError(f"{text} is neither owner/repo nor a .gguf file")
    return str(folder / path)
