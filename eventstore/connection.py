"""Connecting a publisher: what it may be opened with, and the log and run it finds.

Not here  the log itself: eventstore.log; making topics and runs: eventstore.topics
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from rolloutlog.eventstore.checks import plain_integer
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import EVENTS, Log, open_log
from rolloutlog.eventstore.meta import Run, read_run
from rolloutlog.eventstore.settings import PublisherSettings
from rolloutlog.eventstore.topics import check_partitions, create_topics

LOG_VARIABLE = "ROLLOUTLOG_LOG"

Opener = Callable[[str, bool], Awaitable[Log]]


def url_of(url: Any) -> str:
    """The URL to open; None = the environment's. Raises InvalidSettings."""
    url = os.environ.get(LOG_VARIABLE, "") if url is None else url
    if not isinstance(url, str):
        raise InvalidSettings(f"url: expected text such as 'sqlite:///run.db', got {url!r}")
    if not url:
        raise InvalidSettings(f"no log: expected a URL, or one in the environment variable {LOG_VARIABLE}, got none")
    return url


def partitions_of(partitions: Any) -> int | None:
    """The partition count to create a log with; None = as by default. Raises InvalidSettings."""
    partitions = plain_integer(partitions)
    if partitions is not None and (type(partitions) is not int or partitions < 1):
        raise InvalidSettings(f"partitions: expected an integer from 1 on, got {partitions!r}")
    return partitions


def settings_of(settings: Any) -> PublisherSettings:
    """The settings to open with; None = the defaults. Raises InvalidSettings."""
    if settings is None:
        return PublisherSettings()
    if not isinstance(settings, PublisherSettings):
        raise InvalidSettings(f"settings: expected PublisherSettings(name=value, ...), got {settings!r}")
    return settings


async def connect(url: str, *, create: bool, partitions: int | None, opener: Opener | None) -> tuple[Log, Run]:
    """Open the log and read its run, which `create` makes where it is missing. Raises LogMissing and others."""
    try:
        log = await (opener or _open)(url, create)
        try:
            run = await create_topics(log, partitions=partitions) if create else await read_run(log)
            if run is None:
                raise LogMissing(f"log {url}: its topics hold no run yet; create it with `rolloutlog topics create`")
            check_partitions(run, await log.partitions(EVENTS), url)
            await log.ranges(EVENTS, [0])  # refuses a topic that events cannot be kept in, before any is recorded
        except BaseException:
            await log.close()
            raise
    except LogMissing as error:
        if not create and url.startswith("sqlite:"):
            error.args = (f"{error}, or open the publisher with `create=True`",)
        raise
    return log, run


async def _open(url: str, create: bool) -> Log:
    return await open_log(url, create=create)
