# SPDX-License-Identifier: Apache-2.0
"""Jinja templates, and the static assets under versioned URLs."""

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.console.formatting import fitting_labels, isolate, plural, sentence
from pipecd.controlplane.console.hidden_marks import show_hidden_marks
from pipecd.controlplane.console.markdown import description_html, web_link

_DIRECTORY = Path(__file__).parent
_STYLES = (
    "tokens.css",
    "layout.css",
    "pages.css",
    "live-state.css",
    "log.css",
    "history.css",
    "settings.css",
)
# In an order in which every module follows those that it imports.
_SCRIPTS = (
    "times.js",
    "morph.js",
    "clipboard.js",
    "log.js",
    "notify.js",
    "stream.js",
    "graph.js",
    "live.js",
    "palette.js",
    "keys.js",
    "api.js",
    "console.js",
)
_IMPORT = re.compile(rb"^import .*\n", re.MULTILINE)
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_IMMUTABLE = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """The content of a file and its media type."""

    content: bytes
    media_type: str


class Assets:
    """The files in `assets/`, served under a version that changes with their content."""

    def __init__(self, directory: Path = _DIRECTORY / "assets") -> None:
        files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
        # Browsers get one style sheet and one script, each in one request.
        files["console.css"] = b"\n".join(files.pop(name) for name in _STYLES)
        # The worker that all windows share is a script of its own.
        files["worker.js"] = files["stream.js"] + _IMPORT.sub(b"", files["worker.js"])
        modules = [_IMPORT.sub(b"", files.pop(name)) for name in _SCRIPTS]
        files["console.js"] = b"\n".join(modules)
        self._files = {
            name: Asset(content, _TYPES[Path(name).suffix]) for name, content in files.items()
        }
        digest = sha256()
        for name in sorted(files):
            digest.update(name.encode() + b"\0" + files[name])
        self.version = digest.hexdigest()[:12]

    def url(self, name: str) -> str:
        """The URL of a file; a name that does not exist is a bug in a template."""
        if name not in self._files:
            raise KeyError(name)
        return f"/assets/{self.version}/{name}"

    def routes(self) -> list[Route]:
        return [
            Route("/assets/{version}/{name}", self.serve),
            Route("/favicon.ico", self.favicon),
        ]

    async def serve(self, request: Request) -> Response:
        asset = self._files.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        is_current = request.path_params["version"] == self.version
        cache_control = _IMMUTABLE if is_current else "no-cache"
        return Response(
            asset.content, media_type=asset.media_type, headers={"Cache-Control": cache_control}
        )

    async def favicon(self, _request: Request) -> Response:
        icon = self._files["favicon.svg"]
        return Response(
            icon.content,
            media_type=icon.media_type,
            headers={"Cache-Control": "public, max-age=86400"},
        )


class Renderer:
    """Renders the templates in `templates/`."""

    def __init__(self, assets: Assets) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_DIRECTORY / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        cast("dict[str, Any]", self._environment.globals)["asset"] = assets.url
        filters = cast("dict[str, Any]", self._environment.filters)
        filters |= {
            "fitting": fitting_labels,
            "markdown": description_html,
            "sentence": sentence,
            "isolate": isolate,
            "plural": plural,
            "web_link": web_link,
        }

    def render(self, template: str, **context: Any) -> str:
        return show_hidden_marks(self._environment.get_template(template).render(**context))
