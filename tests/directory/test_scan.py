"""What a scan finds."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.directory.adapter import IGNORED
from airflow_provider_sharedstream.brokers.directory.fates import NEWCOMERS_SECONDS, Fates
from airflow_provider_sharedstream.brokers.directory.files import File
from airflow_provider_sharedstream.brokers.directory.scan import Scanner


def scanner(directory: Path, **changes: Any) -> Scanner:
    given: dict[str, Any] = {"recursive": False, "ignore": IGNORED, "settle_seconds": 0.0, "progress": lambda: None}
    return Scanner(str(directory), **{**given, **changes})


def names(scanned: list[File] | None) -> list[str]:
    assert scanned is not None
    return [file.name for file in scanned]


def every(file: File) -> bool:
    return True


def age(path: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(path, (at, at))


def test_the_oldest_first(tmp_path: Path) -> None:
    for name, seconds in (("b", 30), ("c", 10), ("a", 20), ("d", 10_000)):
        (tmp_path / name).write_text("")
        age(tmp_path / name, seconds)
    assert names(scanner(tmp_path).scan(every)) == ["d", "b", "a", "c"]


def test_names_of_unfinished_files_are_passed_over(tmp_path: Path) -> None:
    for name in (
        ".hidden",
        "a.csv.part",
        "a.tmp",
        "a.csv~",
        "movie.crdownload",
        "a.filepart",
        "a.csv",
        "part.csv",
        "~a",
    ):
        (tmp_path / name).write_text("")
    assert sorted(names(scanner(tmp_path).scan(every))) == ["a.csv", "part.csv", "~a"]
    assert len(names(scanner(tmp_path, ignore=()).scan(every))) == 9


def test_capital_letters_are_told_from_small_ones(tmp_path: Path) -> None:
    for name in ("a.TMP", "a.tmp"):
        (tmp_path / name).write_text("")
    assert names(scanner(tmp_path).scan(every)) == ["a.TMP"]


def test_only_regular_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "inside").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        looking = scanner(tmp_path)
        with caplog.at_level(logging.WARNING):
            assert names(looking.scan(every)) == ["file"]
            looking.scan(every)
    # Said, and said once.
    assert len(caplog.records) == 1
    assert "no file" in caplog.text


def test_recursive(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inbox = tmp_path / "inbox"
    for folder in (outside, inbox / "2026" / "01", inbox / ".hidden", inbox / "done"):
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text("")
    (inbox / "link").symlink_to(outside)
    looking = scanner(inbox, recursive=True)
    status = (inbox / "done").stat()
    looking.not_into = {(status.st_dev, status.st_ino)}
    assert names(looking.scan(every)) == ["2026/01/a.csv"]


def test_a_folder_that_may_not_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("closed", "open"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text("")
    original = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert names(scanner(tmp_path, recursive=True).scan(every)) == ["open/a.csv"]


class Bad:
    """An entry that can't be looked at."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name, self.path = entry.name, entry.path

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error", self.path)


def spoil(monkeypatch: pytest.MonkeyPatch, directory: Path, bad: str) -> None:
    entries = [Bad(entry) if fnmatch.fnmatch(entry.name, bad) else entry for entry in os.scandir(directory)]

    @contextlib.contextmanager
    def scandir(path: str) -> Iterator[Any]:
        yield iter(entries)

    monkeypatch.setattr(os, "scandir", scandir)


def test_a_bad_file_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("")
    spoil(monkeypatch, tmp_path, "b")
    looking = scanner(tmp_path)
    assert names(looking.scan(every)) == names(looking.scan(every)) == ["a", "c"]
    assert len(caplog.records) == 1
    assert "Input/output error" in caplog.text


def test_where_all_are_bad_it_is_not_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("")
    spoil(monkeypatch, tmp_path, "*")
    with pytest.raises(OSError, match="Input/output error"):
        scanner(tmp_path).scan(every)


