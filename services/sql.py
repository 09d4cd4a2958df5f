"""What servers of SQL have in common."""

from __future__ import annotations

import secrets
from pathlib import Path

import sqlalchemy
from sqlalchemy.engine import URL, make_url

from services.chosen import ChosenServer


class SqlServer(ChosenServer):
    """Data survive `stop`, `kill` and `restart`, and are removed when the program ends.

    :param folder: takes the log.
    :param address: of a server to use as it is; None: none was given.
    """

    driver: str
    """As SQLAlchemy names it."""
    quote = '"'
    """Around a name."""
    database_options = ""
    """With which a database is made."""

    def __init__(self, folder: Path, address: str | None) -> None:
        self.folder = folder
        self._url: URL | None = None
        self._databases: list[str] = []
        given = ""
        if address:
            self._url = make_url(address).set(drivername=self.driver)
            given = f"environment address {self._url.render_as_string(hide_password=True)}"
        super().__init__(given)

    def stop(self) -> None:
        super().stop()
        if self._given:
            for name in self._databases:
                self._execute(f"DROP DATABASE IF EXISTS {self.quote}{name}{self.quote}")
            self._databases.clear()

    def create_database(self, name: str) -> str:
        """An empty database under `name` and something random; returns its address for SQLAlchemy and the driver."""
        unique = f"{name}_{secrets.token_hex(4)}"
        self._execute(f"CREATE DATABASE {self.quote}{unique}{self.quote} {self.database_options}")
        self._databases.append(unique)
        assert self._url is not None
        return self._url.set(database=unique).render_as_string(hide_password=False)

    def _execute(self, statement: str) -> None:
        assert self._url is not None
        engine = sqlalchemy.create_engine(self._url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(statement))
        engine.dispose()


def accepts(address: URL) -> bool:
    """Whether a server answers there."""
    engine = sqlalchemy.create_engine(address)
    try:
        with engine.connect() as connection:
            return connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    except sqlalchemy.exc.OperationalError:
        return False
    finally:
        engine.dispose()
