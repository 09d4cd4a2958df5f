"""Requests and their responses, over a pair of links: tokens to ``$cbs``, the rest to an entity's ``$management``."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from proton import Delivery, symbol
from proton import Link as AmqpLink
from proton import Message as AmqpMessage

from tests.emulators.service_bus.content import owned
from tests.emulators.service_bus.links import Link, new_delivery, read
from tests.emulators.service_bus.management import Management
from tests.emulators.service_bus.refusals import Refusal, internal_error, not_implemented
from tests.emulators.service_bus.tokens import entity_path

if TYPE_CHECKING:
    from tests.emulators.service_bus.connection import ClientConnection

log = logging.getLogger(__name__)

CBS = "$cbs"
MANAGEMENT_SUFFIX = "/$management"
REQUEST_CREDIT = 100
ACCEPTED, NO_CONTENT = 202, 204


class Responses(Link):
    """The client's receiver of a pair."""

    def reply(self, request: AmqpMessage, response: AmqpMessage) -> None:
        response.correlation_id = request.id
        new_delivery(self.amqp, uuid.uuid4().bytes)
        self.amqp.send(response.encode())
        self.amqp.advance()
        self.connection.flush_soon()

    def delivery(self, delivery: Delivery) -> None:
        if delivery.updated:
            delivery.settle()


class Requests(Link):
    """The client's sender of a pair."""

    def start(self) -> None:
        self.attach()
        self.amqp.flow(REQUEST_CREDIT)

    def delivery(self, delivery: Delivery) -> None:
        encoded = read(self.amqp, delivery, REQUEST_CREDIT)
        if encoded is None:
            return
        request = AmqpMessage()
        request.decode(encoded)
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        responses = self._responses()
        if responses is not None:
            responses.reply(request, self.answer(request))

    def answer(self, request: AmqpMessage) -> AmqpMessage:
        raise NotImplementedError

    def _responses(self) -> Responses | None:
        for link in self.connection.links:
            if isinstance(link, Responses) and link.path == self.path and link.amqp.session == self.amqp.session:
                return link
        return None


class CbsRequests(Requests):
    """Takes tokens: refused are those with a wrong signature or over their time, and those for nothing that exists."""

    def answer(self, request: AmqpMessage) -> AmqpMessage:
        try:
            self._put_token(request)
        except Refusal as refusal:
            log.info("token refused: %s", refusal)
            status, description = refusal.status_code, refusal.description
        else:
            status, description = ACCEPTED, "Accepted"
        return AmqpMessage(properties={"status-code": status, "status-description": description})

    def _put_token(self, request: AmqpMessage) -> None:
        asked: dict[str, Any] = request.properties or {}
        if asked.get("operation") != "put-token":
            raise not_implemented(str(asked.get("operation")))
        audience = str(asked.get("name"))
        grant = self.broker.keys.check(_text(request.body), audience)
        path = entity_path(audience)
        if path:
            self.broker.namespace.entity(path)
        self.connection.grants.append(grant)


class ManagementRequests(Requests):
    def __init__(self, connection: ClientConnection, amqp: AmqpLink, path: str) -> None:
        super().__init__(connection, amqp, path)
        self._entity_path = path.removesuffix(MANAGEMENT_SUFFIX)
        connection.authorize(None, self._entity_path)
        self._management = Management(self.broker, self.broker.namespace.entity(self._entity_path))

    def answer(self, request: AmqpMessage) -> AmqpMessage:
        asked: dict[str, Any] = request.properties or {}
        operation = str(asked.get("operation")).rpartition(":")[2]
        properties: dict[str, Any]
        try:
            status, body = self._management.answer(operation, owned(request.body) or {})
            properties = {"statusCode": status, "statusDescription": "OK"}
        except Refusal as refusal:
            body = {}
            properties = _refused(refusal)
        except Exception as error:
            log.exception("%s on %s", operation, self.path)
            body = {}
            properties = _refused(internal_error(error))
        return AmqpMessage(body=body, inferred=False, properties=properties)


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {
        "statusCode": refusal.status_code,
        "statusDescription": refusal.description,
        "errorCondition": symbol(refusal.condition),
    }


def _text(body: Any) -> str:
    return bytes(body).decode() if isinstance(body, bytes | memoryview) else str(body)
