"""Texts as token ids that are kept between runs, so that what was said before can be guessed: a file a model.

Only where the user asks for it, since the files tell what was asked and answered. Several processes may add to a file
at once, and one may be killed while it does. What is guessed from the texts is `kept.py`'s affair; the folder is the
caller's choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from errno import EFBIG
from hashlib import sha256
from io import BufferedRandom, BufferedWriter
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from lacli.cost.store import content_hash, digest_of, readable
from lacli.errors import reason_of
from lacli.llamacpp.gguf import GgufFile, parts
from lacli.modes import common_prefix
from lacli.settings import DecodeSettings
from lacli.text.files import UnfitFile, read_file
from lacli.text.format import counted

Tokens = npt.NDArray[np.int32]

MOST = 1_000_000
"""Tokens that a file may have, 4 MB; when they are more, the newest half stays."""

PATIENCE = 2.0
"""Seconds that another process may take to add a text."""

MAGIC = b"lacliTXT"
FORMAT = 1

HEADER = Struct("<8sI32s")
"""Magic, format and the key's digest."""

RECORD = Struct("<III")
"""What stands before the tokens of a text: how many they are, their crc32, and the crc32 of these two numbers."""


@dataclass(frozen=True)
class StoreKey:
    """Whose texts they are. model: the file's name, size: its bytes, content: a hash of its ends.

    vocabulary: how many tokens it knows, pieces: a hash of what they say.
    """

    model: str
    size: int
    content: str
    vocabulary: int
    pieces: str

    @property
    def file_name(self) -> str:
        """A name that tells the model to a person and the key to the program."""
        return f"{readable(self.model)}-{digest_of(asdict(self))[:16]}.texts"

    @property
    def header(self) -> bytes:
        """How a file of this key begins."""
        return HEADER.pack(MAGIC, FORMAT, bytes.fromhex(digest_of(asdict(self))))


def store_key(path: Path) -> StoreKey:
    """What the texts of a model file are kept under. Raises ModelLoadError when its header cannot be read."""
    with GgufFile(parts(path)[0]) as file:
        pieces = file.texts("tokenizer.ggml.tokens")
    lengths = np.array([len(piece) for piece in pieces], "<i4").tobytes()
    return StoreKey(
        path.name, path.stat().st_size, content_hash(path), len(pieces), sha256(lengths + b"".join(pieces)).hexdigest()
    )


class Contents(NamedTuple):
    """What is in a file. end: bytes up to the end of its last whole text. trouble: what is wrong with it, or ''."""

    texts: list[Tokens]
    end: int
    trouble: str = ""


