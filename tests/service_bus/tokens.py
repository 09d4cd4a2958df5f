"""A directory's token endpoint on 127.0.0.1, and the one that a managed identity asks."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

MANAGED_PATH = "/managed"


class TokenServer:
    """Gives ``token-of-<client>`` to each client that says one of the secrets.

    :param tls: it speaks nothing else: azure-identity asks no directory without TLS.
    """

    def __init__(self, tls: ssl.SSLContext) -> None:
        self.secrets: set[str] = set()
        """Client secrets, federated tokens and the secret of managed identities."""
        self.asked: list[str] = []
        """The path of each request."""
        handler = type("Handler", (_Handler,), {"tokens": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
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
        return f"https://127.0.0.1:{self._server.server_port}"


class _Handler(BaseHTTPRequestHandler):
    tokens: TokenServer

    def do_POST(self) -> None:
        """What an application asks a directory."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = dict(urllib.parse.parse_qsl(body))
        secret = asked.get("client_secret") or asked.get("client_assertion", "")
        self._answer(asked["client_id"], secret, {"expires_in": 3600})

    def do_GET(self) -> None:
        """What a managed identity asks the machine that it runs on."""
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        secret = self.headers.get("X-IDENTITY-HEADER", "")
        self._answer(asked["client_id"], secret, {"expires_on": 4102444800, "resource": asked["resource"]})

    def _answer(self, client: str, secret: str, more: dict[str, Any]) -> None:
        self.tokens.asked.append(urllib.parse.urlsplit(self.path).path)
        known = secret in self.tokens.secrets
        refusal = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}
        given = {"access_token": f"token-of-{client}", "token_type": "Bearer", **more}
        content = json.dumps(given if known else refusal).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
