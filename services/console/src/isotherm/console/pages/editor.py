"""Pages that create and edit a connector."""

from __future__ import annotations

from fastapi import FastAPI, Response

from isotherm.connector.config import files as config_files
from isotherm.connector.config.files import ConfigError
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.cluster.plugins import Plugin
from isotherm.console.connect_api import plugin_shapes, shapes
from isotherm.console.errors import BadRequestError
from isotherm.console.pages.context import Form, PageContext, connector_path, first_value, redirect


def add(app: FastAPI, context: PageContext) -> None:
    """Serve the editor at `/new` and `/connectors/NAME/edit`."""

    def editor(name: str, text: str, problems: list[str], klass: str = "") -> Response:
        plugin = context.control.plugin(klass) if klass else None
        return context.page(
            "editor.html",
            400 if problems else 200,
            name=name,
            text=text,
            problems=problems,
            plugin=plugin,
            keys=plugin_shapes.key_infos(plugin) if plugin else [],
            classes=[one.klass for one in context.cluster.plugins()],
        )

    @app.get("/new")
    def new(klass: str = "") -> Response:
        plugin = context.control.plugin(klass) if klass else None
        return editor("", template_of(plugin) if plugin else "", [], klass)

    @app.post("/new")
    def create(form: Form) -> Response:
        text, name = first_value(form, "text"), first_value(form, "name").strip()
        try:
            config = config_files.entries(text, origin="configuration")
            name = name or config.get(config_files.NAME, "")
            context.control.create(name, config, TargetState.STARTED)
        except (ConfigError, BadRequestError) as error:
            return editor(name, text, [str(error)])
        return redirect(connector_path(name))

    @app.get("/connectors/{name}/edit")
    def edit(name: str) -> Response:
        view = context.control.view(name)
        text = config_files.to_properties(shapes.config(context.control, view))
        return editor(name, text, [], view.connector.klass)

    @app.post("/connectors/{name}/edit")
    def change(name: str, form: Form) -> Response:
        text = first_value(form, "text")
        try:
            context.control.put(name, config_files.entries(text, origin="configuration"))
        except (ConfigError, BadRequestError) as error:
            return editor(name, text, [str(error)])
        return redirect(connector_path(name))


def template_of(plugin: Plugin) -> str:
    """Return a properties file to fill in: required keys empty, important keys with their defaults."""
    keys = [key for key in plugin.definition.keys if key.required or key.importance == "HIGH"]
    given = {key.name: key.default or "" for key in keys if key.name not in (config_files.NAME, config_files.CLASS)}
    return config_files.to_properties({config_files.CLASS: plugin.klass, **given})
