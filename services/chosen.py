"""A server given by address, or else the first that can be had here."""

from __future__ import annotations

from abc import abstractmethod

from services.docker import Container
from services.process import LocalProcess, ServiceUnavailable, require_real
from services.started import Started


class ChosenServer(Started):
    """A subclass says what can be had.

    :param given: its address as far as it may be shown, with a word on where that was found; empty: none was given.
    """

    name: str
    real = True
    """Whether it behaves enough like the real service for a test's result to count."""

    def __init__(self, given: str) -> None:
        self.taken = given
        """One sentence for a human."""
        self._given = bool(given)
        self._server: LocalProcess | Container | None = None

    def start(self) -> None:
        """Raises ServiceUnavailable when nothing can serve it, RuntimeError when what was started isn't ready."""
        if self._server is not None:
            self._server.start()
        elif not self._given:
            self._choose()
        require_real(self)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def restart(self) -> None:
        """On the same port; raises ServiceUnavailable for a server given by address."""
        self._ours("restarted").restart()

    def kill(self) -> None:
        """KILL -9; raises ServiceUnavailable where it isn't a local process."""
        server = self._ours("killed")
        if isinstance(server, Container):
            raise ServiceUnavailable(f"{self.taken} can't be killed, only stopped")
        server.kill()

    @abstractmethod
    def _choose(self) -> None:
        """Start what can be had, and say what it is. Raises ServiceUnavailable when that is nothing."""

    def _ours(self, what: str) -> LocalProcess | Container:
        if self._server is None:
            raise ServiceUnavailable(f"{self.taken or 'a server that was never started'} can't be {what}")
        return self._server
