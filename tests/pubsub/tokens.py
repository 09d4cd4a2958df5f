"""A token endpoint, and the key of a service account that is known there."""

from __future__ import annotations

import base64
import json
from email.message import Message
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.token_endpoint import TokenEndpoint


class TokenServer(TokenEndpoint):
    """Gives a token to everybody, until told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: dict[str, str] | None = None
        """What is answered instead, as {"error": "invalid_grant"}."""
        self.seconds = 3600
        """For how long a token is good."""
        self.asked: list[dict[str, str]] = []
        """The fields of each request."""

    def key(self) -> dict[str, str]:
        """A new key of a service account, as Google hands it out."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": "keys-project",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": "airflow@keys-project.iam.gserviceaccount.com",
            "token_uri": f"{self.url}/token",
        }

    def scopes(self) -> list[str]:
        """What the latest request, signed by a service account, asked for."""
        claims = self.asked[-1]["assertion"].split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(claims + "=="))["scope"]).split()

    def answer(self, path: str, headers: Message, fields: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(fields)
        if self.refusal:
            return 400, self.refusal
        return 200, {
            "access_token": f"token-{len(self.asked)}",
            "expires_in": self.seconds,
            "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
