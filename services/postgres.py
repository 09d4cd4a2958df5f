"""A PostgreSQL server that is thrown away: one given by address, local binaries, or Docker."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import URL

from services.docker import Container, docker_answers
from services.process import LocalProcess, Service, ServiceUnavailable, free_port, log_tail
from services.sql import SqlServer, accepts

ADDRESS = "SHAREDSTREAM_POSTGRES_URL"
"""A server to use as it is, as postgresql://user:password@host:port/postgres; the user may create databases."""

IMAGE = "postgres:16"


class PostgresServer(SqlServer):
    """Starts what can be had, in this order: $SHAREDSTREAM_POSTGRES_URL, PostgreSQL's programs, Docker.

    :param folder: takes the log.
    :param fsync: whether commits wait for the disk. Needless for tests, since `kill` ends a process, not the machine.
    """

    name = "postgres"
    driver = "postgresql+psycopg2"

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        super().__init__(folder, os.environ.get(ADDRESS))
        self.fsync = fsync

    def _choose(self) -> None:
        programs = _programs()
        if programs is not None:
            self._server, port = self._local(programs)
            version = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
            self.taken = f"local process: {version.stdout.strip()}"
        elif docker_answers():
            environment = {"POSTGRES_HOST_AUTH_METHOD": "trust"}
            self._server = Container(IMAGE, 5432, env=environment, ready=lambda port: accepts(_address(port)))
            port = self._server.port
            self.taken = f"Docker image {IMAGE}"
        else:
            raise ServiceUnavailable(
                f"no PostgreSQL: {ADDRESS} is not set, no initdb in PATH or /usr/lib/postgresql/*/bin, and Docker "
                "does not answer. On Debian or Ubuntu: apt-get install postgresql"
            )
        self._url = _address(port)
        self._server.start()

    def _local(self, programs: Path) -> tuple[LocalProcess, int]:
        # Not in `folder`: as root the server runs as another user, who might not get through to it.
        home = Path(tempfile.mkdtemp(prefix="sharedstream-postgres-"))
        weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        prefix = []
        if os.geteuid() == 0:
            user = _unprivileged()
            os.chown(home, user.pw_uid, user.pw_gid)
            prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
        data = home / "data"
        log = self.folder / "postgres.log"
        self.folder.mkdir(parents=True, exist_ok=True)
        initdb = [str(programs / "initdb"), "--pgdata", str(data), "--auth=trust", "--username=postgres"]
        with log.open("ab") as output:
            done = subprocess.run(
                [*prefix, *initdb, "--encoding=UTF8", "--locale=C", "--no-sync"],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=home,
                check=False,
            )
        if done.returncode:
            raise ServiceUnavailable(f"initdb ended with {done.returncode}; {log} ends with:\n{log_tail(log)}")
        port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": home,
            "fsync": "on" if self.fsync else "off",
            "max_connections": 200,
        }
        arguments = [argument for key, value in settings.items() for argument in ("-c", f"{key}={value}")]
        process = LocalProcess(
            "postgres",
            [*prefix, str(programs / "postgres"), "-D", str(data), *arguments],
            log_file=log,
            cwd=home,
            ready=lambda: accepts(_address(port)),
            # INT is the fast shutdown; TERM waits for every client to go.
            stop_signal=signal.SIGINT,
        )
        return process, port


def _programs() -> Path | None:
    """The folder of initdb and postgres, the newest version's."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = [Path(path).parent for path in glob.glob("/usr/lib/postgresql/*/bin/initdb")]
    return max(folders, key=lambda folder: float(folder.parent.name), default=None)


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServiceUnavailable("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")


def _address(port: int) -> URL:
    return URL.create("postgresql+psycopg2", "postgres", host="127.0.0.1", port=port, database="postgres")


if TYPE_CHECKING:
    _: type[Service] = PostgresServer
