"""What `rolloutlog batches export` does: all batches, up to the end of the topic as of now, into one Parquet file."""

from contextlib import aclosing
from pathlib import Path

import click

from rolloutlog.consumers.cli.batches import each_batch
from rolloutlog.consumers.cli.configuration import Configuration, parse_partitions
from rolloutlog.consumers.cli.progress import bars
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
        with bars() as shown, ParquetFile(path) as file:
            async with aclosing(each_batch(log, partitions, shown)) as found:
                async for batch in found:
                    file.add(batch)
    finally:
        await log.close()
    click.echo(f"{path}: {file.sample_count} samples")
