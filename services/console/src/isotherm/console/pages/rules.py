"""The page of rules of the alerts service: list, try, store and remove them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request, Response

from isotherm.console.devices.rules import AlertRule, RuleControl, id_of
from isotherm.console.errors import BadRequestError
from isotherm.console.pages.context import Form, first_value, redirect
from isotherm.console.pages.templating import Templates

_PATH = "/ui/rules"
_EXAMPLE = {"kind": "above", "metric": "temperature", "threshold": 28, "for_ms": 60000, "severity": "critical"}
_HOURS = 24


def add(app: FastAPI, templates: Templates, control: RuleControl) -> None:
    """Serve the page and its forms."""

    def page(text: str, *, tried: AlertRule | None = None, status: int = 200, problem: str = "") -> Response:
        rules = control.rules.listed()
        shown = [(one, json.dumps(one.rule, indent=1, sort_keys=True), control.rules.problem_of(one)) for one in rules]
        return templates.page("rules.html", status, rules=shown, text=text, tried=tried, problem=problem, hours=_HOURS)

    @app.get("/rules")
    def rules(rule: str = "") -> Response:
        known = control.rules.get(rule)
        return page(json.dumps(_EXAMPLE if known is None else known.rule, indent=2))

    @app.post("/rules")
    def change(form: Form, request: Request) -> Response:
        text, user = first_value(form, "rule"), request.state.caller.name
        try:
            rule = _rule_in(text)
            if first_value(form, "action") == "try":
                return page(text, tried=control.try_out(rule, _HOURS, user))
            control.put(id_of(rule), rule, user)
        except BadRequestError as error:
            return page(text, status=400, problem=str(error))
        return redirect(_PATH)

    @app.post("/rules/delete")
    def delete(form: Form) -> Response:
        control.delete(first_value(form, "rule"))
        return redirect(_PATH)


def _rule_in(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The rule is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRequestError("The rule is not a JSON object.")
    return found
