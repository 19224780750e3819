from __future__ import annotations

import json

import pytest

from mcp_runtime.members.manifest.declaration import FIELDS
from mcp_runtime.members.manifest.files import digest_of
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.drafts import Draft, Reading
from mcp_runtime.sources.reader import read
from tests.support.configurations import CONFIGURATIONS, GITHUB, OPENAI, Configuration


def only(text: str, **options: object) -> Draft:
    (draft,) = read(text, **options).drafts  # type: ignore[arg-type]
    return draft


def server(**values: object) -> str:
    return json.dumps({"mcpServers": {"srv": values}})


def shown(reading: Reading) -> str:
    """All that a person sees of the drafts before their approval."""
    return repr([(draft.manifest, draft.notes, draft.inputs, repr(draft)) for draft in reading.drafts])


def refusal(text: str, **options: object) -> str:
    with pytest.raises(SourceError) as caught:
        read(text, **options)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda each: f"{each.client}: {each.title}")
class TestConfigurationsOfClients:
    def test_each_becomes_the_manifests_that_it_describes(self, configuration: Configuration) -> None:
        drafts = {draft.name: draft for draft in read(configuration.text).drafts}
        assert drafts.keys() == configuration.members.keys()
        for name, expected in configuration.members.items():
            assert {key: drafts[name].manifest.get(key) for key in expected} == expected

    def test_the_hall_accepts_each_manifest_without_unknown_keys(self, configuration: Configuration) -> None:
        for draft in read(configuration.text).drafts:
            manifest, warnings = parse(draft.manifest)
            assert manifest.name == draft.name
            assert [text for text in warnings if "unknown key" in text and "sandbox" not in text] == []

    def test_its_secrets_are_beside_the_manifests(self, configuration: Configuration) -> None:
        reading = read(configuration.text)
        secrets = {name: value for draft in reading.drafts for name, value in draft.secrets.items()}
        inputs = {asked.secret for draft in reading.drafts for asked in draft.inputs}
        assert secrets == configuration.secrets
        assert inputs == configuration.inputs
        assert [name for name, value in secrets.items() if value in shown(reading)] == []

    def test_nothing_is_refused(self, configuration: Configuration) -> None:
        assert read(configuration.text).refusals == ()


def test_there_are_twenty_configurations_of_six_clients() -> None:
    of_clients = [each for each in CONFIGURATIONS if not each.client.startswith("a ")]
    assert len(of_clients) >= 20
    assert len({each.client for each in of_clients}) >= 6


# What is in a draft -----------------------------------------------------------------------------------------------


def test_imported_commands_run_in_a_sandbox() -> None:
    assert only("npx -y thing-mcp").manifest["sandbox"] == "on"
    assert "sandbox" not in only("https://mcp.example.com/mcp").manifest


def test_the_digest_changes_with_each_change_of_the_manifest() -> None:
    digests = {digest_of(only(f"npx -y thing-mcp@{version}").text) for version in ("1", "2", "1")}
    assert len(digests) == 2


def test_a_package_without_an_exact_version_is_noted() -> None:
    for text in ("npx -y thing-mcp", "npx -y thing-mcp@^1", "uvx thing-mcp"):
        assert any("its lock keeps it from then on" in note for note in only(text).notes)
    assert any("may fetch and run a newer one" in note for note in only("bunx thing-mcp").notes)
    assert only("npx -y thing-mcp@latest").manifest["version"] == "unpinned"
    assert only("npx -y thing-mcp@1.2.3").notes == ()


@pytest.mark.parametrize(
    "text", ["npx -y thing-mcp", "uvx --from thing-mcp==1.0 thing", server(command="npx", args=["x"])]
)
def test_packages_of_npx_and_uvx_are_locked(text: str) -> None:
    assert only(text).manifest["packages"] == "locked"


@pytest.mark.parametrize(
    "text",
    [
        "bunx thing-mcp@1.0.0",
        "npm exec -- thing-mcp@1.0.0",
        "npx -y git+https://example.com/thing.git",
        "npx -y --registry=https://example.com thing-mcp@1.0.0",
        "uvx --from git+https://example.com/thing thing",
        server(command="npx", args=["-y", "thing-mcp@1.0.0"], env={"npm_config_registry": "https://example.com"}),
    ],
)
def test_packages_that_cannot_be_locked_are_noted(text: str) -> None:
    draft = only(text)
    assert "packages" not in draft.manifest
    assert any("each start may fetch it" in note for note in draft.notes)


