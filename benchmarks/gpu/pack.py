"""Packing the kit where there is a network: a trimmed llama-cpp-python, wheels of what lacli imports, lacli itself.

The archive holds one folder; unpacked on the other machine it is all that `run.py` needs there.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from benchmarks.expand import SMALL_MODEL
from benchmarks.gpu.build import PACKAGE
from benchmarks.gpu.commands import KitError
from benchmarks.gpu.folders import ROOT
from benchmarks.gpu.trim import is_needed

FOLDER = "lacli-gpu"
LIMIT = 60 * 10**6
"""Bytes that the archive may have."""

OURS = (
    *("lacli", "benchmarks", "models.txt", "pyproject.toml", "LICENSE", "README.md"),
    str(SMALL_MODEL.relative_to(ROOT)),
)
LEFT_OUT = ("__pycache__", "results")
EXTRA = ("gguf>=0.19,<0.20", "jinja2", "diskcache", "typing-extensions")
"""What the expansion and llama-cpp-python import beside lacli's own requirements."""

NEEDLESS = ("hf_xet", "pydantic")
"""Wheels that others require for unused features: downloads, and checking other programs' data."""

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def pack(out: Path, sdist: Path | None, python: str, wanted: str = "all") -> int:
    """Write the archive; returns its bytes. KitError where pip fails or the archive is too large.

    sdist: downloaded before, or None. python: the other machine's version, as 3.12. wanted: which wheels, `all`, `none`
    or names with commas.
    """
    with tempfile.TemporaryDirectory() as folder:
        downloads = Path(folder)
        source = sdist or download_source(downloads)
        wheels = chosen_wheels(downloads / "wheels", python, wanted)
        part = out.with_name(out.name + ".part")
        try:
            with tarfile.open(part, "w:xz", preset=3) as archive:
                add_source(archive, source)
                for wheel in wheels:
                    archive.add(wheel, f"{FOLDER}/wheels/{wheel.name}")
                for path in our_files(ROOT):
                    archive.add(path, f"{FOLDER}/{path.relative_to(ROOT)}")
            size = part.stat().st_size
            if size > LIMIT:
                raise KitError(f"the archive has {size / 1e6:.0f} MB, more than {LIMIT / 1e6:.0f}: pack fewer --wheels")
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    return size


def our_files(root: Path) -> Iterator[Path]:
    """lacli's own files that the other machine needs."""
    for name in OURS:
        path = root / name
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            if file.is_file() and not set(LEFT_OUT) & set(file.relative_to(root).parts):
                yield file


def add_source(archive: tarfile.TarFile, sdist: Path) -> None:
    """Copy what the build needs from the source archive, one member after another."""
    try:
        with tarfile.open(sdist) as source:
            for member in source:
                inner = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                if member.isfile() and inner.parts and is_needed(str(inner)):
                    content = source.extractfile(member)
                    # A long name is a header beside the member's own, and would win over the new one.
                    member.name, member.pax_headers = f"{FOLDER}/{PACKAGE}/{inner}", {}
                    archive.addfile(member, content)
    except (OSError, tarfile.TarError) as error:
        raise KitError(f"cannot read {sdist}: {error}") from error


def download_source(folder: Path) -> Path:
    """The source archive of llama-cpp-python as lacli requires it, from the package index."""
    (wanted,) = (need for need in requirements() if need.startswith("llama-cpp-python"))
    pip("--no-deps", "--no-binary", "llama-cpp-python", "-d", str(folder), wanted)
    return next(folder.glob("llama_cpp_python-*.tar.gz"))


def chosen_wheels(folder: Path, python: str, wanted: str) -> list[Path]:
    """The wheels that go into the archive. KitError where one that is wanted by its name is none of lacli's."""
    if wanted == "none":
        return []
    wheels = {wheel.name.partition("-")[0].lower(): wheel for wheel in download_wheels(folder, python)}
    names = list(wheels) if wanted == "all" else [name.strip().lower().replace("-", "_") for name in wanted.split(",")]
    if unknown := [name for name in names if name not in wheels]:
        raise KitError(f"lacli does not import {', '.join(unknown)}; there are {', '.join(wheels)}")
    return [wheels[name] for name in names]


def download_wheels(folder: Path, python: str) -> list[Path]:
    """Wheels of everything that lacli imports at run time, for x86-64 Linux and that Python."""
    needs = [need for need in requirements() if not need.startswith("llama-cpp-python")]
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    pip(*target, *platforms, "-d", str(folder), *needs, *EXTRA)
    return sorted(wheel for wheel in folder.glob("*.whl") if not wheel.name.startswith(NEEDLESS))


def requirements() -> list[str]:
    """What lacli requires."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: list[str] = tomllib.load(file)["project"]["dependencies"]
    return found


def pip(*arguments: str) -> None:
    """Download with pip."""
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *arguments], stdout=sys.stderr)
    if done.returncode:
        raise KitError(f"pip could not download (exit code {done.returncode}); its words are above")


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive of `pack` into a folder, once; returns the kit's folder in it."""
    kit, mark = folder / FOLDER, folder / f"{archive.name}.unpacked"
    stamp = f"{archive.stat().st_size} {archive.stat().st_mtime_ns}" if archive.is_file() else ""
    if mark.is_file() and mark.read_text() == stamp:
        return kit
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise KitError(f"cannot unpack {archive}: {error}") from error
    mark.write_text(stamp)
    return kit
