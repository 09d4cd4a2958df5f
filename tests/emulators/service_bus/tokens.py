"""Shared access signatures: who may do what, and until when."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus, urlsplit

from tests.emulators.service_bus.refusals import expired_token, invalid_signature, malformed_token

SEND, LISTEN, MANAGE = "Send", "Listen", "Manage"
ALL_RIGHTS = frozenset({SEND, LISTEN, MANAGE})

SIGNATURE = "SharedAccessSignature "


@dataclass(frozen=True, slots=True)
class Key:
    """A shared access policy of the namespace."""

    secret: str
    rights: frozenset[str] = ALL_RIGHTS


@dataclass(frozen=True, slots=True)
class Grant:
    """What an accepted token allows.

    :param path: for this entity and everything below it; empty: for the whole namespace.
    """

    path: str
    rights: frozenset[str]
    expires_at: float

    def covers(self, path: str) -> bool:
        return not self.path or path.lower() == self.path or path.lower().startswith(self.path + "/")


class KeyRing:
    """The keys and bearer tokens that are accepted.

    :param keys: shared access policies by name.
    """

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self.keys = dict(keys)
        self._bearers: dict[str, tuple[frozenset[str], float]] = {}

    def add_bearer(self, token: str, rights: Collection[str], seconds: float) -> None:
        """Accept this text as if a directory had issued it just then; anything else of that kind is refused."""
        self._bearers[token] = frozenset(rights), seconds

    def check(self, token: str, audience: str) -> Grant:
        """What the token allows on the audience; raises Refusal when it is not accepted.

        Its kind is told by how it looks: the SDK calls signatures ``jwt``, too, and the service takes them.
        """
        if token.startswith(SIGNATURE):
            return self._check_signature(token, audience)
        if token not in self._bearers:
            raise invalid_signature()
        rights, seconds = self._bearers[token]
        return Grant(entity_path(audience), rights, time.time() + seconds)

    def _check_signature(self, token: str, audience: str) -> Grant:
        parts = dict(part.partition("=")[::2] for part in token.removeprefix(SIGNATURE).split("&"))
        if not {"sr", "sig", "se", "skn"} <= parts.keys():
            raise malformed_token("The signature lacks one of sr, sig, se and skn.")
        key = self.keys.get(unquote_plus(parts["skn"]))
        # Signed is the resource as it stands in the token, still encoded.
        signed = f"{parts['sr']}\n{parts['se']}".encode()
        expected = b"" if key is None else hmac.new(key.secret.encode(), signed, hashlib.sha256).digest()
        given = unquote_plus(parts["sig"]).encode()
        if key is None or not hmac.compare_digest(base64.b64encode(expected), given):
            raise invalid_signature()
        expires_at = float(parts["se"])
        if expires_at <= time.time():
            raise expired_token(expires_at)
        grant = Grant(entity_path(unquote_plus(parts["sr"])), key.rights, expires_at)
        if not grant.covers(entity_path(audience)):
            raise malformed_token("The token is for another resource than the one that was asked for.")
        return grant


def entity_path(address: str) -> str:
    """The entity in ``sb://host/entity`` and the like, in lower case."""
    path = urlsplit(address).path if "://" in address else address
    return path.strip("/").lower()
