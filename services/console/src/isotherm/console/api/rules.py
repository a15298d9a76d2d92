"""Rules of the alerts service under `/isotherm`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from isotherm.console.api.models import JSON_ONLY, RequestModel, ResponseModel
from isotherm.console.devices.rules import AlertRule, RuleControl, Rules


class RuleRequest(RequestModel):
    """A rule as it is to be."""

    rule: dict[str, Any] = Field(description="The keys of a `[[rules]]` table of the alerts service.")


class RuleTrialRequest(RequestModel):
    """A rule to try over past readings; nothing is changed."""

    rule: dict[str, Any] = Field(description="The keys of a `[[rules]]` table of the alerts service.")
    hours: int = Field(24, description="1 to 168.")


class RuleResponse(ResponseModel):
    """A rule of the topic. Times are epoch milliseconds."""

    rule_id: str
    rule: dict[str, Any]
    problem: str | None = Field(description="Why the alerts service does not use it; null when nothing is known.")
    created_by: str
    created_at: int
    updated_by: str
    updated_at: int


class RuleTrialResponse(ResponseModel):
    """How often a rule would have fired. Times are event times of readings, epoch milliseconds."""

    fired: int = Field(description="Alerts that it would have opened.")
    devices: int = Field(description="Devices that they are about.")
    readings: int = Field(description="Readings on which it was tried.")
    from_: int | None = Field(alias="from", description="The earliest of them.")
    until: int | None = Field(description="The newest of them.")
    is_complete: bool = Field(description="False: the period had more readings than a trial may read.")


def router(control: RuleControl) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter()

    @routes.get("/rules", summary="Rules of the topic, which stand above those of the alerts service's settings")
    def rules() -> list[RuleResponse]:
        return [_response(one, control.rules) for one in control.rules.listed()]

    @routes.get("/rules/{rule_id}", summary="A rule")
    def get(rule_id: str) -> RuleResponse:
        return _response(control.get(rule_id), control.rules)

    @routes.put("/rules/{rule_id}", summary="Create or change a rule", dependencies=JSON_ONLY)
    def put(rule_id: str, asked: RuleRequest, request: Request) -> RuleResponse:
        return _response(control.put(rule_id, asked.rule, request.state.caller.name), control.rules)

    @routes.delete("/rules/{rule_id}", status_code=204, summary="Remove a rule; its open alerts close")
    def delete(rule_id: str) -> None:
        control.delete(rule_id)

    @routes.post("/rule-trials", summary="How often a rule would have fired in the last hours", dependencies=JSON_ONLY)
    def try_out(asked: RuleTrialRequest, request: Request) -> RuleTrialResponse:
        found = control.try_out(asked.rule, asked.hours, request.state.caller.name)
        return RuleTrialResponse(
            fired=found.fired,
            devices=found.devices,
            readings=found.readings,
            until=found.until_ms,
            is_complete=found.is_complete,
            **{"from": found.from_ms},
        )

    return routes


def _response(rule: AlertRule, rules: Rules) -> RuleResponse:
    return RuleResponse(
        rule_id=rule.rule_id,
        rule=rule.rule,
        problem=rules.problem_of(rule),
        created_by=rule.created_by,
        created_at=rule.created_at_ms,
        updated_by=rule.updated_by,
        updated_at=rule.updated_at_ms,
    )
