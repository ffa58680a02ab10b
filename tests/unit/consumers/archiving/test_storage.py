"""Places for archives: whole files or none, names given once, errors that name the file."""

import os
import uuid
from pathlib import Path

import pytest

from rolloutlog.consumers.archiving.errors import ArchiveUnavailable
from rolloutlog.consumers.archiving.folder import FolderStorage
from rolloutlog.consumers.archiving.storage import Storage, open_storage, shown
from rolloutlog.eventstore.errors import InvalidSettings


@pytest.fixture(params=["folder", "memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    made = open_storage(
        {
            "folder": f"{tmp_path}/a",
            "memory": f"memory://{uuid.uuid4().hex}/a",
            "local": f"simplecache::file://{tmp_path}/b",  # fsspec's own local files, behind another scheme
        }[request.param]
    )
    made.make()
    return made


def test_put_gives_a_whole_file_its_name_and_takes_the_part(storage: Storage):
    part = storage.part()
    part.write_bytes(b"abcdef")
    storage.put(part, "events/day=2026-03-01/0-0-5.avro")
    assert storage.read("events/day=2026-03-01/0-0-5.avro") == b"abcdef"
    assert storage.read_part("events/day=2026-03-01/0-0-5.avro", 2, 3) == b"cde"
    assert not part.exists()
    assert [(each.name, each.size_bytes) for each in storage.find("events")] == [
        ("events/day=2026-03-01/0-0-5.avro", 6)
    ]


def test_create_of_a_name_that_is_taken_changes_nothing(storage: Storage):
    assert storage.create("manifest/events/0/0.json", b"first")
    assert not storage.create("manifest/events/0/0.json", b"second")
    assert storage.read("manifest/events/0/0.json") == b"first"
    assert storage.read_all(["manifest/events/0/0.json"]) == {"manifest/events/0/0.json": b"first"}


def test_file_that_is_missing_is_none(storage: Storage):
    assert storage.read("manifest/run.json") is None
    assert storage.open("manifest/run.json") is None
    assert storage.find("events") == []
    storage.remove("manifest/run.json")


def test_part_of_a_file_that_is_missing_is_an_error_that_names_it(storage: Storage):
    with pytest.raises(ArchiveUnavailable, match="could not be read"):
        storage.read_part("events/0.avro", 0, 5)


def test_folder_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path):
    (tmp_path / "a").write_text("a file where the archive should be")
    with pytest.raises(ArchiveUnavailable, match=f"archive {tmp_path}/a: {tmp_path}/a could not be made: File exists"):
        FolderStorage(tmp_path / "a").make()


def test_name_that_a_file_system_without_links_refuses_is_given_by_a_look(tmp_path: Path, monkeypatch):
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    storage = FolderStorage(tmp_path)
    assert storage.create("manifest/0.json", b"first")
    assert not storage.create("manifest/0.json", b"second")
    assert storage.read("manifest/0.json") == b"first"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///data/a%20b", "/data/a b"),
        ("file:/data", "/data"),
        ("FILE:///data", "/data"),
        ("x/y", "x/y"),
        ("./s3:/x", "s3:/x"),
        ("run:1", "run:1"),
    ],
)
def test_file_url_and_path_are_folders(url, path):
    found = open_storage(url)
    assert isinstance(found, FolderStorage)
    assert found.url == path


@pytest.mark.parametrize(
    "url", ["", "sqlite:///run.db", "kafka://h:1/p", "file://host/x", "nonsense://x", "s3:/bucket/x", "://x"]
)
def test_url_that_is_no_place_for_files_is_refused(url):
    with pytest.raises(InvalidSettings, match="archive"):
        open_storage(url)


def test_url_is_shown_without_its_secrets():
    assert shown("sftp://me:secret@host/a?token=x") == "sftp://...@host/a?..."
    assert shown("s3://bucket/a") == "s3://bucket/a"
