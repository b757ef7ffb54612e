# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site into build/docs/site; a broken link is an error.

The pages are those of docs/, of the root of the repository and of examples/, and the reference that
`reference.py` generates. They are copied to build/docs/source, where links that leave docs/ are
rewritten to the copies.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from reference import reference_pages

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "docs"
SOURCE, SITE = BUILD / "source", BUILD / "site"
NAVIGATION = Path(__file__).parent / "navigation.toml"
# Pages at the root of the repository, and where the site has them.
_ROOT_PAGES = {
    name: f"project/{name.lower()}"
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
} | {"README.md": "index.md"}
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_FENCED = re.compile(r"(^(`{3,})[^\n]*\n.*?^\2$|`[^`\n]+`)", re.M | re.S)
_LANGUAGES = {".yaml": "yaml", ".tf": "hcl", ".json": "json", ".py": "python", ".sh": "bash"}


def main() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    for path, text in site_pages().items():
        target = SOURCE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for picture in (ROOT / "docs").rglob("*"):
        if picture.suffix in (".svg", ".png"):
            target = SOURCE / picture.relative_to(ROOT / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, target)
    shutil.copy(Path(__file__).parent / "site.css", SOURCE / "site.css")
    (BUILD / "zensical.toml").write_text(_configuration())
    run = subprocess.run(
        [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"],
        cwd=BUILD,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        sys.exit(f"{run.stdout}\n{run.stderr}")
    if broken := broken_links(SITE):
        sys.exit("broken links:\n" + "\n".join(broken))
    pages = len(list(SITE.rglob("*.html")))
    directory = SITE.relative_to(ROOT)
    print(f"{pages} pages in {directory}, no broken link")
    # A browser runs the search of a page that a server serves, and not that of a file.
    print(f"Read them at http://127.0.0.1:8000: python3 -m http.server -b 127.0.0.1 -d {directory}")


def site_pages() -> dict[str, str]:
    """Returns the Markdown of every page of the site by its path."""
    pages: dict[str, str] = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        path = page.relative_to(ROOT / "docs").as_posix()
        if not path.startswith("changes/"):
            pages[path] = rewrite_links(page.read_text(), f"docs/{path}", path)
    for name, path in _ROOT_PAGES.items():
        if path != "index.md" and (ROOT / name).exists():
            pages[path] = rewrite_links((ROOT / name).read_text(), name, path)
    return pages | example_pages() | reference_pages()


def example_pages() -> dict[str, str]:
    """Returns a page for each example, with its text and its files."""
    pages: dict[str, str] = {}
    for readme in sorted((ROOT / "examples").rglob("README.md")):
        folder = readme.parent.relative_to(ROOT).as_posix()
        path = f"{folder}/index.md"
        text = rewrite_links(readme.read_text(), f"{folder}/README.md", path)
        pages[path] = text + ("" if folder == "examples" else "".join(_files_of(readme.parent)))
    return pages


def _files_of(folder: Path) -> Iterator[str]:
    yield "\n## Files\n"
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != "README.md" and "__pycache__" not in file.parts:
            language = _LANGUAGES.get(file.suffix, "text")
            text = file.read_text().rstrip("\n")
            yield f"\n### `{file.relative_to(folder)}`\n\n````{language}\n{text}\n````\n"


def rewrite_links(text: str, source: str, path: str) -> str:
    """Returns a page of the repository with its links as the site has them.

    `source` is the file in the repository, `path` the page on the site. A link to a file that the
    site does not have becomes its name.
    """
    links = _LinksOf(source, path)
    parts = _FENCED.split(text)
    # Of each match the split yields three parts: text, what is fenced, and the fence itself.
    return "".join(
        part if i % 3 == 1 else links.rewritten(part) for i, part in enumerate(parts) if i % 3 != 2
    )


class _LinksOf:
    """The links of one page."""

    def __init__(self, source: str, path: str) -> None:
        self._folder = PurePosixPath(source).parent
        self._path = PurePosixPath(path)

    def rewritten(self, text: str) -> str:
        return _LINK.sub(self._link, text)

    def _link(self, match: re.Match[str]) -> str:
        link = match[0]
        if re.match(r"[a-z]+:|#|/", link):
            return link
        path, _, anchor = link.partition("#")
        target = site_path(os.path.normpath(self._folder / path))
        relative = os.path.relpath(target, self._path.parent)
        return f"{relative}#{anchor}" if anchor else relative


def site_path(path: str) -> str:
    """Returns where the site has a file of the repository."""
    if path in _ROOT_PAGES:
        return _ROOT_PAGES[path]
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return inside if "." in inside else f"{inside}/README.md"
    if path.startswith("examples"):
        return f"{path.removesuffix('/README.md')}/index.md"
    return path


def _configuration() -> str:
    template = (Path(__file__).parent / "zensical.toml").read_text()
    navigation = tomllib.loads(NAVIGATION.read_text())["section"]
    return template.replace("[project]\n", f"[project]\nnav = {_nav(navigation)}\n", 1)


def _nav(sections: list[dict[str, Any]]) -> str:
    """Returns the navigation; examples and pages that no section names are added to theirs."""
    pages = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.md")}
    named = {page for section in sections for page in section["pages"]}
    lines: list[str] = []
    for section in sections:
        rest = str(section.get("rest", ""))
        more = sorted(pages - named, key=_sort_key) if rest else []
        own = [*section["pages"], *(page for page in more if page.startswith(rest))]
        entries = ", ".join(f'"{page}"' for page in own if page in pages)
        lines.append(f'  {{ "{section["title"]}" = [{entries}] }},')
    return "[\n" + "\n".join(lines) + "\n]"


def _sort_key(page: str) -> tuple[str, bool, str]:
    folder, _, name = page.rpartition("/")
    return folder, name != "index.md", name


class _Page(HTMLParser):
    """The links and the anchors of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "__top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def broken_links(site: Path) -> list[str]:
    """Returns the links of built pages that lead nowhere, or out to a server for an asset."""
    pages = {page: _Page(page.read_text()) for page in sorted(site.rglob("*.html"))}
    broken: list[str] = []
    for page, content in pages.items():
        if page.name == "404.html":
            continue  # its links are those of the root
        for link in content.links:
            url = urlsplit(link)
            if url.scheme or link.startswith("//"):
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else None
            missing = anchors is not None and unquote(url.fragment) not in anchors
            if not target.exists() or missing:
                broken.append(f"{page.relative_to(site)}: {link}")
    return broken


if __name__ == "__main__":
    main()
