"""Apache Kafka's jars, from Maven's central repository, and the Java that runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from services.maven import installed
from services.process import ServiceUnavailable

POM = Path(__file__).with_name("kafka_pom.xml")
CACHE = Path(__file__).resolve().parent.parent / ".local" / "kafka"
OLDEST_JAVA = 17
"""Brokers of Kafka 4 need this release of Java or a newer one."""


def kafka_version() -> str:
    """The release that is run; the one place that says it is kafka_pom.xml."""
    version = ElementTree.parse(POM).findtext("properties/kafka.version")
    assert version is not None
    return version


class Kafka:
    """One installed release.

    :param folder: holds `libs`, and the archive of loaded classes once there is one.
    :param java: the program.
    """

    def __init__(self, folder: Path, java: str) -> None:
        self.folder = folder
        self.java = java
        self.libs = folder / "libs"
        self.class_archive = folder / "broker.jsa"

    def command(self, main_class: str, *arguments: str, heap_mb: int, options: Sequence[str] = ()) -> list[str]:
        """A command line for one of Kafka's programs.

        :param heap_mb: Java's heap at most; the process takes some 150 MB more.
        :param options: more of Java's options.
        """
        if self.class_archive.exists():
            # Halves the start. Java itself leaves an archive alone that another release of Java has made.
            options = [*options, "-Xshare:auto", f"-XX:SharedArchiveFile={self.class_archive}"]
        return [
            self.java,
            f"-Xmx{heap_mb}m",
            "-XX:+UseSerialGC",
            # The optimizing compiler costs a start more than it gives back to a broker that lives for minutes.
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            *options,
            "-cp",
            f"{self.libs}/*",
            main_class,
            *arguments,
        ]


def install() -> Kafka:
    """What is cached in the checkout, fetched by Maven where it is missing (about 45 MB).

    Raises ServiceUnavailable, with what to install, when there is no Java, no Maven, or nothing to fetch from.
    """
    java = _java()
    kafka = Kafka(CACHE / kafka_version(), java)
    goal = ["--file", str(POM), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    installed(kafka.libs, f"Apache Kafka {kafka_version()}", goal)
    return kafka


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    wanted = f"Java {OLDEST_JAVA} or newer. On Debian or Ubuntu: apt-get install openjdk-17-jre-headless"
    if java is None:
        raise ServiceUnavailable(f"there is no java in PATH or JAVA_HOME; needed is {wanted}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', answer)
    if found is None or int(found[1]) < OLDEST_JAVA:
        raise ServiceUnavailable(f"{java} is {answer.splitlines()[:1]}; needed is {wanted}")
    return java