def test_a_program_that_fetches_nothing_has_no_packages() -> None:
    assert "packages" not in only("node /srv/server.js").manifest
    assert only("node /srv/server.js").notes == ()


def test_relative_paths_are_noted() -> None:
    for text in ("node ./build/index.js", server(command="bin/serve"), server(command="x", args=["~/data"])):
        assert any("relative paths" in note for note in only(text).notes)


def test_what_is_not_taken_over_is_noted() -> None:
    draft = only(server(command="x", cwd="/srv", envFile=".env", oauth={"a": "b"}, alwaysAllow=["t"], timeout="soon"))
    text = " ".join(draft.notes)
    for word in ("cwd", "envFile", "oauth", "alwaysAllow", "timeout"):
        assert word in text


def test_an_older_transport_is_noted() -> None:
    assert any("SSE" in note for note in only(server(type="sse", url="https://e.example/sse")).notes)
    assert any("SSE" in note for note in only(server(url="https://e.example/x", trust=True)).notes)
    assert (
        only(server(type="http", url="https://e.example/x", trust=True)).notes[0].startswith("The hall does not know")
    )


def test_limits_that_the_hall_cannot_have_are_left_out() -> None:
    for timeout in (0, -1, 10**12, True, float("1e300")):
        assert "timeout" not in only(server(command="x", timeout=timeout)).manifest
    assert only(server(command="x", timeout=60)).manifest["timeout"] == 60
    assert only(server(command="x", timeout=60_000)).manifest["timeout"] == 60


def test_a_server_that_is_switched_off_stays_off() -> None:
    for switch in ({"disabled": True}, {"enabled": False}):
        assert only(server(command="x", **switch)).manifest["enabled"] is False


def test_a_line_in_command_is_split() -> None:
    draft = only(server(command="npx -y thing-mcp --port 3"))
    assert (draft.manifest["command"], draft.manifest["args"]) == ("npx", ["-y", "thing-mcp", "--port", "3"])
    assert only(server(command="/Applications/My Tool/serve")).manifest["command"] == "/Applications/My Tool/serve"


def test_a_form_of_older_tools_with_the_url_under_transport_is_read() -> None:
    draft = only(server(transport={"type": "http", "url": "https://e.example/mcp"}))
    assert draft.manifest["url"] == "https://e.example/mcp"


# Names ------------------------------------------------------------------------------------------------------------


def test_a_single_server_takes_the_given_name() -> None:
    assert only("npx -y thing-mcp", name="other").name == "other"
    assert "leave the name out" in refusal('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}}}', name="c")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("npx -y @modelcontextprotocol/server-github", "github"),
        ("npx -y @upstash/context7-mcp@latest", "context7"),
        ("npx @playwright/mcp", "playwright"),
        ("npx --package=left @scope/server", "scope"),
        ("uvx --from git+https://example.com/serena serena start-mcp-server", "serena"),
        ("pipx run mcp-server-sqlite==1.0", "sqlite"),
        ("npm exec -- thing", "thing"),
        ("python /srv/tools/weather.py", "weather"),
        ("/opt/bin/tool.exe", "tool"),
        ("https://mcp.linear.app/mcp", "linear"),
        ("https://example.com/mcp", "example"),
        ("http://localhost:3000/mcp", "localhost"),
        ("http://127.0.0.1:3000/mcp", "127-0-0-1"),
    ],
)
def test_a_server_without_a_name_gets_one(text: str, name: str) -> None:
    assert only(text).name == name


@pytest.mark.parametrize("name", ["", "Ca\u0301fe\u0301 tools!", "a.b/c", "..", "x" * 100, "-x"])
def test_a_name_that_no_member_can_have_becomes_one_or_is_explained(name: str) -> None:
    text = json.dumps({"mcpServers": {name: {"command": "serve"}}})
    if name == "..":
        assert "no letter or digit" in refusal(text)
        return
    draft = only(text)
    assert parse(draft.manifest)[0].name == draft.name
    assert name == "" or any("becomes" in note for note in draft.notes)


