"""A Confluent-compatible schema registry for tests: Apicurio Registry, from Maven's central repository."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from services.maven import installed
from services.process import LocalProcess, ServiceUnavailable, free_port, http_ok

VERSION = "2.6.13.Final"
ARCHIVE = f"apicurio-registry-app-{VERSION}-all.tar.gz"
CACHE = Path(__file__).resolve().parents[2] / ".local" / "apicurio"


def install() -> Path:
    """Return the folder with the registry's jars, fetched by Maven where it is missing (about 140 MB).

    Raises ServiceUnavailable, with what to install, when there is no Java, no Maven, or nothing to fetch from.
    """
    if shutil.which("java") is None:
        raise ServiceUnavailable("there is no java in PATH. On Debian or Ubuntu: apt-get install maven")
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    return installed(CACHE / VERSION, artifact, ["dependency:copy", f"-Dartifact={artifact}"], _unpack)


def _unpack(folder: Path) -> None:
    with tarfile.open(folder / ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    (folder / ARCHIVE).unlink()


class RegistryServer(LocalProcess):
    """The registry, with its data in memory.

    :param folder: takes the log.
    """

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        installed = install()
        super().__init__(
            "schema registry",
            ["java", "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(_jar(installed))],
            log_file=folder / "registry.log",
            env={"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)},
            cwd=installed,
            ready=lambda: http_ok(f"{self.url}/subjects"),
            ready_seconds=120,
        )


def _jar(folder: Path) -> Path:
    (jar,) = folder.glob("*-runner.jar")
    return jar
