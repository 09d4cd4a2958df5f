"""A directory's token endpoint, and the one that a managed identity asks."""

from __future__ import annotations

import ssl
from email.message import Message
from typing import Any

from tests.token_endpoint import TokenEndpoint

MANAGED_PATH = "/managed"


class TokenServer(TokenEndpoint):
    """Gives ``token-of-<client>`` to each client that says one of the secrets.

    :param tls: azure-identity asks no directory without it.
    """

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(tls)
        self.secrets: set[str] = set()
        """Client secrets, federated tokens and the secret of managed identities."""
        self.asked: list[str] = []
        """The path of each request."""

    def answer(self, path: str, headers: Message, fields: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(path)
        if path == MANAGED_PATH:
            secret = headers["X-IDENTITY-HEADER"]
            good = {"expires_on": 4102444800, "resource": fields["resource"]}
        else:
            secret = fields.get("client_secret") or fields.get("client_assertion")
            good = {"expires_in": 3600}
        if secret not in self.secrets:
            return 401, {
                "error": "invalid_client",
                "error_description": "AADSTS7000215: Invalid client secret provided.",
            }
        return 200, {"access_token": f"token-of-{fields['client_id']}", "token_type": "Bearer", **good}