@pytest.mark.parametrize(
    "name", ["g\u0456thub", "\uff47ithub", "git\u200bhub", "github\u202e", "git\u2010hub", "git\u00adhub"]
)
def test_a_name_that_looks_like_another_is_refused(name: str) -> None:
    text = json.dumps({"mcpServers": {name: {"command": "serve"}, "github": {"command": "serve"}}})
    reading = read(text)
    assert [draft.name for draft in reading.drafts] == ["github"]
    assert "name" in str(reading.refusals[0])
    assert str(reading.refusals[0]).isprintable()


def test_names_that_differ_only_in_case_are_refused() -> None:
    reading = read('{"mcpServers": {"Echo": {"command": "a"}, "echo": {"command": "b"}, "e.cho": {"command": "c"}}}')
    assert [draft.name for draft in reading.drafts] == ["Echo", "e-cho"]
    assert "differs from 'Echo' at most in case" in str(reading.refusals[0])


def test_secrets_of_two_members_never_share_a_name() -> None:
    reading = read(
        json.dumps(
            {
                "mcpServers": {
                    "a": {"command": "x", "env": {"b_TOKEN": "first-value"}, "args": ["--b-TOKEN=third-value"]},
                    "a-b": {"command": "x", "env": {"TOKEN": "second-value"}},
                }
            }
        )
    )
    secrets = [pair for draft in reading.drafts for pair in draft.secrets.items()]
    assert len(dict(secrets)) == len(secrets) == 3


def test_names_of_existing_secrets_are_not_used() -> None:
    draft = only(server(command="x", env={"TOKEN": "value"}), reserved={"srv-TOKEN", "srv-TOKEN-2"})
    assert draft.secrets == {"srv-TOKEN-3": "value"}
    assert draft.manifest["env"] == {"TOKEN": "${secret:srv-TOKEN-3}"}


def test_long_names_of_secrets_are_cut_and_stay_different() -> None:
    env = {f"{'A' * 90}{number}": f"value {number}" for number in range(3)}
    draft = only(server(command="x", env=env))
    assert sorted(draft.secrets.values()) == ["value 0", "value 1", "value 2"]
    assert all(len(name) <= 64 for name in draft.secrets)


# Secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["--api-key", "hunter22"],
        ["--api-key=hunter22"],
        ["-e", "LOGIN=hunter22"],
        ["--env=LOGIN=hunter22"],
        ["--header", "Authorization: Bearer hunter22"],
        ["--header=X-Api-Key: hunter22"],
        ["--header", "X-Custom: hunter22"],
        ["-H", "Cookie=hunter22"],
        ["Authorization: Bearer hunter22"],
        ["API_KEY=hunter22"],
        ["--user", "ada:hunter22"],
        ["redis://:hunter22@cache:6379/0"],
        ["--db", "mysql://ada:hunter22@db/x"],
        ["https://ghtoken-hunter22@git.example/x.git"],
        ["https://e.example/mcp?api_key=hunter22&mode=fast"],
        ["https://e.example/mcp?a=1;token=hunter22"],
        ["https://e.example/#access_token=hunter22"],
        ["--config", '{"apiKey": "hunter22"}'],
        ['--config={"apiKey": "hunter22"}'],
        ["--token", "<token>", "--password", "hunter22"],
        ["host=db password=hunter22 user=x"],
        ["--dsn-file", "/srv/x", "--connect", "host=db password=hunter22"],
    ],
)
def test_secrets_in_arguments_are_moved_out(args: list[str]) -> None:
    reading = read(server(command="serve", args=args))
    assert "hunter22" not in shown(reading)
    assert any("hunter22" in value for value in reading.drafts[0].secrets.values())
    assert any("in its arguments" in note for note in reading.drafts[0].notes)


