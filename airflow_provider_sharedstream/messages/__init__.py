"""From raw bytes to what a Dag gets.

A task needs three names, and importing them loads nothing else:

- :func:`messages` returns the messages that started a run;
- :class:`Message` is one of them;
- :class:`RejectMessage` is what an ``apply_function`` raises to reject one for good.

On the triggerer's side, in the order in which a message passes them: ``decode``, ``unwrap``, ``match``, ``apply``;
``pipeline`` puts them together; ``payload`` says what an event may hold.
"""

from airflow_provider_sharedstream.messages.events import messages
from airflow_provider_sharedstream.stream.errors import RejectMessage
from airflow_provider_sharedstream.stream.message import Message

__all__ = ["Message", "RejectMessage", "messages"]
