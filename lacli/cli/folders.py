"""The user's folders for what lacli keeps, by the system's conventions; none is created here."""

from __future__ import annotations

from pathlib import Path


def rpc_folder() -> Path:
    """Large weights that clients sent to `lacli rpc-server -c`."""
    from platformdirs import user_cache_path

    return user_cache_path("lacli", appauthor=False) / "rpc"


def history_file() -> Path:
    """The lines that were typed in chats."""
    from platformdirs import user_state_path

    return user_state_path("lacli", appauthor=False) / "history"


def own_folders() -> dict[str, Path]:
    """All folders that lacli writes to or reads the user's files from, by what is in them."""
    from lacli.hub.names import own_aliases
    from lacli.text.records import state_file

    return {
        "what is kept between runs": state_file().parent,
        "weights of RPC clients": rpc_folder(),
        "chat history": history_file().parent,
        "own aliases": own_aliases().parent,
    }
