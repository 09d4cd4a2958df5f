"""One SQS queue as tests, demo and benchmarks use it: send many, count, take all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Depth(NamedTuple):
    """How many messages a queue holds, by state."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def total(self) -> int:
        return self.visible + self.in_flight + self.delayed


class SqsQueue:
    """A queue that exists.

    :param client: a boto3 SQS client.
    :param url: the queue's.
    :param dead_letters: its redrive target, if it has one.
    """

    def __init__(self, client: Any, url: str, dead_letters: SqsQueue | None = None) -> None:
        self.client = client
        self.url = url
        self.name = url.rpartition("/")[2]
        self.dead_letters = dead_letters

    @property
    def arn(self) -> str:
        return str(self._attributes("QueueArn")["QueueArn"])

    def send(
        self,
        bodies: Iterable[str],
        *,
        attributes: Mapping[str, Any] | None = None,
        group: str | None = None,
    ) -> list[str]:
        """Send in tens and return the message ids; raises RuntimeError when the server refuses one.

        :param attributes: message attributes as boto3 takes them, the same for all.
        :param group: message group of a FIFO queue. Equal bodies are sent too: each gets a deduplication id of its own.
        """
        entries: list[dict[str, Any]] = []
        ids: list[str] = []
        for number, body in enumerate(bodies):
            entry: dict[str, Any] = {"Id": str(number % 10), "MessageBody": body}
            if attributes:
                entry["MessageAttributes"] = dict(attributes)
            if group is not None:
                entry |= {"MessageGroupId": group, "MessageDeduplicationId": f"{time.time_ns()}-{number}"}
            entries.append(entry)
            if len(entries) == 10:
                ids += self._send(entries)
                entries = []
        return ids + self._send(entries) if entries else ids

    def depth(self) -> Depth:
        """What the server counts; on AWS an approximation."""
        names = [f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed")]
        found = self._attributes(*names)
        return Depth(*(int(found[name]) for name in names))

    def receive(self, most: int = 10, *, wait_seconds: int = 0) -> list[dict[str, Any]]:
        """One ReceiveMessage with everything on it, `most` up to 10; the messages stay in the queue, hidden."""
        answer = self.client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=wait_seconds,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        return list(answer.get("Messages", []))

    def take(self) -> list[dict[str, Any]]:
        """Receive and delete until a receive comes back empty."""
        taken: list[dict[str, Any]] = []
        while messages := self.receive():
            self.delete(messages)
            taken += messages
        return taken

    def delete(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Delete up to ten; raises RuntimeError when the server refuses one."""
        entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
        _check(self.client.delete_message_batch(QueueUrl=self.url, Entries=entries))

    def remove(self) -> None:
        """Delete the queue and its dead letters."""
        self.client.delete_queue(QueueUrl=self.url)
        if self.dead_letters is not None:
            self.dead_letters.remove()

    def _send(self, entries: list[dict[str, Any]]) -> list[str]:
        answer = _check(self.client.send_message_batch(QueueUrl=self.url, Entries=entries))
        by_entry = {sent["Id"]: str(sent["MessageId"]) for sent in answer["Successful"]}
        return [by_entry[entry["Id"]] for entry in entries]

    def _attributes(self, *names: str) -> dict[str, Any]:
        answer = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=list(names))
        return dict(answer["Attributes"])


def _check(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("Failed"):
        raise RuntimeError(f"the SQS server refused: {answer['Failed']}")
    return answer
