"""docs/settings.md lists every variable of the environment with its default and range. Wrong values are refused."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured

from tests.conftest import ROOT

PRODUCT = ("manage.py", "guildhall", "mcp_runtime", "roster")
VARIABLE = re.compile(r"GUILD_HALL_[A-Z_]+|DATABASE_URL|REDIS_URL|CELERY_BROKER_URL")
# Set or read in another way, so that a search for calls of os.environ does not find them.
SET_INDIRECTLY = {"GUILD_HALL_MEMBER"}

Load = Callable[..., dict[str, Any]]


class Row(NamedTuple):
    name: str
    default: str
    meaning: str
    allowed: str


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "settings.md").read_text()
    table_rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in table_rows]


SETTINGS = {row[0].strip("`"): Row(row[0].strip("`"), *row[1:]) for row in rows() if len(row) == 4}
INTERNAL = {row[0].strip("`") for row in rows() if len(row) == 2}
BOUNDED = {name: row for name, row in SETTINGS.items() if re.fullmatch(r"\d+ to \d+", row.allowed)}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """The values of settings.py in an environment with only these variables."""

    def run(**environment: str) -> dict[str, Any]:
        own = {"GUILD_HALL_DATA_DIR": str(tmp_path / "var"), "GUILD_HALL_ENV_FILE": os.devnull}
        os.environ.update(own | environment)
        return runpy.run_path(str(ROOT / "guildhall" / "settings.py"))

    # Undone as a whole, because settings.py adds the variables of an env file to the environment.
    others = {name: value for name, value in os.environ.items() if not VARIABLE.fullmatch(name)}
    with mock.patch.dict(os.environ, others, clear=True):
        yield run


def manage(*argv: str, data_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *argv],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "GUILD_HALL_DATA_DIR": str(data_dir),
            "GUILD_HALL_ENV_FILE": os.devnull,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=30,
    )


# The table and the code know the same variables -------------------------------------------------------------------


def read_variables() -> Iterator[str]:
    """Every variable that the product reads from the environment, directly or through a helper of environment.py."""
    for part in PRODUCT:
        for path in [ROOT / part] if part.endswith(".py") else sorted((ROOT / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                arguments = node.args if isinstance(node, ast.Call) else []
                arguments = [node.slice] if isinstance(node, ast.Subscript) else arguments
                argument = arguments[0] if arguments else None
                if (
                    isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                    and VARIABLE.fullmatch(argument.value)
                ):
                    yield argument.value


def test_the_tables_list_exactly_the_variables_that_are_read() -> None:
    assert set(read_variables()) | SET_INDIRECTLY == SETTINGS.keys() | INTERNAL


def test_each_variable_is_in_the_tables_once() -> None:
    assert len(rows()) == len(SETTINGS) + len(INTERNAL)


# Defaults and bounds ----------------------------------------------------------------------------------------------


def test_defaults_are_as_documented(load: Load) -> None:
    values = load()
    defaults = {name: row.default.strip("`") for name, row in BOUNDED.items()}
    assert defaults.pop("GUILD_HALL_START_CONCURRENCY") == "twice the number of cores"
    assert values["GUILD_HALL_START_CONCURRENCY"] == 2 * (os.cpu_count() or 1)
    assert defaults == {name: str(values[name]) for name in defaults}
    assert SETTINGS["GUILD_HALL_HOST"].default == f"`{values['GUILD_HALL_HOST']}`"
    assert SETTINGS["GUILD_HALL_PORT_RANGE"].default == "`{}-{}`".format(*values["GUILD_HALL_PORT_RANGE"])
    assert values["GUILD_HALL_PORT_RANGE"] == (20000, 30000)
    assert values["GUILD_HALL_MEMBERS_DIR"] == ROOT / "guild-members"
    assert values["DATABASES"]["default"]["NAME"] == str(values["GUILD_HALL_DATA_DIR"] / "guildhall.sqlite3")
    assert values["BROKER_URL"] == ""


def test_the_broker_has_two_names_and_the_new_one_has_precedence(load: Load) -> None:
    assert load(REDIS_URL="redis://one/0")["BROKER_URL"] == "redis://one/0"
    values = load(REDIS_URL="redis://one/0", CELERY_BROKER_URL="amqp://two//")
    assert (values["BROKER_URL"], values["CELERY_BROKER_URL"]) == ("amqp://two//", "amqp://two//")


def test_the_labels_of_a_node_are_separated_by_commas(load: Load) -> None:
    assert load()["GUILD_HALL_NODE_LABELS"] == []
    assert load(GUILD_HALL_NODE_LABELS="gpu, eu-west.1,")["GUILD_HALL_NODE_LABELS"] == ["gpu", "eu-west.1"]


OIDC = {
    "GUILD_HALL_OIDC_ISSUER": "https://login.example.com/realms/staff/",
    "GUILD_HALL_OIDC_CLIENT_ID": "hall",
    "GUILD_HALL_OIDC_CLIENT_SECRET": "a secret",
    "GUILD_HALL_OIDC_ALLOW": "@example.com, groups=staff",
}


def test_single_sign_on_is_off_without_an_issuer(load: Load) -> None:
    values = load(GUILD_HALL_OIDC_CLIENT_ID="hall", GUILD_HALL_OIDC_ALLOW="everybody")
    assert values["GUILD_HALL_OIDC_ISSUER"] == ""
    assert values["AUTHENTICATION_BACKENDS"] == ["django.contrib.auth.backends.ModelBackend"]


def test_the_values_of_single_sign_on_are_lists_of_names(load: Load) -> None:
    values = load(**OIDC, GUILD_HALL_OIDC_GROUPS="*=viewer, /a=b/team = operator,7d0f8a35-3c1c=two words")
    assert values["GUILD_HALL_OIDC_ISSUER"] == "https://login.example.com/realms/staff"
    assert values["GUILD_HALL_OIDC_ALLOW"] == ["@example.com", "groups=staff"]
    groups = [("*", "viewer"), ("/a=b/team", "operator"), ("7d0f8a35-3c1c", "two words")]
    assert values["GUILD_HALL_OIDC_GROUPS"] == groups
    assert "roster.login_backends.ProviderBackend" in values["AUTHENTICATION_BACKENDS"]


def test_without_passwords_no_backend_checks_one(load: Load) -> None:
    values = load(**OIDC, GUILD_HALL_OIDC_ONLY="1")
    names = ["roster.login_backends.LinkBackend", "roster.login_backends.ProviderBackend"]
    assert values["AUTHENTICATION_BACKENDS"] == names


def test_the_client_secret_can_be_in_a_file_that_no_member_may_read(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "oidc"
    file.write_text("from a file\n")
    others = {name: value for name, value in OIDC.items() if name != "GUILD_HALL_OIDC_CLIENT_SECRET"}
    values = load(**others, GUILD_HALL_OIDC_CLIENT_SECRET_FILE=str(file))
    assert values["GUILD_HALL_OIDC_CLIENT_SECRET"] == "from a file"
    assert file in values["PRIVATE_PLACES"]
    with pytest.raises(ImproperlyConfigured, match="only one of them"):
        load(**OIDC, GUILD_HALL_OIDC_CLIENT_SECRET_FILE=str(file))


@pytest.mark.parametrize("missing", sorted(OIDC.keys() - {"GUILD_HALL_OIDC_ISSUER"}))
def test_an_issuer_needs_a_client_and_who_may_come_in(load: Load, missing: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"^GUILD_HALL_OIDC_ISSUER: .*{missing}"):
        load(**{name: value for name, value in OIDC.items() if name != missing})


def test_an_outside_issuer_is_that_of_single_sign_on(load: Load) -> None:
    own = {"GUILD_HALL_SIGN_IN_ISSUER": "https://login.example.com/realms/staff/"}
    assert load(**OIDC, **own)["GUILD_HALL_SIGN_IN_SCOPES"] == [("mcp", "all")]
    values = load(**OIDC, **own, GUILD_HALL_SIGN_IN_SCOPES="api://hall/notes=notes, w=set:w,a=b=all")
    assert values["GUILD_HALL_SIGN_IN_ISSUER"] == own["GUILD_HALL_SIGN_IN_ISSUER"]  # with the slash
    assert values["GUILD_HALL_SIGN_IN_SCOPES"] == [("api://hall/notes", "notes"), ("w", "set:w"), ("a=b", "all")]
    for wrong in ({"GUILD_HALL_SIGN_IN": "0"}, {"GUILD_HALL_OIDC_ISSUER": "https://login.example.com/realms/other"}):
        with pytest.raises(ImproperlyConfigured, match=r"^GUILD_HALL_SIGN_IN_ISSUER: .*give"):
            load(**{**OIDC, **own, **wrong})


def test_the_keys_of_an_outside_issuer_come_with_https(tmp_path: Path) -> None:
    own = {
        "GUILD_HALL_SIGN_IN_ISSUER": OIDC["GUILD_HALL_OIDC_ISSUER"],
        "GUILD_HALL_SIGN_IN_JWKS_URL": "http://login.example.com/keys",
    }
    process = manage("check", data_dir=tmp_path / "var", **OIDC, **own)
    assert process.returncode != 0
    assert "GUILD_HALL_SIGN_IN_JWKS_URL: login.example.com is another machine" in process.stderr


def test_without_the_library_the_start_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name == 'mozilla_django_oidc' else find(name, *a)\n"
    )
    process = manage("check", data_dir=tmp_path / "var", PYTHONPATH=str(tmp_path), **OIDC)
    assert process.returncode != 0
    assert "the library for single sign-on is not installed" in process.stderr
    assert "pip install -r requirements-oidc.txt" in process.stderr


def test_an_issuer_on_another_machine_needs_https(tmp_path: Path) -> None:
    process = manage(
        "check", data_dir=tmp_path / "var", **{**OIDC, "GUILD_HALL_OIDC_ISSUER": "http://login.example.com"}
    )
    assert process.returncode != 0
    assert "GUILD_HALL_OIDC_ISSUER: login.example.com is another machine" in process.stderr


def test_the_secret_key_can_be_in_another_file_and_no_member_may_read_it(load: Load, tmp_path: Path) -> None:
    assert load()["SECRET_KEY"] == (tmp_path / "var" / "secret-key").read_text()
    file = tmp_path / "key"
    file.write_text(f"{'k' * 32}\n")
    values = load(GUILD_HALL_SECRET_KEY_FILE=str(file))
    assert values["SECRET_KEY"] == "k" * 32
    assert file in values["PRIVATE_PLACES"]


@pytest.mark.parametrize("name", BOUNDED)
def test_exactly_the_documented_range_is_allowed(load: Load, name: str) -> None:
    lowest, highest = map(int, BOUNDED[name].allowed.split(" to "))
    for value in (lowest, highest):
        assert load(**{name: str(value)})[name] == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ImproperlyConfigured, match=f"^{name}="):
            load(**{name: str(value)})


def test_an_empty_value_gives_the_default(load: Load) -> None:
    names = SETTINGS.keys() - {"GUILD_HALL_ADMIN_PASSWORD", "GUILD_HALL_DATA_DIR"}
    assert load(**dict.fromkeys(names, " "))["GUILD_HALL_PORT"] == 8000

    # Wrong values -----------------------------------------------------------------------------------------------------

    # Refused by settings.py itself, for every command.


WRONG_VALUES = [
    ("GUILD_HALL_SIGN_IN_ISSUER", "login.example.com"),
    ("GUILD_HALL_SIGN_IN_ISSUER", "https://login.example.com"),  # without single sign-on
    ("GUILD_HALL_SIGN_IN_AUDIENCE", "ä"),
    ("GUILD_HALL_SIGN_IN_AUDIENCE", "api://hall"),  # without an issuer, as those below
    ("GUILD_HALL_SIGN_IN_JWKS_URL", "file:///keys"),
    ("GUILD_HALL_SIGN_IN_JWKS_URL", "https://login.example.com/keys"),
    *(("GUILD_HALL_SIGN_IN_SCOPES", value) for value in ("mcp", "mcp=", "=all", "mcp=a b", "a=all,b/a=all", "mcp=all")),
    *(("GUILD_HALL_SIGN_IN_SUBJECT_CLAIM", value) for value in ("two words", "uid")),
    ("GUILD_HALL_SIGN_IN", "yes"),
    ("GUILD_HALL_SIGN_IN_PUBLISHED", "yes"),
    *((name, value) for name in BOUNDED for value in ("many", "1.5", "-1")),
    *(("GUILD_HALL_PORT_RANGE", value) for value in ("20000", "19999-20010", "29990-30001", "20010-20000", "a-b")),
    ("GUILD_HALL_DATA_DIR", "/dev/null/var"),
    ("GUILD_HALL_ENV_FILE", "/nowhere/at/all"),
    ("GUILD_HALL_SECRET_FILES_DIR", "/nowhere/at/all"),
    *(("GUILD_HALL_SECRET_KEY_FILE", value) for value in ("/nowhere/at/all", "/", "/dev/null", sys.executable)),
    ("DATABASE_URL", "mysql://localhost/hall"),
    ("DATABASE_URL", "hall.sqlite3"),
    ("REDIS_URL", "localhost:6379"),
    ("REDIS_URL", "amqp://localhost//"),
    ("CELERY_BROKER_URL", "rabbitmq.example.com:5672"),
    ("REDIS_URL", "redis://localhost:port/0"),
    ("DATABASE_URL", "postgres://hall@localhost:port/hall"),
    ("DATABASE_URL", "sqlite://:memory:"),
    ("GUILD_HALL_ALLOWED_HOSTS", "https://hall.example.com"),
    *(("GUILD_HALL_NODE", value) for value in ("two words", "-a", "n" * 65)),
    *(("GUILD_HALL_NODE_LABELS", value) for value in ("two words", "gpu,a/b", "n" * 65)),
    *(("GUILD_HALL_NODE_URL", value) for value in ("node-b:8200", "http://node-b", "http://b:8200/x", "ftp://b:1")),
    *(("GUILD_HALL_NODE_URL", value) for value in ("http://b:0", "http://b:70000", "http://user@b:8200")),
    *(("GUILD_HALL_WEB_URL", value) for value in ("hall.example.com", "ftp://hall", "http://a@b", "https://hall/?x")),
    *(("GUILD_HALL_GATEWAY_URL", value) for value in ("gateway.example.com", "https://gateway/?x")),
    *(
        ("GUILD_HALL_WEB_URL", value)
        for value in ("http://hall:70000", "https://hall//", "https://hall/a b", "http://")
    ),
    *(
        ("GUILD_HALL_REGISTRY_URL", value)
        for value in ("registry.example.com", "ftp://a", "https://a@b", "https://a/?x")
    ),
    *((name, "/nowhere/at/all") for name in ("GUILD_HALL_NODE_CERTIFICATE", "GUILD_HALL_NODE_CA")),
    ("GUILD_HALL_NODE_CERTIFICATE", sys.executable),  # without an address that begins with https
    ("GUILD_HALL_CONTRACTS", "holds"),
    ("GUILD_HALL_TRUSTED_ORIGINS", "hall.example.com"),
    *(("GUILD_HALL_OIDC_ISSUER", value) for value in ("login.example.com", "ftp://a", "https://a@b", "https://a/?x")),
    ("GUILD_HALL_OIDC_ISSUER", "https://login.example.com"),  # without a client
    ("GUILD_HALL_OIDC_NAME", "n" * 61),
    *(("GUILD_HALL_OIDC_CLIENT_ID", value) for value in ("a\nb", "ä", "a" * 1001)),
    *(("GUILD_HALL_OIDC_CLIENT_SECRET", value) for value in ("a\nb", "ä")),
    *(("GUILD_HALL_OIDC_CLIENT_SECRET_FILE", value) for value in ("/nowhere/at/all", "/", "/dev/null", sys.executable)),
    *(("GUILD_HALL_OIDC_SCOPES", value) for value in ("profile", 'openid "a"', "openid \\")),
    *(("GUILD_HALL_OIDC_USERNAME_CLAIM", value) for value in ("two words", "a=b")),
    *(("GUILD_HALL_OIDC_GROUPS_CLAIM", value) for value in ("two words", "a=b")),
    *(
        ("GUILD_HALL_OIDC_ALLOW", value)
        for value in ("example.com", "jane@example.com", "@example", "everybody,@a.b", "=a", "a=", "nobody")
    ),
    *(("GUILD_HALL_OIDC_GROUPS", value) for value in ("engineering", "=operator", "engineering=", "a=b,c")),
    *(("GUILD_HALL_PLAIN_HTTP_HOSTS", value) for value in ("http://mcp.example.com", "mcp.example.com/x", "*")),
]
# Refused by the system checks, which run first in every command except those for authors.
WRONG_COMBINATIONS = [
    ("GUILD_HALL_MEMBERS_DIR", {"GUILD_HALL_MEMBERS_DIR": "/nowhere/at/all"}),
    ("GUILD_HALL_GATEWAY_PORT", {"GUILD_HALL_PORT": "8100"}),
    ("GUILD_HALL_OIDC_ISSUER", {"GUILD_HALL_OIDC_ONLY": "1"}),
]
# Refused by `up`, which tries to listen there.
WRONG_ADDRESSES = [("GUILD_HALL_HOST", "192.0.2.1"), ("GUILD_HALL_HOST", "no such host")]
# Any text is valid.
WITHOUT_WRONG_VALUES = {"GUILD_HALL_ADMIN_PASSWORD", "GUILD_HALL_SECRETS_KEY_FILE"}


def test_every_setting_is_tested_with_a_wrong_value() -> None:
    tested_names = (
        {name for name, _ in WRONG_VALUES}
        | {name for name, _ in WRONG_COMBINATIONS}
        | {name for name, _ in WRONG_ADDRESSES}
    )
    assert tested_names | WITHOUT_WRONG_VALUES == SETTINGS.keys()


@pytest.mark.parametrize(("name", "value"), WRONG_VALUES)
def test_the_refusal_of_a_wrong_value_has_the_name_and_advice(load: Load, name: str, value: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refusal:
        load(**{name: value})
    assert str(refusal.value).startswith(name)
    assert re.search(r"give|must begin with|Choose", str(refusal.value))


@pytest.mark.parametrize(
    "address", ["http://hall", "https://hall.example.com:8443", "http://[::1]:80", "https://a/b/c"]
)
@pytest.mark.parametrize("end", ["", "/"])
def test_the_address_of_the_web_has_no_slash_at_its_end(load: Load, address: str, end: str) -> None:
    assert load(GUILD_HALL_WEB_URL=f"{address}{end}")["GUILD_HALL_WEB_URL"] == address


@pytest.mark.parametrize(("name", "environment"), WRONG_COMBINATIONS)
def test_impossible_values_are_refused_by_the_checks(tmp_path: Path, name: str, environment: dict[str, str]) -> None:
    process = manage("check", data_dir=tmp_path / "var", **environment)
    assert process.returncode != 0
    assert name in process.stderr
    assert "HINT" in process.stderr


@pytest.mark.parametrize(("name", "value"), WRONG_ADDRESSES)
def test_up_refuses_an_address_of_another_machine(tmp_path: Path, name: str, value: str) -> None:
    process = manage("up", data_dir=tmp_path / "var", **{name: value})
    assert process.returncode != 0
    assert f"cannot listen on {value}" in process.stderr
    assert name in process.stderr


def test_a_refusal_is_one_sentence_without_a_traceback(tmp_path: Path) -> None:
    process = manage("up", data_dir=tmp_path / "var", GUILD_HALL_PORT="eight thousand")
    assert process.returncode != 0
    assert process.stderr.startswith("Guild Hall cannot start. GUILD_HALL_PORT='eight thousand'")
    assert len(process.stderr.splitlines()) == 1


# The file .env ----------------------------------------------------------------------------------------------------


def test_variables_of_the_env_file_are_settings_and_the_environment_has_precedence(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "settings.env"
    file.write_text(
        "# a comment\nGUILD_HALL_PORT=8123\nexport GUILD_HALL_NODE='left'\nGUILD_HALL_CONCURRENCY=7\n"
        "GUILD_HALL_MEMBER_KEY=a$b${c}\n"
    )
    values = load(GUILD_HALL_ENV_FILE=str(file), GUILD_HALL_CONCURRENCY="9")
    assert (values["GUILD_HALL_PORT"], values["GUILD_HALL_NODE"], values["GUILD_HALL_CONCURRENCY"]) == (8123, "left", 9)
    assert os.environ["GUILD_HALL_MEMBER_KEY"] == "a$b${c}"
    assert file in values["PRIVATE_PLACES"]


def test_a_wrong_value_in_the_env_file_is_refused_with_its_name(load: Load, tmp_path: Path) -> None:
    (tmp_path / "settings.env").write_text("GUILD_HALL_PORT=many")
    with pytest.raises(ImproperlyConfigured, match="GUILD_HALL_PORT"):
        load(GUILD_HALL_ENV_FILE=str(tmp_path / "settings.env"))


def test_an_env_file_that_is_no_text_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "settings.env").write_bytes(b"A=\xff\xfe")
    with pytest.raises(ImproperlyConfigured, match="cannot be read"):
        load(GUILD_HALL_ENV_FILE=str(tmp_path / "settings.env"))
