"""Hooks of the documentation site: diagrams without a network, and a check of every link and anchor of the pages.

MkDocs checks links between Markdown files. The check here also finds links to files that are left out of the site,
anchors in HTML, and anything that a page would load from another host.
"""

from __future__ import annotations

import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from isotherm.stack.artifacts import Artifacts

MERMAID = "javascripts/mermaid.min.js"
"""The theme uses this file, named in `extra_javascript`, instead of loading mermaid from another host."""
_LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
_NAMES_A_PAGE = {"canonical", "alternate", "prev", "next"}
"""Relations of `<link>` for which a browser loads nothing."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add mermaid from its pinned and hash-checked archive to the files of the site."""
    (archive,) = Artifacts().folder("mermaid").glob("mermaid-*.jar")
    with zipfile.ZipFile(archive) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith("/dist/mermaid.min.js"))
        files.append(File.generated(config, MERMAID, content=packed.read(name)))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Fail the build, naming each link that leads nowhere. Raises PluginError."""
    problems = problems_of(Path(config.site_dir))
    if problems:
        raise PluginError("links of the built site:\n" + "\n".join(problems))


def problems_of(site: Path) -> list[str]:
    """Every broken link and anchor in a folder of HTML pages, and everything that is loaded from another host."""
    pages = {path.resolve(): _Page(path) for path in sorted(site.rglob("*.html"))}
    return [
        f"{path.relative_to(site.resolve())}: {problem}"
        for path, page in pages.items()
        if path.name != "404.html"
        for problem in _problems(path, page, pages)
    ]


class _Page(HTMLParser):
    """The ids of an HTML page and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[bool, str]] = []
        """Whether the browser loads it by itself, and its address."""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names_a_page = dict(attrs).get("rel") in _NAMES_A_PAGE
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if name in ("href", "src") and value:
                self.links.append(((tag, name) in _LOADED and not names_a_page, value))


def _problems(path: Path, page: _Page, pages: dict[Path, _Page]) -> list[str]:
    found = []
    for is_loaded, address in page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if is_loaded and parts.scheme != "data":
                found.append(f"loads {address} from another host")
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            found.append(f"{address} is not there")
        elif parts.fragment and target in pages and not _has_anchor(pages[target], unquote(parts.fragment)):
            found.append(f"{address} has no such anchor")
    return found


def _has_anchor(page: _Page, name: str) -> bool:
    # The theme's own script makes the anchors of its palette and of search.
    return name in page.ids or name.startswith("__")
