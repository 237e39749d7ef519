"""The stylesheet, the script and the icon: read once, served from memory, cached by their hash."""

from hashlib import blake2b
from importlib.resources import files

from aiohttp import web

_TYPES = {
    "style.css": "text/css",
    "access.js": "text/javascript",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"


class Assets:
    """The files by name; no other file can be requested."""

    def __init__(self) -> None:
        folder = files("aggregator.web") / "static"
        self._bodies = {name: (folder / name).read_bytes() for name in _TYPES}
        self._hashes = {
            name: blake2b(body, digest_size=6).hexdigest() for name, body in self._bodies.items()
        }

    def url(self, name: str) -> str:
        """The file's address, which changes with its content."""
        return f"/static/{name}?v={self._hashes[name]}"

    async def serve(self, request: web.Request) -> web.Response:
        """The file. HTTPNotFound for any other name."""
        name = request.match_info["name"]
        if name not in self._bodies:
            raise web.HTTPNotFound
        known = request.query.get("v") == self._hashes[name]
        response = web.Response(
            body=self._bodies[name],
            content_type=_TYPES[name],
            charset="utf-8",
            headers={"Cache-Control": _FOR_EVER if known else "no-cache"},
        )
        response.enable_compression()
        return response
