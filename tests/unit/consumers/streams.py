"""What tests of streams put into the batches topic."""

from collections.abc import Callable
from typing import Any

from support.batches import batch, end_records, records_of
from support.store import Store

from rolloutlog.consumers.trainer import BatchStream

Open = Callable[..., BatchStream]


def put(store: Store, *names: str, partition: int = 0, **given: Any) -> None:
    """Groups of these names, two samples each."""
    store.append([record for name in names for record in records_of(batch(name, **given), partition)])


def end_run(store: Store) -> None:
    store.append(end_records(store.partitions))
