"""One server in a container, through testcontainers, where a Docker engine answers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from services.process import ServiceUnavailable, free_port, wait_until

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

NO_DOCKER = "SHAREDSTREAM_NO_DOCKER"
"""Set to 1 to leave Docker alone even where it answers, e.g. where it can't pull images."""


def docker_answers() -> bool:
    """Whether containers can be run here: an engine answers, and testcontainers is installed."""
    if os.environ.get(NO_DOCKER) == "1" or shutil.which("docker") is None:
        return False
    if importlib.util.find_spec("testcontainers") is None:
        return False
    answer = subprocess.run(["docker", "version"], capture_output=True, timeout=60, check=False)
    return answer.returncode == 0


class Container:
    """One container with one published port, the same one at every start.

    :param image: with its tag.
    :param port: the port inside; outside it is `Container.port`, of 127.0.0.1.
    :param env: variables for the container.
    :param ready: asked, with the outside port, until it returns True.
    :param command: instead of the image's own.
    :param ready_seconds: limit for that; pulling the image is not part of it.
    """

    def __init__(
        self,
        image: str,
        port: int,
        *,
        env: Mapping[str, str],
        ready: Callable[[int], bool],
        command: str | None = None,
        ready_seconds: float = 120.0,
    ) -> None:
        self.image = image
        self.port = free_port()
        self._inner_port = port
        self._env = env
        self._command = command
        self._ready = ready
        self._ready_seconds = ready_seconds
        self._container: DockerContainer | None = None

    def start(self) -> None:
        """Pull where needed, run, wait; raises ServiceUnavailable when the image can't be had."""
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(self.image, command=self._command).with_envs(**self._env)
        # testcontainers passes the mapping on to docker-py, which takes an address beside the port.
        container.ports[f"{self._inner_port}/tcp"] = ("127.0.0.1", self.port)  # type: ignore[assignment]
        try:
            container.start()
        except DockerException as error:
            raise ServiceUnavailable(f"Docker answers, but cannot run {self.image}: {error}") from error
        self._container = container
        self._wait_ready()

    def stop(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None

    def restart(self) -> None:
        """Restart the server inside the same container, so on the same port and files."""
        assert self._container is not None
        self._container.get_wrapped_container().restart()
        self._wait_ready()

    def _wait_ready(self) -> None:
        assert self._container is not None
        if not wait_until(lambda: self._ready(self.port), limit_seconds=self._ready_seconds):
            out, errors = self._container.get_logs()
            self.stop()
            log = (out + errors).decode("utf-8", "replace")[-4000:]
            raise RuntimeError(f"{self.image} is not ready after {self._ready_seconds:g} s; its log ends with:\n{log}")
