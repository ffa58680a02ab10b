"""What `rolloutlog batches export` does: all batches, up to the end of the topic as of now, into one Parquet file."""

from contextlib import aclosing
from pathlib import Path

import click

from rolloutlog.consumers.cli.batches import each_batch
from rolloutlog.consumers.cli.configuration import Configuration, parse_partitions
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.named_topic import topic_named
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import open_log

OTHER_FORMATS = frozenset({".arrow", ".avro", ".csv", ".json", ".jsonl", ".txt"})


async def export(configuration: Configuration, path: Path, output: str | None = None) -> None:
    """Write the samples of all batches, or of an output's, by partition and offset, and say how many there are."""
    if path.suffix.lower() in OTHER_FORMATS:
        raise InvalidSettings(
            f"{path}: expected a name for a Parquet file, such as {path.stem}.parquet, got one of another format; "
            "`rolloutlog batches dump` prints samples as JSON lines"
        )
    try:
        from rolloutlog.consumers.adapters.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise InvalidSettings(str(error)) from error
    log = await open_log(configuration.url())
    try:
        topic = await topic_named(log, output)
        partitions = parse_partitions(configuration.partitions, await log.partitions(topic))
        with bars() as shown, ParquetFile(path) as file:
            async with aclosing(each_batch(log, partitions, shown, topic=topic)) as found:
                async for batch in found:
                    file.add(batch)
    finally:
        await log.close()
    click.echo(f"{path}: {file.sample_count} samples")
