"""From librdkafka's ``ssl.*`` keys to an SSL context."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_provider_sharedstream.stream.errors import SourceUnavailable

TLS_KEYS = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)


def tls_context(extra: Mapping[str, Any], where: str) -> ssl.SSLContext:
    """Return the context that a connection's extra asks for. Blocks: it reads files.

    Without an authority the system's are trusted, as librdkafka does.

    :param where: the connection in words, for messages.
    :raises SourceUnavailable: a file can't be read, or isn't what it should be.
    """
    context = ssl.create_default_context()
    _trust(context, extra, where)
    certificate = _one_of(extra, "ssl.certificate", where)
    key = _one_of(extra, "ssl.key", where)
    if key and not certificate:
        raise SourceUnavailable(f"{where}: there is a key but no ssl.certificate.location or ssl.certificate.pem.")
    if certificate:
        password = str(extra.get("ssl.key.password") or "")
        with _file(certificate) as certificate_file, _file(key) as key_file:
            try:
                # A function, since without a password OpenSSL would ask for one at the terminal, and wait.
                context.load_cert_chain(str(certificate_file), key_file, password=lambda: password)
            except (OSError, ValueError) as error:
                raise SourceUnavailable(
                    f"{where}: the client's certificate and key can't be used (ssl.certificate.*, ssl.key.*): "
                    f"{_text(error)}"
                ) from error
    if (suites := extra.get("ssl.cipher.suites")) is not None:
        try:
            context.set_ciphers(str(suites))
        except ssl.SSLError as error:
            raise SourceUnavailable(f"{where}: ssl.cipher.suites={suites!r}: {_text(error)}") from error
    if str(extra.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(extra.get("enable.ssl.certificate.verification", "true")).strip().lower() in ("false", "f", "0"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _trust(context: ssl.SSLContext, extra: Mapping[str, Any], where: str) -> None:
    if pem := extra.get("ssl.ca.pem"):
        try:
            context.load_verify_locations(cadata=str(pem))
        except ssl.SSLError as error:
            raise SourceUnavailable(f"{where}: ssl.ca.pem holds no certificates in PEM: {_text(error)}") from error
    location = extra.get("ssl.ca.location")
    if location and location != "probe":
        _load(context, "ssl.ca.location", str(location), where)
    if crl := extra.get("ssl.crl.location"):
        _load(context, "ssl.crl.location", str(crl), where)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load(context: ssl.SSLContext, key: str, location: str, where: str) -> None:
    try:
        if os.path.isdir(location):
            context.load_verify_locations(capath=location)
        else:
            context.load_verify_locations(cafile=location)
    except OSError as error:
        raise SourceUnavailable(f"{where}: {key}={location!r} can't be used: {_text(error)}") from error


class _Inline(str):
    """PEM itself, not the name of a file."""


def _one_of(extra: Mapping[str, Any], key: str, where: str) -> str | None:
    location, pem = extra.get(f"{key}.location"), extra.get(f"{key}.pem")
    if location and pem:
        raise SourceUnavailable(f"{where}: {key}.location and {key}.pem are both given; give one.")
    if pem:
        return _Inline(pem)
    return str(location) if location else None


@contextmanager
def _file(given: str | None) -> Iterator[str | None]:
    """Give the name of a file that holds it: Python takes certificates from files only."""
    if not isinstance(given, _Inline):
        yield given
        return
    # Only the owner may read it, and it is gone a moment later.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(given)
        file.flush()
        yield file.name


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