class TextStore:
    """A file of texts, the oldest first; it is made, for its owner alone, when the first one is added.

    texts: those that were there when it was opened.
    """

    def __init__(self, path: Path, key: StoreKey, most: int = MOST) -> None:
        self.texts: list[Tokens] = []
        self._path = path
        self._key = key
        self._most = most
        self._last: Sequence[int] = ()
        self._ended = False

    def open(self) -> list[str]:
        """Read the texts, and mend a file that is damaged or another's; sentences about what was wrong."""
        try:
            contents = self._read()
            self.texts = contents.texts
            if not contents.trouble:
                return []
            left = f"{counted(len(self.texts), 'text')} {'is' if len(self.texts) == 1 else 'are'} left"
            kept = left if self.texts else "it begins anew"
            note = f"the store {self._path} {contents.trouble}: {kept}"
            with self._alone():
                # Another process may have mended it, or added to it.
                contents = self._read()
                if contents.trouble:
                    self._replace(contents.texts)
            return [note]
        except (OSError, NotImplementedError) as error:
            self._ended = True
            return [f"the store {self._path} cannot be used: {_why(error)}"]

    def add(self, tokens: Sequence[int]) -> str:
        """Keep a text; the reason where that is not possible, once, otherwise ''.

        Of a text that begins as the one added before it, as in a conversation, only the rest is added.
        """
        new = np.array(tokens[common_prefix(self._last, tokens) :], "<i4")
        self._last = tokens
        if self._ended or not len(new):
            return ""
        try:
            with self._alone():
                self._append(new)
        except (OSError, NotImplementedError) as error:
            self._ended = True
            return f"this text is not kept in {self._path}: {_why(error)}"
        return ""

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from writing."""
        from filelock import FileLock

        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(self._path.with_suffix(".lock"), timeout=PATIENCE, mode=0o600):
            yield

    def _append(self, new: Tokens) -> None:
        contents = self._read()
        if any(np.array_equal(text, new) for text in contents.texts):
            return
        texts = [*contents.texts, new]
        many = sum(map(len, texts)) > self._most
        if many or contents.trouble or not contents.end:
            self._replace(_newest(texts, self._most // 2) if many else texts)
            return
        with self._path.open("r+b") as file:
            # What a killed process has left of a text goes.
            file.truncate(contents.end)
            file.seek(contents.end)
            file.write(_record(new))
            _flush(file)

    def _replace(self, texts: Sequence[Tokens]) -> None:
        """Put another file in the place of this one; whoever reads meanwhile finds the old one or the new one."""
        temporary = self._path.with_suffix(".part")
        try:
            with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(self._key.header)
                file.writelines(map(_record, texts))
                _flush(file)
            os.replace(temporary, self._path)
        finally:
            with suppress(OSError):
                temporary.unlink()

    def _read(self) -> Contents:
        try:
            raw = read_file(self._path, HEADER.size + self._most * (RECORD.size + 4))
        except FileNotFoundError:
            return Contents([], 0)
        except UnfitFile as error:
            if error.errno != EFBIG:
                raise
            return Contents([], 0, "is larger than one can be")
        return contents_of(raw, self._key)


def open_store(folder: Path, key: StoreKey, most: int = MOST) -> tuple[TextStore, list[str]]:
    """The texts kept under a key, and sentences about what was wrong with them. most: tokens that are kept."""
    store = TextStore(folder / key.file_name, key, most)
    return store, store.open()


def store_for(
    path: Path, settings: DecodeSettings, folder: Path | None, *, changing: bool = False
) -> tuple[TextStore | None, list[str]]:
    """A model's texts where they are asked for (folder) and used, and sentences about them.

    changing: the settings may become others, as in a chat, so that the texts are opened in any case.
    """
    if folder is None:
        return None, []
    idle = _idle(settings)
    if idle and not changing:
        return None, [f"--store has no effect {idle}"]
    store, notes = open_store(folder, store_key(path))
    return store, [*notes, *([f"--store keeps what is said, and nothing is guessed from it {idle}"] if idle else [])]


def _idle(settings: DecodeSettings) -> str:
    """Where nothing is guessed from kept texts, in words; '' where something is."""
    if settings.mode != "auto":
        return f"in mode {settings.mode}; --mode auto uses it"
    return "" if "store" in settings.sources else "where --sources leaves store out"


def contents_of(raw: bytes, key: StoreKey) -> Contents:
    """What a file holds. A text that its end cuts off is no trouble: a process was killed there."""
    header = key.header
    if not raw.startswith(header):
        torn = header.startswith(raw)
        return Contents([], 0, "" if torn else "is of another model or another version of lacli")
    texts: list[Tokens] = []
    end, trouble = len(header), ""
    while len(raw) - end >= RECORD.size:
        count, check, own_check = RECORD.unpack_from(raw, end)
        if own_check != crc32(raw[end : end + RECORD.size - 4]):
            return Contents(texts, end, "is damaged")
        begin = end + RECORD.size
        if begin + 4 * count > len(raw):
            break
        end = begin + 4 * count
        if check == crc32(raw[begin:end]) and _is_text(text := np.frombuffer(raw, "<i4", count, begin), key):
            texts.append(text)
        else:
            trouble = "is damaged"
    return Contents(texts, end, trouble)


def _is_text(text: Tokens, key: StoreKey) -> bool:
    return len(text) > 0 and int(text.min()) >= 0 and int(text.max()) < key.vocabulary


def _record(text: Tokens) -> bytes:
    tokens = text.astype("<i4").tobytes()
    numbers = RECORD.pack(len(text), crc32(tokens), 0)[:-4]
    return numbers + crc32(numbers).to_bytes(4, "little") + tokens


def _newest(texts: Sequence[Tokens], room: int) -> list[Tokens]:
    """The newest texts that have room, the oldest of them cut at its beginning."""
    kept: list[Tokens] = []
    for text in reversed(texts):
        if room <= 0:
            break
        kept.append(text[-room:])
        room -= len(text)
    return kept[::-1]


def _why(error: OSError | NotImplementedError) -> str:
    return "another program writes to it" if isinstance(error, TimeoutError) else reason_of(error)


def _flush(file: BufferedWriter | BufferedRandom) -> None:
    """Bring what was written to the disk."""
    file.flush()
    os.fsync(file.fileno())
