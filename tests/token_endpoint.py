"""The life of a token endpoint on 127.0.0.1; a subclass says what it answers."""

from __future__ import annotations

import json
import ssl
import threading
from abc import ABC, abstractmethod
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self


class TokenEndpoint(ABC):
    """Answers in threads of its own while it is entered.

    :param tls: it speaks nothing else then.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        handler = type("Handler", (_Handler,), {"endpoint": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
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
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    @abstractmethod
    def answer(self, path: str, headers: Message, fields: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return a status, and what is sent as JSON.

        :param fields: of a form, or of a query.
        """


class _Handler(BaseHTTPRequestHandler):
    endpoint: TokenEndpoint

    def do_GET(self) -> None:
        self._answer(urlsplit(self.path).query)

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _answer(self, encoded: str) -> None:
        status, answer = self.endpoint.answer(urlsplit(self.path).path, self.headers, dict(parse_qsl(encoded)))
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
