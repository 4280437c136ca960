"""The page at `/`: its files, and the headers that keep what a model wrote from running in it."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).with_name("page")

FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""The page's files and their types by their paths."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def routes() -> list[Route]:
    """What answers for the page's files."""
    return [Route(path, send, methods=["GET"]) for path in FILES]


async def send(request: Request) -> Response:
    """A file of the page."""
    name, kind = FILES[request.url.path]
    return Response((FOLDER / name).read_bytes(), media_type=kind, headers=HEADERS)
