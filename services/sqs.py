"""An SQS server: one given by address, one in Docker, or ministack as a local process.

Where ministack 1.5.33 differs from AWS, as measured; a test that depends on one of these proves nothing about AWS:

- Deleting an already deleted message, or by a handle that a later receive has replaced, is ReceiptHandleIsInvalid; AWS
  answers with success. Both are per entry in a batch.
- Changing the visibility of a message whose timeout has run out hides it again as long as nobody has received it since;
  AWS refuses with MessageNotInflight. A FIFO handle stays good after its timeout; AWS lets it expire.
- A standard queue keeps its order and never delivers twice; AWS does neither for certain. A receive returns all it can,
  up to ten; AWS may return fewer.
- Not enforced: 120,000 (FIFO 20,000) messages in flight, twelve hours of visibility, the range of a new visibility
  timeout, ten attributes a message, their names, their share of the message's size, characters in attribute values.
- ListDeadLetterSourceQueues and StartMessageMoveTask do not exist. A queue's own redrive happens at its next receive.
- AWSTraceHeader is lost by SendMessageBatch. ReceiveRequestAttemptId is ignored. Any credentials are good.
- A message that arrives just after its long poll was dropped by the client is hidden until its timeout, as on AWS, but
  up to the poll's whole wait later.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from services.chosen import ChosenServer
from services.docker import Container, docker_answers
from services.process import LocalProcess, Service, ServiceUnavailable, free_port, http_ok
from services.sqs_queue import SqsQueue

ENDPOINT = "SHAREDSTREAM_SQS_ENDPOINT"
"""Address of a server to use as it is, http://127.0.0.1:4566 for example."""

MINISTACK = "1.5.33"
CHECKOUT = Path(__file__).resolve().parent.parent
HEALTH = "/_ministack/health"


class SqsServer(ChosenServer):
    """Starts what can be had, in this order: $SHAREDSTREAM_SQS_ENDPOINT, Docker, ministack.

    Queues and messages survive `stop` and `restart`, in `folder`, but not `kill`. A test that needs the server away for
    a while and every message back afterwards puts a `services.proxy.SqsProxy` before it and cuts that.

    :param folder: takes the log and the state.
    """

    name = "sqs"
    region = "us-east-1"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint_url = os.environ.get(ENDPOINT, "").rstrip("/")
        super().__init__(f"environment address {self.endpoint_url}" if self.endpoint_url else "")

    @property
    def port(self) -> int:
        return int(urlsplit(self.endpoint_url).port or 80)

    def client(self, endpoint_url: str | None = None) -> Any:
        """A boto3 client. `endpoint_url`: another address of the same server, a proxy's."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "sqs",
            endpoint_url=endpoint_url or self.endpoint_url,
            region_name=self.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def connection(self, endpoint_url: str | None = None) -> str:
        """An Airflow connection as JSON, for AIRFLOW_CONN_AWS_DEFAULT."""
        extra = {"region_name": self.region, "endpoint_url": endpoint_url or self.endpoint_url}
        return json.dumps({"conn_type": "aws", "login": "test", "password": "test", "extra": extra})

    def create_queue(
        self,
        name: str,
        *,
        dead_letters: bool = True,
        max_receives: int = 1000,
        visibility_timeout: int = 30,
    ) -> SqsQueue:
        """A queue, FIFO when its name ends in .fifo.

        :param dead_letters: whether it gets a redrive target, named alike with `-dead` in it.
        :param max_receives: after how many receives the server itself moves a message there.
        :param visibility_timeout: in seconds.
        """
        client = self.client()
        stem, fifo, _ = name.partition(".fifo")
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if fifo else {}
        target = None
        if dead_letters:
            answer = client.create_queue(QueueName=f"{stem}-dead{fifo}", Attributes=attributes)
            target = SqsQueue(client, answer["QueueUrl"])
            redrive = {"deadLetterTargetArn": target.arn, "maxReceiveCount": max_receives}
            attributes = {**attributes, "RedrivePolicy": json.dumps(redrive)}
        attributes = {**attributes, "VisibilityTimeout": str(visibility_timeout)}
        return SqsQueue(client, client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"], target)

    def _choose(self) -> None:
        why_not_docker = ""
        if docker_answers():
            image = f"ministackorg/ministack:{MINISTACK}"
            container = Container(image, 4566, env={"SERVICES": "sqs"}, ready=_healthy)
            try:
                container.start()
            except ServiceUnavailable as error:
                why_not_docker = f" ({error})"
            else:
                self._server = container
                self.endpoint_url = f"http://127.0.0.1:{container.port}"
                self.taken = f"Docker image {image}"
                return
        program = install_ministack()
        port = free_port()
        self._server = LocalProcess(
            "ministack",
            [str(program)],
            log_file=self.folder / "ministack.log",
            env={
                "SERVICES": "sqs",
                "BIND_HOST": "127.0.0.1",
                "GATEWAY_PORT": str(port),
                "PERSIST_STATE": "1",
                "STATE_DIR": str(self.folder / "ministack-state"),
                "LOG_LEVEL": "WARNING",
            },
            ready=lambda: _healthy(port),
        )
        self.endpoint_url = f"http://127.0.0.1:{port}"
        self.taken = f"local process: PyPI ministack {MINISTACK}{why_not_docker}"
        self._server.start()


def install_ministack() -> Path:
    """The program, in a virtual environment of its own (it pins botocore), made where it is missing."""
    folder = CHECKOUT / ".venv-ministack"
    constraints = CHECKOUT / "constraints-ministack.txt"
    program, made = folder / "bin" / "ministack", folder / ".made"
    (CHECKOUT / ".local").mkdir(exist_ok=True)
    with (CHECKOUT / ".local" / "ministack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists() and made.exists():
            return program
        steps = (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(folder / "bin" / "pip"), "install", "--quiet", "-c", str(constraints), f"ministack=={MINISTACK}"],
        )
        for step in steps:
            done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode:
                raise ServiceUnavailable(
                    f"no SQS server: {ENDPOINT} is not set, Docker does not answer, "
                    f"and `{' '.join(step)}` ended with:\n{done.stdout[-2000:]}"
                )
        made.touch()
    return program


def _healthy(port: int) -> bool:
    return http_ok(f"http://127.0.0.1:{port}{HEALTH}")


if TYPE_CHECKING:
    _: type[Service] = SqsServer
