"""What Kafka's errors mean, and what somebody has to change."""

from __future__ import annotations

import asyncio
import ssl

from airflow_provider_sharedstream.stream.errors import SharedStreamError, SourceUnavailable, error_text


class NotConnected(ConnectionError):
    """The client was closed under a call."""


class LostContact(ConnectionError):
    """The brokers haven't answered for so long that the membership is gone."""


class ClientBroken(ConnectionError):
    """A task inside aiokafka has died: nothing would ever arrive again."""


class Rebalancing(SharedStreamError):
    """The group is being rebalanced: what is ours will be known in a moment."""


class NoReport(SharedStreamError):
    """The broker hasn't answered in time."""


def is_transient(error: BaseException) -> bool:
    """Whether ``error`` may go away by itself."""
    if isinstance(error, SourceUnavailable):
        return False
    if isinstance(error, (OSError, TimeoutError, asyncio.TimeoutError, Rebalancing, NoReport)):
        return True
    if isinstance(error, ImportError):
        return False
    from aiokafka import errors

    passing = (
        errors.CommitFailedError,
        errors.ConsumerStoppedError,
        errors.IllegalStateError,  # not assigned at this moment
        errors.IllegalGenerationError,
        errors.KafkaTimeoutError,
        errors.ProducerClosed,
        errors.UnknownMemberIdError,
        errors.RebalanceInProgressError,
        errors.CorruptRecordException,
        errors.BrokerNotAvailableError,
        errors.ReplicaNotAvailableError,
        errors.UnknownError,
    )
    # aiokafka wraps what it didn't expect of itself into the bare base class.
    return isinstance(error, passing) or bool(getattr(error, "retriable", False)) or type(error) is errors.KafkaError


def clear(error: Exception, *, where: str, group_id: str) -> Exception:
    """Return ``error``, or one that says what to change where somebody has to change something.

    :param where: the argument that names what was used, with its value.
    """
    if isinstance(error, SourceUnavailable):
        return error
    if isinstance(error, ImportError):
        return SourceUnavailable(
            f"the Kafka client is not installed ({error}); install airflow-provider-sharedstream[kafka]"
        )
    from aiokafka import errors

    group = f"group_id={group_id!r}"
    if isinstance(error, errors.GroupAuthorizationFailedError):
        return SourceUnavailable(f"{group}: the connection's user may not use the group. It needs READ on it.")
    if isinstance(error, errors.TopicAuthorizationFailedError):
        return SourceUnavailable(
            f"{where}: the connection's user may not use {_names(error)}. It needs READ on topics that are read, and "
            "WRITE on a dead_letter_topic."
        )
    if isinstance(error, errors.ClusterAuthorizationFailedError):
        return SourceUnavailable(f"{where}: the connection's user may not do this in the cluster: {error}")
    if isinstance(error, errors.InvalidSessionTimeoutError):
        return SourceUnavailable(
            f"{group}: the brokers refuse the connection's session.timeout.ms. Theirs are bounds: "
            "group.min.session.timeout.ms and group.max.session.timeout.ms."
        )
    if isinstance(error, errors.InconsistentGroupProtocolError):
        return SourceUnavailable(
            f"{group}: its other members share partitions out by another strategy. Give this stream a group of its "
            "own, or set partition.assignment.strategy in the connection to what they use (range or roundrobin)."
        )
    if isinstance(error, errors.InvalidGroupIdError):
        return SourceUnavailable(f"{group}: the brokers refuse this name.")
    if isinstance(error, errors.OffsetMetadataTooLargeError):
        return SourceUnavailable(
            f"{group}: the brokers refuse a commit with some 40 bytes of metadata. Theirs is the bound: "
            "offset.metadata.max.bytes."
        )
    if _is_authentication(error):
        return SourceUnavailable(f"{where}: the brokers refuse the connection's credentials: {error_text(error)}")
    if isinstance(error, ssl.SSLError):
        return SourceUnavailable(f"{where}: TLS fails: {error_text(error)}")
    return error


def _is_authentication(error: BaseException) -> bool:
    from aiokafka import errors

    kinds = (
        errors.AuthenticationFailedError,
        errors.AuthenticationMethodNotSupported,
        errors.IllegalSaslStateError,
        errors.SaslAuthenticationFailed,
        errors.UnsupportedSaslMechanismError,
    )
    return isinstance(error, kinds)


def _names(error: BaseException) -> str:
    found = error.args[0] if error.args else "a topic"
    return ", ".join(sorted(found)) if isinstance(found, (set, frozenset)) else str(found)
