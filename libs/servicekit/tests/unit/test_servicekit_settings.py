from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, SecretStr

from isotherm.servicekit.settings import (
    ServiceSettings,
    Settings,
    SettingsError,
    fields,
    load,
    table,
)


class Listener(Settings):
    host: str = Field("127.0.0.1", description="Address.")
    port: int = Field(1883, ge=0, le=65535, description="Port.")


class Example(ServiceSettings):
    listener: Listener = Listener()
    mode: Literal["fast", "safe"] = Field("safe", description="How; `fast|safe`.")
    names: list[str] = Field(default_factory=list, description="Names.")
    units: dict[str, str] = Field(default_factory=dict, description="Units.")
    password: SecretStr | None = Field(None, description="Secret.")


class Demanding(Settings):
    checkpoint: str = Field(description="Folder.")


def read(
    *overrides: str, environ: dict[str, str] | None = None, file: Path | None = None, service: str = "my-service"
) -> Example:
    return load(Example, service, environ=environ or {}, file=file, overrides=overrides)


def problems(*overrides: str, environ: dict[str, str] | None = None, file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as refused:
        read(*overrides, environ=environ, file=file)
    return refused.value.problems


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text('mode = "fast"\n[listener]\nport = 1\nhost = "0.0.0.0"\n[kafka]\nbootstrap_servers = "k:1"\n')
    return path


def test_without_sources_the_defaults_hold() -> None:
    settings = read()

    assert settings.listener.port == 1883
    assert settings.kafka.bootstrap_servers == "127.0.0.1:9092"
    assert settings.http.host == "127.0.0.1"


def test_each_source_wins_over_the_one_before_it(file: Path) -> None:
    environ = {"ISOTHERM_MY_SERVICE__LISTENER__PORT": "2", "ISOTHERM_MY_SERVICE__LISTENER__HOST": "h2"}

    settings = read("listener.port=3", environ=environ, file=file)

    assert settings.kafka.bootstrap_servers == "k:1"
    assert settings.listener == Listener(host="h2", port=3)
    assert settings.mode == "fast"


def test_variables_of_other_services_are_no_concern() -> None:
    assert read(environ={"ISOTHERM_OTHER__NONSENSE": "1", "PATH": "/bin"}) == read()


@pytest.mark.parametrize(
    ("text", "names"),
    [("a, b ,c", ["a", "b", "c"]), ('["a,b", "c"]', ["a,b", "c"]), ("", []), ("one", ["one"])],
)
def test_list_is_read_from_text(text: str, names: list[str]) -> None:
    assert read(f"names={text}").names == names


@pytest.mark.parametrize(
    ("text", "units"),
    [("co2=ppm, humidity=%RH", {"co2": "ppm", "humidity": "%RH"}), ('{"a.b": "c=d"}', {"a.b": "c=d"})],
)
def test_map_is_read_from_text(text: str, units: dict[str, str]) -> None:
    assert read(f"units={text}").units == units


def test_librdkafka_property_with_dots_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('[kafka.properties]\n"security.protocol" = "SSL"\n"client.rack" = "a"\n')

    assert read(file=path).kafka.properties == {"security.protocol": "SSL", "client.rack": "a"}


def test_secrets_within_maps_and_lists_are_resolved(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        'names = ["a", "${env:B}"]\n[kafka.properties]\n"sasl.password" = "${env:P}"\n"client.rack" = "a"\n'
    )

    settings = read(file=path, environ={"P": "secret", "B": "b"})

    assert settings.kafka.properties == {"sasl.password": "secret", "client.rack": "a"}
    assert settings.names == ["a", "b"]


def test_secret_is_taken_from_where_its_reference_points(tmp_path: Path) -> None:
    secret = tmp_path / "secrets"
    secret.write_text("user = x\npassword = from file\n")
    by_file = read(f"password=${{file:{secret}:password}}")
    by_variable = read("password=${env:P}", environ={"P": "from variable"})

    assert by_file.password is not None
    assert by_file.password.get_secret_value() == "from file"
    assert by_variable.password is not None
    assert by_variable.password.get_secret_value() == "from variable"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("listener.prot=1", "listener.prot (--set): unknown key; did you mean listener.port?"),
        (
            "listener.port=70000",
            "listener.port (--set): '70000' is not allowed: Input should be less than or equal to 65535",
        ),
        ("mode=slow", "mode (--set): 'slow' is not allowed: Input should be 'fast' or 'safe'"),
        ("listener", "--set listener: expected key=value"),
        ("listener.port.x=1", "listener.port.x (--set): 'port' is a value and cannot have keys of its own"),
        ("mode=${env:NOWHERE}", "mode (--set): ${env:NOWHERE}: the environment has no variable NOWHERE"),
        ("mode=${file:/no/such}", "mode (--set): ${file:/no/such}: No such file or directory"),
        ("units=a=b,c", "units (--set): 'a=b,c' is not allowed: Input should be a valid dictionary"),
        ('names=["a"', "names (--set): '[\"a\"' is not allowed: Input should be a valid list"),
    ],
)
def test_refused_setting_names_key_origin_value_and_what_is_allowed(override: str, text: str) -> None:
    extra = ("listener.port=1",) if override.startswith("listener.port.x") else ()

    assert problems(*extra, override) == (text,)


