"""What `rolloutlog batches export` does: all batches, up to the end of the topic as of now, into one Parquet file."""

from contextlib import aclosing
from pathlib import Path

import click

from rolloutlog.consumers.cli.batches import say_refused
from rolloutlog.consumers.cli.configuration import Configuration, parse_partitions
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.published import read_published
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import BATCHES, open_log


async def export(configuration: Configuration, path: Path) -> None:
    """Write the samples of all batches, by partition and offset, and say how many there are."""
    try:
        from rolloutlog.consumers.adapters.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise InvalidSettings(str(error)) from error
    log = await open_log(configuration.url())
    try:
        partitions = parse_partitions(configuration.partitions, await log.partitions(BATCHES))
        spans = await log.ranges(BATCHES, partitions)
        total, done = sum(span.end - span.first for span in spans.values()), 0
        with bars() as shown, ParquetFile(path) as file:
            for partition in partitions:
                span = spans[partition]
                async with aclosing(read_published(log, partition, on_refused=say_refused)) as found:
                    async for published in found:
                        if published.batch is not None:
                            file.add(published.batch)
                        shown.tell("batches", min(total, done + published.end - span.first), total)
                done += span.end - span.first
    finally:
        await log.close()
    click.echo(f"{path}: {file.sample_count} samples")
