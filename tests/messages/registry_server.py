"""A Confluent-compatible schema registry for tests: Apicurio Registry, from Maven's central repository."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tarfile
from pathlib import Path

from services.process import LocalProcess, ServiceUnavailable, free_port, http_ok

VERSION = "2.6.13.Final"
ARCHIVE = f"apicurio-registry-app-{VERSION}-all.tar.gz"
CACHE = Path(__file__).resolve().parents[2] / ".local" / "apicurio"


def install() -> Path:
    """Return the folder with the registry's jars, fetched by Maven where it is missing (about 140 MB).

    Raises ServiceUnavailable, with what to install, when there is no Java, no Maven, or nothing to fetch from.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ServiceUnavailable(f"there is no {program} in PATH. On Debian or Ubuntu: apt-get install maven")
    folder = CACHE / VERSION
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    done = subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={CACHE}"],
        cwd=CACHE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ServiceUnavailable(f"Maven can't fetch {artifact}: {done.stdout[-500:]}")
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(CACHE / ARCHIVE) as archive:
        archive.extractall(part, filter="data")
    (CACHE / ARCHIVE).unlink()
    part.rename(folder)


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
