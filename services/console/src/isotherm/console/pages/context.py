"""What the pages have in common: the components they show, their templates, and forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse

from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.dead_letters.queue import DeadLetterQueues
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.devices.commands import CommandControl
from isotherm.console.devices.rules import RuleControl
from isotherm.console.devices.silences import SilenceControl
from isotherm.console.pages.templating import Templates
from isotherm.console.records.decoding import DecodeValue
from isotherm.console.trace.tracer import Tracer


@dataclass(frozen=True)
class PageContext:
    """The components that pages show."""

    control: ConnectorControl
    cluster: ClusterState
    offsets: ConnectorOffsets
    queues: DeadLetterQueues
    browser: TopicBrowser
    devices: DeviceBrowser
    tracer: Tracer
    silences: SilenceControl
    rules: RuleControl
    commands: CommandControl
    decode: DecodeValue
    now_ms: Callable[[], int]
    dead_letter_records: int
    """Dead-letter records on one page."""
    topic_records: int
    """Records of a topic on one page."""

    @cached_property
    def templates(self) -> Templates:
        """The templates of all pages."""
        return Templates(self.now_ms)

    def page(self, template: str, status: int = 200, /, **values: Any) -> Response:
        """Render a page."""
        return self.templates.page(template, status, **values)

    def confirm(
        self, question: str, consequence: str, button: str, *, to: str, back: str, fields: Mapping[str, str] = {}
    ) -> Response:
        """Return a page that asks for confirmation; its form sends `fields` to `to`."""
        return self.page(
            "confirm.html",
            question=question,
            consequence=consequence,
            button=button,
            is_danger=button in ("Delete", "Discard"),
            to=to,
            back=back,
            fields=fields,
        )


async def _form(request: Request) -> dict[str, list[str]]:
    form = await request.form()
    return {name: [str(value) for value in form.getlist(name)] for name in form}


Form = Annotated[dict[str, list[str]], Depends(_form)]


def first_value(form: dict[str, list[str]], name: str) -> str:
    """Return the first value of a form's field; empty if there is none."""
    return (form.get(name) or [""])[0]


def redirect(path: str) -> Response:
    """Redirect after a form, with 303: the browser sends GET then, and reloading repeats nothing."""
    return RedirectResponse(path, 303)


def connector_path(name: str) -> str:
    """Return the path of a connector's page."""
    return f"/ui/connectors/{quote(name, safe='')}"
