"""A token endpoint on 127.0.0.1, and the key of a service account that is known there."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from typing_extensions import Self


class TokenServer:
    """Gives a token to everybody, until told otherwise."""

    def __init__(self) -> None:
        self.refusal: dict[str, str] | None = None
        """What is answered instead, as {"error": "invalid_grant"}."""
        self.seconds = 3600
        """For how long a token is good."""
        self.asked: list[dict[str, str]] = []
        """The fields of each request."""
        handler = type("Handler", (_Handler,), {"tokens": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/token"

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
            "token_uri": self.url,
        }

    def scopes(self) -> list[str]:
        """What the latest request, signed by a service account, asked for."""
        claims = self.asked[-1]["assertion"].split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(claims + "=="))["scope"]).split()


class _Handler(BaseHTTPRequestHandler):
    tokens: TokenServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.tokens.asked.append(dict(urllib.parse.parse_qsl(body)))
        answer: dict[str, Any] = self.tokens.refusal or {
            "access_token": f"token-{len(self.tokens.asked)}",
            "expires_in": self.tokens.seconds,
            "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
        content = json.dumps(answer).encode()
        self.send_response(400 if self.tokens.refusal else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
