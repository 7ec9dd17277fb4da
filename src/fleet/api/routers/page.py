"""`/`: the web page and its two files. They hold no figures: those come over the API, with the reader's own token."""

from __future__ import annotations

from importlib import resources
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS: Final = {
    # Nothing but our own files and our own API: a text that slipped through escaping still could not run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def _serve(path: str) -> None:
    name, media_type = FILES[path]
    body = resources.files("fleet.web").joinpath(name).read_bytes()

    async def file() -> Response:
        return Response(body, media_type=media_type, headers=HEADERS)

    router.add_api_route(path, file, methods=["GET"], response_model=None, name=name)


for _path in FILES:
    _serve(_path)
