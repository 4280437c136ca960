"""Pages of other origins whose scripts may ask (CORS); none may unless they are named."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

THIS_MACHINE = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def with_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """An application that lets browsers ask for pages of `origins`: addresses, `localhost` for this machine's, `*`."""
    return CORSMiddleware(
        app,
        allow_origins=[each for each in origins if each != "localhost"],
        allow_origin_regex=THIS_MACHINE if "localhost" in origins else None,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
    )
