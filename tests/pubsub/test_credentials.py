"""From a Google connection to credentials, with google-auth as it is and a token endpoint of our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from airflow_provider_sharedstream.brokers.pubsub.errors import is_transient
from airflow_provider_sharedstream.connections.google import google_access, refusal_of
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from tests.pubsub.tokens import TokenServer

Connect = Callable[..., str]


@pytest.fixture(scope="module")
def _tokens() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


@pytest.fixture
def tokens(_tokens: TokenServer) -> TokenServer:
    _tokens.refusal = None
    _tokens.seconds = 3600
    return _tokens


@pytest.fixture(scope="module")
def key(_tokens: TokenServer) -> dict[str, str]:
    return _tokens.key()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Connect:
    """Makes a connection of the fields given, and returns its id. This process has no default credentials."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")

    def make(**extra: Any) -> str:
        connection = {"conn_type": "google_cloud_platform", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SOME_GOOGLE", json.dumps(connection))
        return "some_google"

    return make


async def test_a_key_file(connect: Connect, tokens: TokenServer, key: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_text(json.dumps(key))
    access = await google_access(connect(key_path=str(file)))
    assert access.credentials.token.startswith("token-")
    assert access.project == "keys-project"
    assert tokens.scopes() == ["https://www.googleapis.com/auth/cloud-platform"]


@pytest.mark.parametrize("prefix", ["", "extra__google_cloud_platform__"])
@pytest.mark.parametrize("form", ["dict", "JSON", "line ends spelled out"])
async def test_the_key_itself(
    connect: Connect, tokens: TokenServer, key: dict[str, str], prefix: str, form: str
) -> None:
    value: Any = key
    if form == "JSON":
        value = json.dumps(key)
    elif form == "line ends spelled out":
        value = {**key, "private_key": key["private_key"].replace("\n", "\\n")}
    fields = {"keyfile_dict": value, "project": "own-project", "key_path": "", "scope": "https://a/b, https://c/d"}
    access = await google_access(connect(**{prefix + name: field for name, field in fields.items()}))
    assert access.credentials.valid
    assert access.project == "own-project"
    assert tokens.scopes() == ["https://a/b", "https://c/d"]


async def test_application_default_credentials(
    connect: Connect, tokens: TokenServer, key: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "default.json"
    file.write_text(json.dumps(key))
    connect()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    # An empty connection, the default one that doesn't exist, and none at all.
    for conn_id in ("some_google", "google_cloud_default", None):
        access = await google_access(conn_id)
        assert access.credentials.token.startswith("token-")
        assert access.project == "keys-project"


@pytest.mark.parametrize("form", ["path", "JSON", "dict"])
async def test_workload_identity(connect: Connect, tokens: TokenServer, tmp_path: Path, form: str) -> None:
    subject = tmp_path / "subject-token"
    subject.write_text("from the identity provider")
    config = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{tokens.url}/token",
        "credential_source": {"file": str(subject)},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    value: Any = {"path": str(file), "JSON": json.dumps(config), "dict": config}[form]
    access = await google_access(connect(credential_config_file=value, project="p"))
    assert access.credentials.token.startswith("token-")
    assert access.project == "p"
    assert tokens.asked[-1]["subject_token"] == "from the identity provider"


async def test_no_credentials_for_an_emulator(connect: Connect) -> None:
    access = await google_access(connect(project="p", key_path="/not/looked/at"), needs_credentials=False)
    assert access == (None, "p")
    access = await google_access(connect(is_anonymous=True))
    assert isinstance(access.credentials, AnonymousCredentials)


@pytest.mark.parametrize("chain", ["a@x, b@x", ["a@x", "b@x"]])
@pytest.mark.parametrize("given_by", ["argument", "connection"])
async def test_an_impersonation_chain(
    connect: Connect, key: dict[str, str], chain: Any, given_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    # Google's own address gives the token; it isn't to be reached from here.
    monkeypatch.setattr("google.auth.impersonated_credentials.Credentials.refresh", lambda self, _: made.append(self))
    if given_by == "argument":
        await google_access(connect(keyfile_dict=key, impersonation_chain="someone@else"), chain)
    else:
        await google_access(connect(keyfile_dict=key, impersonation_chain=chain))
    assert made[0].service_account_email == "b@x"
    assert made[0]._delegates == ["a@x"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"key_path": "/k", "keyfile_dict": "{}"}, "key_path and keyfile_dict exclude each other"),
        ({"key_path": "/no/such/key.json"}, "the credentials can't be read.*No such file.*/no/such/key.json"),
        ({"keyfile_dict": "not JSON"}, "keyfile_dict is not JSON"),
        ({"keyfile_dict": "[1]"}, "keyfile_dict is expected to be a JSON object, not list"),
        ({"keyfile_dict": {"type": "service_account"}}, "these are no usable credentials.*missing fields"),
        ({"credential_config_file": {"type": "service_account"}}, "credential_config_file is expected to be of type"),
        ({"credential_config_file": {"type": "external_account"}}, "these are no usable credentials"),
        ({"key_secret_name": "s"}, "key_secret_name is the official Google provider's; use key_path"),
        ({"idp_issuer_url": "https://i"}, "idp_issuer_url is the official Google provider's"),
        ({}, "no credentials. Give the connection key_path or keyfile_dict"),
    ],
)
async def test_what_leads_to_no_credentials(connect: Connect, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SourceUnavailable, match=f"gcp_conn_id='some_google': {text}"):
        await google_access(connect(**fields))


async def test_a_key_that_is_no_key(connect: Connect, key: dict[str, str]) -> None:
    with pytest.raises(SourceUnavailable, match="these are no usable credentials"):
        await google_access(connect(keyfile_dict={**key, "private_key": "nonsense"}))


async def test_credentials_that_are_refused(connect: Connect, tokens: TokenServer, key: dict[str, str]) -> None:
    access = await google_access(connect(keyfile_dict=key))
    tokens.refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
    with pytest.raises(SourceUnavailable, match="Google gives no token for these credentials.*Invalid JWT Signature"):
        await google_access(connect(keyfile_dict=key))
    # Good until it runs out.
    assert await refusal_of(access.credentials) is None
    access.credentials.expiry = None
    access.credentials.token = None
    assert "Invalid JWT Signature" in str(await refusal_of(access.credentials))


async def test_a_token_endpoint_that_is_away(connect: Connect, key: dict[str, str]) -> None:
    with pytest.raises(Exception, match="127.0.0.1") as caught:
        await google_access(connect(keyfile_dict={**key, "token_uri": "http://127.0.0.1:9/token"}))
    assert is_transient(caught.value)


async def test_a_connection_that_does_not_exist() -> None:
    with pytest.raises(SourceUnavailable, match="gcp_conn_id='nowhere': there is no such connection"):
        await google_access("nowhere")
