"""The console in Debian's Chromium: every error of a page is recorded, axe checks it, and Tab reaches everything."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it has no type information
from playwright.sync_api import ConsoleMessage, Locator, Page, Request, Response, expect, sync_playwright

WITHIN_MS = 120_000
_WINDOW = {"width": 1280, "height": 860}
_MOST_TABS = 80
_LEFT_BEHIND = "net::ERR_ABORTED"
"""A refresh that was under way when another page was asked for."""

_LINKS = """links => links
    .map(one => new URL(one.getAttribute("href"), document.baseURI))
    .map(url => url.pathname + url.search)"""
"""What links lead to, those in pictures too."""

_HERE = Path(__file__).parents[2]
_ELSEWHERE = """here => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(here, "/opt/isotherm");
}"""
"""Pictures must not show the path of the checkout."""


class Browser:
    """One page of the console, used with the keyboard, with all errors recorded."""

    def __init__(self, page: Page, url: str, screenshots: Path | None) -> None:
        """`url` is where the console answers; pictures are kept when `screenshots` names a folder."""
        self.page, self._url, self._screenshots = page, url, screenshots
        self.complaints: list[str] = []
        """Errors and warnings of scripts and of the security policy; requests that failed or left the console."""
        self.faults: list[str] = []
        """What axe calls serious or critical."""
        self.examined: Counter[tuple[str, int]] = Counter()
        """How many pages of each kind axe has checked."""
        self._axe = Axe()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        page.on("request", self._asked)
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def open(self, path: str) -> None:
        """Go to a page, and let axe look at it."""
        self.page.goto(self._url + path)
        self.examine()

    def examine(self) -> None:
        """Check the present page with axe."""
        expect(self.page.locator("h1")).to_have_count(1)
        self.examined[kind_of(self.page.url.removeprefix(self._url))] += 1
        found: dict[str, Any] = self._axe.run(self.page).response
        self.faults += [
            f"{self.page.url}: {one['impact']} {one['id']}: {one['help']}: {node['target']} {node['failureSummary']}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def press(self, role: Any, name: str, within: Locator | None = None) -> None:
        """Go with Tab to what has this role and name, and press Enter there."""
        element = (within or self.page).get_by_role(role, name=name, exact=True)
        expect(element).to_have_count(1)
        for _ in range(_MOST_TABS):
            self.page.keyboard.press("Tab")
            if element.evaluate("element => element === document.activeElement"):
                self.page.keyboard.press("Enter")
                return
        raise AssertionError(f"{self.page.url}: {_MOST_TABS} times Tab do not lead to {role} {name!r}")

    def visit_every_kind_of_page(self) -> None:
        """Open the linked pages, one of each kind."""
        opened: set[tuple[str, int]] = set()
        waiting = ["/ui/"]
        while waiting:
            path = waiting.pop(0)
            if kind_of(path) in opened:
                continue
            opened.add(kind_of(path))
            self.open(path)
            links: list[str] = self.page.locator("a[href]").evaluate_all(_LINKS)
            waiting += [link for link in links if link.startswith("/ui/")]

    def picture(self, name: str) -> None:
        """Take a screenshot, if a folder for screenshots is set."""
        if self._screenshots is not None:
            self.page.evaluate(_ELSEWHERE, str(_HERE))
            self.page.screenshot(path=self._screenshots / f"{name}.png", animations="disabled")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{self.page.url}: {message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self._url}/", "data:")):
            self.complaints.append(f"{self.page.url}: asks for {request.url}")

    def _failed(self, request: Request) -> None:
        if request.failure != _LEFT_BEHIND:
            self.complaints.append(f"{request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if not (response.ok or 300 <= response.status < 400):
            self.complaints.append(f"{response.request.method} {response.url}: {response.status}")


def kind_of(path: str) -> tuple[str, int]:
    """What pages of one kind have in common: the first part of the path under `/ui/`, and how many there are."""
    parts = [part for part in path.partition("?")[0].removeprefix("/ui/").split("/") if part]
    return (parts[0] if parts else "", len(parts))


@contextmanager
def browser(url: str) -> Iterator[Browser]:
    """Chromium on the console at `url`. `ISOTHERM_SCREENSHOTS` names a folder for pictures."""
    program = shutil.which("chromium")
    assert program is not None, "Debian's chromium is missing; `make setup` installs it"
    folder = os.environ.get("ISOTHERM_SCREENSHOTS")
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-proxy-server"])
        page = chromium.new_page(viewport=_WINDOW)  # type: ignore[arg-type]  # a TypedDict of the same keys
        page.set_default_timeout(WITHIN_MS)
        yield Browser(page, url, Path(folder) if folder else None)
        chromium.close()