@pytest.mark.parametrize("token", [GITHUB, OPENAI, "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "AKIAIOSFODNN7EXAMPLE"])
def test_tokens_are_found_by_their_form_wherever_they_are(token: str) -> None:
    for args in ([token], ["--mode", token], [f"prefix:{token}"], [f"https://e.example/s/{token}/mcp"]):
        reading = read(server(command="serve", args=args))
        assert token not in shown(reading)
        assert any(token in value for value in reading.drafts[0].secrets.values())


def test_a_secret_that_occurs_twice_is_hidden_twice() -> None:
    reading = read(
        server(command="serve", args=["--say", "correct-horse-battery"], env={"PASSWORD": "correct-horse-battery"})
    )
    assert "correct-horse-battery" not in shown(reading)
    assert reading.drafts[0].manifest["args"] == ["--say", "${secret:srv-PASSWORD}"]


@pytest.mark.parametrize(
    "source", ["npx --token hunter22 thing-mcp", server(command="npx", args=["--key", "hunter22"])]
)
def test_the_value_of_a_flag_for_a_secret_is_no_package(source: str) -> None:
    assert "hunter22" not in shown(read(source))


def test_a_secret_in_a_name_or_a_command_is_refused() -> None:
    text = json.dumps(
        {"mcpServers": {"correct-horse-battery": {"command": "x", "env": {"KEY": "correct-horse-battery"}}}}
    )
    assert "has a secret in its name" in refusal(text)
    assert "without variables and secrets" in refusal(server(command=f"/opt/{OPENAI}/serve"))


@pytest.mark.parametrize(
    "env",
    [
        {"LOG_LEVEL": "info"},
        {"DEBUG": "true"},
        {"MAX": "500"},
        {"DATA": "/srv/data/notes.json"},
        {"AWS_REGION": "eu-central-1"},
        {"API_URL": "https://api.example.com/v1"},
        {"REDIS": "localhost:6379"},
        {"MODEL": "gpt-5-mini"},
        {"GOOGLE_APPLICATION_CREDENTIALS": "/srv/key.json"},
        {"EMPTY": ""},
        {"USE_AUTH": "false"},
        {"TZ": "Europe/Berlin"},
        {"CONTACT_EMAIL": "ada@example.org"},
    ],
)
def test_values_that_are_certainly_no_secrets_stay(env: dict[str, str]) -> None:
    draft = only(server(command="serve", env=env))
    assert draft.manifest["env"] == env
    assert draft.secrets == {}


@pytest.mark.parametrize(
    "env",
    [
        {"ANYTHING": "hunter2"},
        {"PIN": "1234"},
        {"API_KEY": "info"},
        {"DATABASE": "postgres://ada:pw@db/x"},
        {"SERVICE": "https://hooks.example.com/T0/B0/a1b2c3d4e5f6a7b8c9d0"},
        {"SERVICE": "https://e.example/?k=v"},
        {"LOG_LEVEL": OPENAI},
        {"DB_NAME": "0123456789abcdef0123456789abcdef"},
        {"ID": "6f9619ff-8b86-d011-b42d-00cf4fc964ff"},
        {"CODE": "123456789"},
        {"DB_HOST": "postgres:hunter22@db"},
        {"PROXY_HOST": "ada:hunter22@proxy"},
    ],
)
def test_all_other_values_of_env_are_secrets(env: dict[str, str]) -> None:
    draft = only(server(command="serve", env=env))
    assert list(draft.secrets.values()) == list(env.values())


def test_the_scheme_of_a_header_stays_readable() -> None:
    draft = only(server(url="https://e.example/mcp", headers={"Authorization": "Basic YWRhOnB3", "X-Team": "blue"}))
    assert draft.manifest["headers"] == {
        "Authorization": "Basic ${secret:srv-Authorization}",
        "X-Team": "${secret:srv-X-Team}",
    }


def test_text_beside_a_variable_is_a_secret_too() -> None:
    draft = only(server(command="x", env={"LOGIN": "ada-hunter22:${env:HOST}"}))
    assert draft.manifest["env"] == {"LOGIN": "${secret:srv-LOGIN}${secret:srv-HOST}"}
    assert draft.secrets == {"srv-LOGIN": "ada-hunter22:"}


@pytest.mark.parametrize(
    "url",
    [
        "https://e.example/mcp?api_key=hunter22",
        "https://ada:hunter22@e.example/mcp",
        "https://hunter22@e.example/mcp",
        "https://e.example/s/a1b2c3d4e5f6a7b8c9d0/mcp",
        "https://e.example/mcp?x=6f9619ff-8b86-d011-b42d-00cf4fc964ff",
        "https://e.example/mcp#hunter22",
        "https://${HOST}/hunter22",
        "ftp://e.example/hunter22",
    ],
)
def test_an_address_that_everybody_may_not_see_is_refused(url: str) -> None:
    assert "hunter22" not in refusal(server(url=url))


# Variables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference", ["${secret:prod-db}", "${file:/etc/shadow}", "${command:x}", "${a ${b} c}", "${x"]
)
@pytest.mark.parametrize("where", ["env", "args", "headers"])
def test_nobody_smuggles_a_reference_of_the_hall_in(reference: str, where: str) -> None:
    if where == "headers":
        text = server(url="https://e.example/mcp", headers={"X-Mode": f"Bearer {reference}"})
    elif where == "env":
        text = server(command="x", env={"MODE": f"{reference} ${{env:A}}"})
    else:
        text = server(command="x", args=[reference])
    try:
        drafts = read(text).drafts
    except SourceError:
        return
    assert "prod-db" not in json.dumps(drafts[0].manifest)
    assert reference not in json.dumps(drafts[0].manifest)


def test_a_variable_of_the_environment_of_the_hall_is_asked_for() -> None:
    draft = only(server(command="x", env={"A": "${env:GUILD_HALL_MEMBER_PROD}"}))
    assert draft.manifest["env"] == {"A": "${secret:srv-GUILD_HALL_MEMBER_PROD}"}


def test_the_port_of_the_hall_is_not_put_in() -> None:
    draft = only(server(command="x", args=["${PORT}"], env={"PORT": "80"}))
    assert draft.manifest["args"] == ["${secret:srv-PORT}"]


def test_a_dollar_alone_is_a_variable_only_where_the_client_says_so() -> None:
    assert only(server(command="x", env={"PASSWORD": "pa$word"})).secrets == {"srv-PASSWORD": "pa$word"}
    draft = only(server(command="x", env={"PASSWORD": "$WORD"}))
    assert [asked.label for asked in draft.inputs] == ["WORD"]


def test_a_prompt_of_vs_code_is_described() -> None:
    text = json.dumps(
        {
            "inputs": [{"id": "who", "type": "pickString", "description": "Who?", "options": ["a", "b"]}],
            "servers": {"srv": {"command": "x", "args": ["--who", "${input:who}", "${input:other}"]}},
        }
    )
    who, other = only(text).inputs
    assert (who.label, who.description, who.options) == ("who", "Who?", ("a", "b"))
    assert (other.label, other.description, other.secret) == ("other", "", "srv-other")


@pytest.mark.parametrize(
    "described",
    [
        {"id": "who", "options": ["a", OPENAI]},
        {"id": "who", "description": f"Such as {OPENAI}"},
        {"id": "who", "password": True, "options": [OPENAI[:10]]},
        {"id": "token", "options": [OPENAI[:10]]},
    ],
)
def test_a_prompt_shows_no_secret(described: dict[str, object]) -> None:
    args = ["--who", f"${{input:{described['id']}}}"]
    text = json.dumps({"inputs": [described], "servers": {"srv": {"command": "x", "args": args}}})
    (asked,) = only(text).inputs
    assert OPENAI[:10] not in asked.description + " ".join(asked.options)


def test_a_prompt_for_a_password_ignores_its_default() -> None:
    text = json.dumps(
        {
            "inputs": [{"id": "pw", "type": "promptString", "password": True, "default": "hunter22"}],
            "servers": {"srv": {"command": "x", "env": {"A": "${input:pw}"}}},
        }
    )
    reading = read(text)
    assert reading.drafts[0].secrets == {}
    assert "hunter22" not in shown(reading)


# Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("a\0b", "NUL"),
        ("docker run -i --rm mcp/github", "containers"),
        ("sudo docker run x", "containers"),
        ("env A=b podman run x", "containers"),
        ("npx a | tee b", "operator of a shell"),
        ("npx a && rm x", "operator of a shell"),
        ("npx a > /etc/passwd", "operator of a shell"),
        ("npx a; b", "operator of a shell"),
        ("npx $(cat x)", "operator of a shell"),
        ("npx `cat x`", "command in a command"),
        ('npx "$(cat x)"', "command in a command"),
        ("npx 'a", "quotation mark"),
        ("npx a\nnpx b", "several lines"),
        ("A=b", "starts no program"),
        ("bash -c 'npx a'", "script in a shell"),
        ("claude mcp remove x", "adds a server"),
        ("claude mcp add", "no name"),
        ("claude mcp add --wrong x y", "does not know"),
        ("claude mcp add x -e", "needs a value"),
        ("claude mcp add x -e A", "between its name and its value"),
        ("claude mcp add x", "neither a command nor an address"),
        ("claude mcp add-json x", "in JSON"),
        ("{", "line 1, column 2: is not JSON"),
        ('{"a": 1,\n "b": }', "line 2, column 7"),
        ('"mcpServers": {"a": }', "line 1, column 21"),
        ('{"a": NaN}', "NaN"),
        ('{"a": /* x', "comment that does not end"),
        ('{"a": "x', "string that does not end"),
        ('{"a": ' + "9" * 5000 + "}", "too long"),
        ('{"a":' * 100, "nested too deep"),
        ('{"a": 1, "a": 2}', "a: is given twice"),
        ('{"a": 1}', "has no servers"),
        ("{}", "has no servers"),
        ('{"mcpServers": {}}', "has no servers"),
        ('{"mcpServers": []}', "mcpServers: must be an object"),
        ('{"mcpServers": {"a": 1}}', "mcpServers.a.command: must be a string"),
        ('{"servers": {"a": {"command": "x"}}, "inputs": {}}', "inputs: must be an array"),
        ("[mcp_servers.x]\ncommand = x", "line 2"),
        ("[mcp_servers.x]\n" + "a." * 200 + "a = 1", "more than 100 dots"),
        ("[mcp_servers.x]\na = " + "[" * 5000, "nested too deep"),
        (server(command="x", url="https://e.example"), "has a command and an address"),
        (server(type="stdio", url="https://e.example"), "stdio server with an address"),
        (server(type="ws", url="https://e.example"), "mcpServers.srv.type"),
        (server(command="x", args="a"), "mcpServers.srv.args: must be an array"),
        (server(command="x", args=[None]), "mcpServers.srv.args.0: must be a string"),
        (server(command="x", args=["a"] * 501), "more than 500"),
        (server(command="x", env={"A": {}}), "mcpServers.srv.env.A: must be a string"),
        (server(command="x", env={"A-B": "c"}), "not a name for an environment variable"),
        (server(command="x", env={"GUILD_HALL_X": "1"}), "the hall's own"),
        (server(command="x", env={"A": "\ud800"}), "lone surrogates"),
        (server(command="x", env={"A": "b" * 65_537}), "longer than"),
        (server(url="https://e.example", headers={"A B": "1"}), "mcpServers.srv.headers.A B"),
        (server(url="https://e.example", headers={"A": "a\nb"}), "one line of visible ASCII"),
        (server(source="extension"), "extension of Zed"),
        (server(args=["a"]), "command: is missing"),
        (server(command="cmd", args=["/c"]), "no program after /c"),
        (server(command="${X}/bin"), "without variables"),
        (server(url="https://e.example", bearer_token_env_var="a b"), "name of an environment variable"),
        (json.dumps({"mcpServers": {str(number): {"command": "x"} for number in range(51)}}), "at most 50"),
        (" " * 300_000, "larger than"),
    ],
)
def test_what_cannot_be_a_member_is_refused_with_its_place(text: str, words: str) -> None:
    assert words in refusal(text)


def test_one_bad_server_does_not_keep_the_others_out() -> None:
    reading = read('{"mcpServers": {"box": {"command": "docker", "args": ["run", "x"]}, "ok": {"command": "serve"}}}')
    assert [draft.name for draft in reading.drafts] == ["ok"]
    assert [refused.place for refused in reading.refusals] == ["mcpServers.box"]


def test_every_key_of_a_draft_is_a_key_of_the_manifest() -> None:
    keys = {key for each in CONFIGURATIONS for draft in read(each.text).drafts for key in draft.manifest}
    assert keys - {*FIELDS, "sandbox"} == set()
