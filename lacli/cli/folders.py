"""Where lacli keeps things of the user's: the folders that the system has for each kind. Nothing is made here."""

from __future__ import annotations

from pathlib import Path


def cost_folder() -> Path:
    """Where measured costs are kept: the user's cache directory."""
    from platformdirs import user_cache_path

    return user_cache_path("lacli", appauthor=False) / "cost"


def store_folder() -> Path:
    """Where texts are kept between runs, if the user wants it: in the user's cache directory."""
    from platformdirs import user_cache_path

    return user_cache_path("lacli", appauthor=False) / "store"


def rpc_folder() -> Path:
    """Where `lacli rpc-server -c` keeps large weights that clients sent: in the user's cache directory."""
    from platformdirs import user_cache_path

    return user_cache_path("lacli", appauthor=False) / "rpc"


def own_aliases() -> Path:
    """The user's own list of model names."""
    from platformdirs import user_config_path

    return user_config_path("lacli", appauthor=False) / "models.txt"


def history_file() -> Path:
    """The lines that were typed in chats."""
    from platformdirs import user_state_path

    return user_state_path("lacli", appauthor=False) / "history"


def own_folders() -> dict[str, Path]:
    """All folders that lacli writes into or reads the user's files from, by what is in them."""
    from lacli.llamacpp import probe

    return {
        "measured costs": cost_folder(),
        "tried builds": probe.folder(),
        "kept texts": store_folder(),
        "weights of RPC clients": rpc_folder(),
        "chat history": history_file().parent,
        "own aliases": own_aliases().parent,
    }
