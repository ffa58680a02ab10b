"""Outputs of replays, written by hand: their record, and batches as live ones are packed."""

from collections.abc import Sequence
from typing import Any

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.outputs import BatchReady
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.replaying.outputs import Output, create_output, topic_of
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.settings import FoldSettings, canonical_json
from rolloutlog.eventstore.log import EVENTS, Log


async def write_output(
    log: Log, name: str, batches: Sequence[Batch], *, settings: FoldSettings | None = None, **fields: Any
) -> None:
    """Create an output, and append the batches where their events are. `fields`: of its record."""
    made = settings or FoldSettings()
    partitions = await log.partitions(EVENTS)
    given: dict[str, Any] = {
        "run_id": "run", "config_hash": made.config_hash, "settings": canonical_json(made.canonical()), "scorers": (),
        "selection": Selection(), "first": (0,) * partitions, "ends": (0,) * partitions,
        "rewards_ends": (0,) * partitions, "time_ns": 0, "source": "log", **fields,
    }  # fmt: skip
    await create_output(log, Output(name, **given))
    for batch in batches:
        packer = Packer(batch.input_partition, batch.config_hash, "replay.00000000000000cc", topic=topic_of(name))
        await log.append(packer.pack([BatchReady(batch.trigger, batch)], time_ns=0))
