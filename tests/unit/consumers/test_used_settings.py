"""The settings behind a config hash, as assemblers leave them in the meta topic."""

import asyncio

import pytest
from support.memory_log import MemoryLog

from rolloutlog.consumers.attribution import settings_from
from rolloutlog.consumers.settings import FoldSettings, canonical_json
from rolloutlog.consumers.used_settings import newest_used, read_used, settings_of, settings_record
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import META, NewRecord

OTHER = FoldSettings(attribution=settings_from({"policy": "nearest", "weights": {"cost": -0.5}}), min_group=3)


def read(*records: NewRecord) -> list[FoldSettings]:
    async def work() -> list[FoldSettings]:
        log = MemoryLog()
        await log.append(records)
        return await read_used(log)

    return asyncio.run(work())


def test_used_settings_when_written_are_read_with_the_same_hash():
    assert [each.config_hash for each in read(settings_record(OTHER, 1))] == [OTHER.config_hash]


def test_used_settings_of_several_assemblers_come_newest_last_and_once():
    records = [settings_record(each, 1) for each in (OTHER, FoldSettings(), OTHER)]
    assert read(*records) == [FoldSettings(), OTHER]


def test_used_settings_that_are_none_are_passed_over():
    bad = NewRecord(META, 0, b"settings/00", b"nothing")
    assert read(bad, settings_record(OTHER, 1)) == [OTHER]


def test_used_settings_under_another_hash_than_their_own_are_passed_over():
    record = settings_record(OTHER, 1)
    text = record.value or b""
    assert read(record._replace(value=text.replace(OTHER.config_hash.encode(), b"0" * 32))) == []


def newest(*records: NewRecord) -> FoldSettings | None:
    async def work() -> FoldSettings | None:
        log = MemoryLog()
        await log.append(records)
        return await newest_used(log)

    return asyncio.run(work())


def test_newest_settings_are_those_of_the_assembler_that_began_last():
    assert newest() is None
    assert newest(settings_record(FoldSettings(), 1), settings_record(OTHER, 2)) == OTHER


def test_newest_settings_that_cannot_be_made_are_refused_rather_than_older_ones_taken():
    record = settings_record(OTHER, 2)
    other = record._replace(value=(record.value or b"").replace(b"nearest", b"mi:poli"))
    with pytest.raises(InvalidSettings, match="Say with which settings"):
        newest(settings_record(FoldSettings(), 1), other)


def test_settings_that_name_code_are_none_and_run_none_of_it(monkeypatch):
    """What stands in a topic must not decide which modules are imported."""
    monkeypatch.setattr("rolloutlog.consumers.attribution.settings.load_policy", lambda name: 1 / 0)
    fields = {**OTHER.canonical(), "attribution": {**OTHER.attribution.canonical(), "policy": "mine:policy"}}
    assert settings_of(canonical_json(fields)) is None


def test_settings_of_other_json_are_none():
    assert [settings_of(each) for each in (b"[]", b"{", b"{}", b'{"attribution":[]}')] == [None] * 4