def test_a_file_is_settled_when_two_looks_agree(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("")
    # Whatever its own time says: clocks differ, and a copy may bring its time along.
    age(path, 10_000)
    looking = scanner(tmp_path, settle_seconds=0.2)
    for _ in range(4):
        with path.open("a") as opened:
            opened.write("more")
        age(path, 10_000)
        assert looking.scan(every) == []
        time.sleep(0.25)
    assert names(looking.scan(every)) == ["a.csv"]


def test_a_time_in_the_future_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("")
    age(path, -1_000_000)
    looking = scanner(tmp_path, settle_seconds=0.1)
    assert looking.scan(every) == []
    time.sleep(0.15)
    assert names(looking.scan(every)) == ["a.csv"]


def test_a_change_within_one_size_and_time_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1234")
    before = path.stat()
    looking = scanner(tmp_path, settle_seconds=0.2)
    assert looking.scan(every) == []
    time.sleep(0.25)
    path.write_text("4321")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert looking.scan(every) == []


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9.csv", "w"):
        pass
    (file,) = scanner(tmp_path).scan(every) or []
    assert file.name == "caf\udce9.csv"
    assert file.id.encode().startswith(b"caf\\udce9.csv@")


def test_what_a_killed_process_left_behind_is_recovered(tmp_path: Path) -> None:
    (tmp_path / ".sharedstream-0123456789abcdef-a.csv").write_text("put back")
    looking = scanner(tmp_path, ignore=())
    looking.scan(every)
    assert names(looking.scan(every)) == ["a.csv"]


def test_a_stopped_scan_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    looking = scanner(tmp_path)
    looking.stopped = True
    assert looking.scan(every) is None


FILE = File("a", 1, 2, 3, 4)


class TestFates:
    def test_an_open_file_is_not_offered_again(self) -> None:
        fates = Fates()
        assert fates.may_be_offered(FILE)
        fates.offer(FILE, 1)
        assert not fates.may_be_offered(FILE)
        assert fates.may_be_offered(FILE._replace(size=5))
        fates.close(FILE)
        assert fates.may_be_offered(FILE)

    def test_a_left_file_is_offered_to_newcomers(self) -> None:
        fates = Fates()
        fates.joined(1)
        fates.offer(FILE, 1)
        fates.leave(FILE)
        assert not fates.may_be_offered(FILE)
        fates.joined(2)
        assert fates.may_be_offered(FILE)

    def test_who_joined_while_it_was_open_has_not_been_asked(self) -> None:
        fates = Fates()
        fates.joined(1)
        fates.offer(FILE, 1)
        fates.joined(2)
        fates.leave(FILE)
        assert fates.may_be_offered(FILE)

    def test_a_watcher_that_fails_for_ever_does_not_bring_it_round_each_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        fates = Fates()
        offered = 0
        for joins in range(1, 101):
            now += 2.0
            fates.joined(joins)
            if fates.may_be_offered(FILE):
                offered += 1
                fates.offer(FILE, joins)
                fates.leave(FILE)
        assert 1 < offered <= 2 + 200 / NEWCOMERS_SECONDS

    def test_a_released_file_comes_after_its_delay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        fates = Fates()
        fates.offer(FILE, 1)
        fates.release(FILE, 5.0)
        assert not fates.may_be_offered(FILE)
        now += 5.0
        assert fates.may_be_offered(FILE)

    def test_what_has_gone_is_forgotten(self) -> None:
        fates = Fates()
        fates.joined(1)
        gone = FILE._replace(name="gone")
        for file in (FILE, gone):
            fates.offer(file, 1)
            fates.leave(file)
        fates.forget(lambda file: file is not gone)
        assert not fates.may_be_offered(FILE)
        assert fates.may_be_offered(gone)

    def test_a_late_word_on_a_closed_file_is_no_word(self) -> None:
        fates = Fates()
        fates.offer(FILE, 1)
        fates.close(FILE)
        fates.leave(FILE)
        fates.release(FILE, 100.0)
        assert fates.may_be_offered(FILE)
