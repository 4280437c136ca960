"""Which GGUF file of a repository is meant: the rule of llama.cpp's -hf, on file names alone.

A wanted quant is found as `quant.` or `quant-` in a file's path, in small letters or capitals; without one it is
Q4_K_M, then Q8_0, then the first file. Files that only accompany a model are passed over, and a split model is all
its parts. Where llama.cpp takes the first of several files that match, this asks. Nothing here touches a disk or the
network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lacli.errors import ModelLoadError

DEFAULTS = ("Q4_K_M", "Q8_0")
"""What is tried where no quant is named."""

COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""In the names of files that go with a model but are none: projectors, importance matrices, draft heads."""

SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
LAST_QUANT = re.compile(r"(?<![^\W_])((?:I?Q|TQ|BF|FP?|MXFP|NVFP)\d\w*)$", re.IGNORECASE)
LAST_WORD = re.compile(r"[-.](\w+)$")


class SeveralModels(ModelLoadError):
    """More than one file is what was asked for."""


def all_parts(name: str) -> list[str]:
    """The names of all parts of a split model of which `name` is one; of any other file its name alone."""
    match = SPLIT.fullmatch(name)
    parts = int(match["parts"]) if match else 0
    if match is None or not parts:
        return [name]
    return [f"{match['stem']}-{part:05d}-of-{parts:05d}.gguf" for part in range(1, parts + 1)]


def models(files: Iterable[str]) -> list[str]:
    """What can be opened as a model, in the files' order; a split model by the name of its first part."""
    return list(dict.fromkeys(all_parts(file)[0] for file in files if _is_model(file)))


def quant_of(file: str) -> str:
    """The quant that a file's name ends in, such as Q4_K_M; empty where the name does not say."""
    stem = _stem(file)
    word = LAST_QUANT.search(stem) or LAST_WORD.search(stem)
    return word[1].upper() if word and re.search(r"\d", word[1]) else ""


def has_quant(file: str, quant: str) -> bool:
    """Whether a file is surely of a quant: its name ends in it, or has it between hyphens, dots and slashes.

    What `find` takes beside those only the hub's whole list can tell, where there may be a better one.
    """
    bounded = re.compile(f"(?<![^/.-]){re.escape(quant)}(?![^/.-])", re.IGNORECASE)
    return quant_of(file) == quant.upper() or bool(bounded.search(_stem(file)))


def _stem(file: str) -> str:
    match = SPLIT.fullmatch(file)
    return match["stem"] if match else file.removesuffix(".gguf")


def find(files: Iterable[str], quant: str) -> list[str]:
    """The models whose names have this quant; those that have it as a whole word, where there are such."""
    pattern = re.compile(re.escape(quant) + "[.-]", re.IGNORECASE)
    found = [file for file in models(files) if pattern.search(file)]
    # F16 is in BF16 too.
    whole = re.compile(r"(?<![^\W_])" + pattern.pattern, re.IGNORECASE)
    return [file for file in found if whole.search(file)] or found


def choose(files: Iterable[str], quant: str, repository: str) -> list[str]:
    """The files to fetch for a quant ("": the default rule) of a repository, the one to open first.

    Raises ModelLoadError where there is no such file, where several match, or where parts are missing.
    """
    files = list(files)
    there = models(files)
    if not there:
        raise ModelLoadError(f"{repository} has no GGUF file", _instead(repository))
    for wanted in (quant,) if quant else DEFAULTS:
        if found := find(files, wanted):
            return with_parts(_only(found, wanted, repository), files, repository)
    if quant:
        raise ModelLoadError(f"{repository} has no {quant}", f"it has {listed(there, repository)}")
    return with_parts(there[0], files, repository)


def with_parts(file: str, files: Iterable[str], repository: str) -> list[str]:
    """All parts of the model that `file` begins. Raises ModelLoadError naming the parts that are not among `files`."""
    parts = all_parts(file)
    if problem := missing_parts(parts, files):
        raise ModelLoadError(f"the model in {repository} {problem}", "choose another quant or repository")
    return parts


def missing_parts(parts: Sequence[str], there: Iterable[str]) -> str:
    """Which of a model's parts are not there, in words; "" where all are."""
    present = set(there)
    missing = [part for part in parts if part not in present]
    others = f" and {len(missing) - 1} more" if missing[1:] else ""
    return f"has {len(parts)} parts, missing {missing[0]}{others}" if missing else ""


def _is_model(file: str) -> bool:
    name = file.rpartition("/")[2]
    return name.endswith(".gguf") and not any(word in name for word in COMPANIONS)


def _only(found: Sequence[str], quant: str, repository: str) -> str:
    if found[1:]:
        choices = ", ".join(f"hf:{repository}/{file}" for file in found)
        raise SeveralModels(f"{repository} has {len(found)} models that are {quant}", f"choose one: {choices}")
    return found[0]


def listed(there: Sequence[str], repository: str) -> str:
    """The quants of a repository, or its files where a name says none."""
    quants = [quant_of(file) for file in there]
    names = quants if all(quants) else [f"hf:{repository}/{file}" for file in there]
    return ", ".join(dict.fromkeys(names))


def _instead(repository: str) -> str:
    owner, _, name = repository.partition("/")
    return f"lacli runs GGUF files: look for {name}-GGUF, from {owner} or others"
