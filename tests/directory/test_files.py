"""Taking files away, on a real file system: never the wrong one, never onto another."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_sharedstream.brokers.directory import files
from airflow_provider_sharedstream.brokers.directory.files import LONGEST_NAME, OURS, REASON, File


@pytest.fixture
def other_file_system(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system than `tmp_path`."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="sharedstream-test-"))
    assert place.stat().st_dev != tmp_path.stat().st_dev, "the test needs two file systems"
    yield place
    shutil.rmtree(place)


def put(path: Path, content: str = "content") -> File:
    path.write_text(content)
    return seen(path)


def seen(path: Path) -> File:
    return File.seen(path.name, path.lstat())


def replace(path: Path, content: str) -> None:
    """Put another file in the place of one, as producers do."""
    passing = path.with_name(f".{path.name}.new")
    passing.write_text(content)
    passing.rename(path)


def swap_at(monkeypatch: pytest.MonkeyPatch, name: str, path: Path, content: str) -> None:
    """Let somebody replace `path` just before our first call of `os.<name>`: the worst moment there is."""
    original = getattr(os, name)

    def call(*args: object, **kwargs: object) -> object:
        monkeypatch.undo()
        replace(path, content)
        return original(*args, **kwargs)

    monkeypatch.setattr(os, name, call)


def test_the_id_is_the_same_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    first = put(path)
    assert seen(path).id == first.id
    assert first.id.startswith("a.csv@")
    path.write_text("longer content")
    assert seen(path).id != first.id


def test_a_copy_with_its_time_onto_the_same_inode_has_another_id(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.write_text("flag")
    ids = set()
    for _ in range(5):
        path = tmp_path / "go.flag"
        shutil.copy2(original, path)
        file = seen(path)
        ids.add(file.id)
        files.delete(str(path), file)
    assert len(ids) == 5


def test_delete_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    file = put(path)
    files.delete(str(path), file)
    files.delete(str(path), file)
    assert os.listdir(tmp_path) == []


def test_what_has_changed_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    file = put(path)
    replace(path, "newer")
    files.delete(str(path), file)
    assert path.read_text() == "newer"


@pytest.mark.parametrize("hard_links", [True, False])
def test_what_is_replaced_at_the_last_moment_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    path = tmp_path / "a.csv"
    file = put(path)
    swap_at(monkeypatch, "rename", path, "newer")
    if not hard_links:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "link", refuse)
            files.delete(str(path), file)
    else:
        files.delete(str(path), file)
    assert path.read_text() == "newer"
    assert os.listdir(tmp_path) == ["a.csv"]


def refuse(*args: object) -> None:
    raise PermissionError("no hard links here")


def test_what_is_replaced_at_the_last_moment_is_not_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target = tmp_path / "a.csv", tmp_path / "archive" / "a-1.csv"
    file = put(path)
    target.parent.mkdir()
    swap_at(monkeypatch, "rename", path, "newer")
    files.move(str(path), file, str(target))
    assert path.read_text() == "newer"
    assert os.listdir(target.parent) == []


def test_a_name_of_the_longest_kind_can_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / ("n" * LONGEST_NAME)
    files.delete(str(path), put(path))
    assert os.listdir(tmp_path) == []


def test_a_killed_deletion_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a-b.csv"
    file = put(path)

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        files.delete(str(path), file)
    monkeypatch.undo()
    (aside,) = tmp_path.iterdir()
    assert aside.name.startswith(OURS)
    files.recover(str(aside))
    assert os.listdir(tmp_path) == []


def test_a_killed_deletion_of_the_wrong_file_is_undone(tmp_path: Path) -> None:
    aside = tmp_path / f"{OURS}0123456789abcdef-a-b.csv"
    aside.write_text("what had taken its place")
    files.recover(str(aside))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a-b.csv": "what had taken its place"}


def test_putting_back_overwrites_nothing(tmp_path: Path) -> None:
    aside = tmp_path / f"{OURS}0123456789abcdef-a.csv"
    aside.write_text("older")
    (tmp_path / "a.csv").write_text("newest")
    files.recover(str(aside))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.csv": "newest"}


def test_move_keeps_content_and_time(tmp_path: Path) -> None:
    path, target = tmp_path / "a.csv", tmp_path / "archive" / "2026" / "a-1.csv"
    file = put(path)
    files.move(str(path), file, str(target))
    assert not path.exists()
    assert target.read_text() == "content"
    assert file.is_content_of(target.lstat())
    files.move(str(path), file, str(target))


def test_move_to_another_file_system(tmp_path: Path, other_file_system: Path) -> None:
    path, target = tmp_path / "a.csv", other_file_system / "a-1.csv"
    path.write_bytes(os.urandom(3_000_000))
    path.chmod(0o640)
    content, file = path.read_bytes(), seen(path)
    files.move(str(path), file, str(target))
    assert os.listdir(tmp_path) == []
    assert os.listdir(other_file_system) == ["a-1.csv"]
    assert target.read_bytes() == content
    assert target.stat().st_mtime_ns == file.modified_ns
    assert target.stat().st_mode & 0o777 == 0o640


def test_replaced_during_a_move_to_another_file_system(
    tmp_path: Path, other_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "a.csv", other_file_system / "a-1.csv"
    file = put(path)
    swap_at(monkeypatch, "fsync", path, "newer")
    files.move(str(path), file, str(target))
    assert path.read_text() == "newer"
    # What the events told of is kept.
    assert target.read_text() == "content"
    assert os.listdir(tmp_path) == ["a.csv"]


def test_written_to_during_a_move_to_another_file_system(
    tmp_path: Path, other_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "a.csv", other_file_system / "a-1.csv"
    file = put(path)
    original = shutil.copyfileobj

    def copy(*args: object) -> None:
        original(*args)  # type: ignore[arg-type]
        with path.open("a") as opened:
            opened.write(" and more")

    monkeypatch.setattr(shutil, "copyfileobj", copy)
    files.move(str(path), file, str(target))
    assert path.read_text() == "content and more"
    assert os.listdir(other_file_system) == []


def test_two_moves_of_one_file_at_once_do_not_spoil_it(
    tmp_path: Path, other_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stream that was closed while it copied, and the one that came after it.
    path, target = tmp_path / "a.bin", other_file_system / "a-1.bin"
    content = os.urandom(3_000_000)
    path.write_bytes(content)
    file = seen(path)
    both_have_begun = threading.Barrier(2)
    original = shutil.copyfileobj

    def copy(*args: object) -> None:
        both_have_begun.wait(60)
        original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(shutil, "copyfileobj", copy)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(files.move, str(path), file, str(target)) for _ in range(2)]:
            done.result()
    assert target.read_bytes() == content
    assert os.listdir(other_file_system) == ["a-1.bin"]
    assert os.listdir(tmp_path) == []


def test_a_full_target_keeps_the_file_and_leaves_no_part(
    tmp_path: Path, other_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "a.csv", other_file_system / "a-1.csv"
    file = put(path)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.move(str(path), file, str(target))
    assert path.read_text() == "content"
    assert os.listdir(other_file_system) == []


def test_neither_links_nor_pipes_are_opened(tmp_path: Path) -> None:
    path, secret = tmp_path / "a.csv", tmp_path / "secret"
    file = put(path)
    put(secret)
    path.unlink()
    path.symlink_to(secret)
    assert files.read(str(path), file) is None
    path.unlink()
    os.mkfifo(path)
    assert files.read(str(path), file) is None
    files.delete(str(path), file)
    assert path.exists()


def test_a_file_takes_the_place_of_the_folder_it_was_in(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = put(folder / "a.csv")
    folder.rename(tmp_path / "other")
    put(folder)
    assert files.read(str(folder / "a.csv"), file) is None
    files.delete(str(folder / "a.csv"), file)
    assert folder.exists()


def test_reading_gives_the_content_that_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    file = put(path)
    assert files.read(str(path), file) == b"content"
    path.write_text("other")
    assert files.read(str(path), file) is None
    path.unlink()
    assert files.read(str(path), file) is None


@pytest.mark.parametrize(
    "name",
    ["a.csv", "n" * 255, "ü" * 127, "a." + "s" * 253, ".hidden", "sub/dir/a.csv", "a\udcff.csv", "tab\there"],
)
def test_a_kept_name_can_be_made(tmp_path: Path, name: str) -> None:
    status = os.stat(tmp_path)
    kept = File.seen(name, status).name_when_kept
    assert len((os.path.basename(kept) + REASON).encode()) <= LONGEST_NAME
    assert os.path.dirname(kept) == os.path.dirname(name)
    path = tmp_path / kept
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.with_name(path.name + REASON).write_text("")


def test_files_of_one_name_are_kept_under_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    kept = {put(path, content).name_when_kept for content in ("1", "22", "333")}
    assert len(kept) == 3
    assert all(name.startswith("a-") and name.endswith(".csv") for name in kept)


def test_a_durable_file_replaces_the_one_of_an_earlier_try(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.reason.json"
    files.write_durably(str(path), {"reason": "first"})
    files.write_durably(str(path), {"reason": "second, ü"})
    assert json.loads(path.read_text()) == {"reason": "second, ü"}
    assert os.listdir(path.parent) == ["a.reason.json"]
