"""Which topic a name stands for, and the settings of an output."""

from dataclasses import replace

import pytest
from support.outputs import write_output
from support.store import open_log

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.named_topic import settings_of, topic_named
from rolloutlog.consumers.replaying.outputs import OutputScorer, beyond_of, read_output, topic_of
from rolloutlog.consumers.settings import FoldSettings, canonical_json
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import BATCHES
from rolloutlog.eventstore.topics import create_topics

SETTINGS = FoldSettings(AttributionSettings(final="every_call", weights={"style": 2}), merge="trajectory", min_group=3)


@pytest.fixture
async def log(tmp_path):
    opened = await open_log(f"sqlite:///{tmp_path}/log.db", create=True)
    await create_topics(opened, partitions=2, run_id="run")
    yield opened
    await opened.close()


@pytest.mark.parametrize("name", [None, "live"])
async def test_live_and_no_name_are_the_batches(log, name):
    assert await topic_named(log, name) == BATCHES


async def test_name_of_an_output_is_its_topic(log):
    await write_output(log, "judged", [])
    assert await topic_named(log, "judged") == "output.judged"


async def test_name_without_output_is_refused_with_those_that_exist(log):
    for name in ("strict", "judged"):
        await write_output(log, name, [])
    with pytest.raises(InvalidSettings, match=r"output 'other': expected one of live, judged, strict, got none"):
        await topic_named(log, "other")


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "x" * 81])
async def test_name_that_cannot_be_an_output_is_refused(log, name: str):
    with pytest.raises(InvalidSettings, match="expected a name of 1 to 80 letters, digits"):
        await topic_named(log, name)


def test_no_output_can_be_called_live():
    with pytest.raises(InvalidSettings, match="stands for what was assembled live"):
        topic_of("live")


async def test_settings_of_an_output_are_those_it_was_made_with(log):
    scorers = (OutputScorer("judge", "2", "ab", True),)
    scored = replace(SETTINGS, beyond=beyond_of(scorers, (0, 0)))
    await write_output(log, "judged", [], settings=scored, scorers=scorers)
    output = await read_output(log, "judged")
    assert output is not None
    assert settings_of(output) == scored


async def test_settings_that_this_version_does_not_have_are_not_known(log):
    older = {**SETTINGS.canonical(), "fold_version": 0}
    await write_output(log, "judged", [], settings=SETTINGS)
    output = await read_output(log, "judged")
    assert output is not None
    assert settings_of(replace(output, settings=canonical_json(older), config_hash="00")) is None
    missing = {name: value for name, value in older.items() if name != "merge"}
    assert settings_of(replace(output, settings=canonical_json(missing))) is None
