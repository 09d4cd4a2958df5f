"""An AMQP 1.0 server that the Azure SDK takes for Service Bus, for tests where neither Docker nor Azure is to be had.

Read it in this order::

    content.py      the bytes of a message, as they came
    stored.py       a message in a queue, its lock, the order in which messages wait
    queues.py       what happens to them: delivery, settlement, expiry, dead-lettering
    sessions.py     the same where every message belongs to a session
    namespace.py    queues, topics and subscriptions by path
    tokens.py       who may do what
    refusals.py     every no, in the words of the service
    broker.py       all of that together, with what is to go wrong and what was counted
    links.py        messaging.py, requests.py, management.py: what a client can attach to
    connection.py   bytes to AMQP (by proton) to links and back
    server.py       the socket; websocket.py: another entrance
    control.py      what a test can order; orders.py carries it out
    emulator.py     the whole in a thread; __main__.py: in a process

The connection string needs ``UseDevelopmentEmulator=true``, which makes the SDK leave out TLS and keep the port.

Not there: TLS, rules, duplicate detection, partitions, auto-forwarding, transactions, and the HTTP interface that makes
entities. Messages are kept in memory. proton does not tell a transfer's message format, so a message whose body
is itself an encoded AMQP message would be taken for a batch.
"""

from tests.emulators.service_bus.control import Control, RemoteControl, Statistics
from tests.emulators.service_bus.emulator import ServiceBusEmulator
from tests.emulators.service_bus.stored import Counts, QueueOptions

__all__ = ["Control", "Counts", "QueueOptions", "RemoteControl", "ServiceBusEmulator", "Statistics"]