def test_unknown_key_that_is_near_nothing_lists_the_known_ones() -> None:
    (problem,) = problems("zzzzzz=1")

    assert problem.startswith("zzzzzz (--set): unknown key; known keys: kafka.bootstrap_servers, kafka.properties")


def test_refused_variable_is_named_as_the_origin() -> None:
    name = "ISOTHERM_MY_SERVICE__LISTENER__PORT"

    (problem,) = problems(environ={name: "x"})

    assert problem.startswith(f"listener.port ({name}): 'x' is not allowed:")


def test_every_problem_is_told_at_once(file: Path) -> None:
    told = problems("listener.port=-1", "mode=slow", "nothing.like.it=1", file=file)

    assert len(told) == 3


def test_value_of_a_secret_is_never_told() -> None:
    class Strict(Settings):
        api_token: int = Field(1, description="Secret.")

    with pytest.raises(SettingsError) as refused:
        load(Strict, "s", environ={}, overrides=["api_token=hunter2"])

    assert "hunter2" not in str(refused.value)
    assert "******" in str(refused.value)


def test_required_setting_that_is_missing_is_named() -> None:
    with pytest.raises(SettingsError, match=r"checkpoint: .* is not allowed: Field required"):
        load(Demanding, "s", environ={})


@pytest.mark.parametrize(("content", "told"), [("mode = ", "Invalid value"), (None, "No such file")])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_text(content)

    (problem,) = problems(file=path)

    assert problem.startswith(f"{path}: ")
    assert told in problem


def test_table_has_every_key_with_its_variable_and_default() -> None:
    text = table(Example, "my-service")

    assert "| `listener.port` | `ISOTHERM_MY_SERVICE__LISTENER__PORT` | `1883` | Port. |" in text
    assert "`fast\\|safe`" in text
    assert len(text.splitlines()) == 2 + len(list(fields(Example)))


def test_table_says_what_is_required() -> None:
    assert "| `checkpoint` | `ISOTHERM_S__CHECKPOINT` | required | Folder. |" in table(Demanding, "s")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"mode = '\xff'", "not UTF-8 at byte 8"),
        (b"names = " + b"[" * 2_000 + b"]" * 2_000, "nested too deeply"),
        (b"names = " + b"1" * 5_000, "4300"),
        (b"x = 1", "unknown key"),
    ],
    ids=["bytes", "depth", "digits", "key"],
)
def test_a_file_that_is_no_toml_is_a_problem_of_the_settings(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=told):
        read(file=path)


@pytest.mark.parametrize("text", ["[" * 5_000, "[1" + "0" * 5_000 + "]"], ids=["depth", "digits"])
def test_a_list_that_is_no_json_is_a_problem_of_the_settings(text: str) -> None:
    with pytest.raises(SettingsError, match="names"):
        read(f"names={text}")
