"""An archive's events and re-scores, and what a log has beside them: outputs, and batches where it is of the same run.

For those who look at history whose log is gone, or is another one: a log that took the output of `replay --archive` has
a run of its own, so that its batches are of other events.

Not here  an archive and the log it came from, read as one: consumers.archiving.splicing
"""

from collections.abc import Iterable, Mapping

from rolloutlog.consumers.archiving.log import ArchiveLog
from rolloutlog.consumers.archiving.manifest import TOPICS
from rolloutlog.consumers.archiving.splicing import SplicedLog, spliced
from rolloutlog.eventstore.errors import LogMissing
from rolloutlog.eventstore.log import BATCHES, Log, Range, Reader
from rolloutlog.eventstore.meta import read_run


async def beside(archive: ArchiveLog, log: Log | None) -> "Beside | SplicedLog":
    """What an archive and a log hold together. `log`: None = there is none. Closing what it returns closes both.

    Raises  as `spliced` does, for a log of the archive's run
    """
    run = None
    if log is not None:
        try:
            run = await read_run(log)
        except LogMissing:
            log = None  # without topics it holds nothing
    if log is not None and run is not None and run.run_id == archive.run_id:
        joined = await spliced(archive, log)
        assert isinstance(joined, SplicedLog)
        return joined
    return Beside(archive, log)


class Beside(ArchiveLog):
    """Made by `beside`: the archive, with outputs of a log of another run."""

    def __init__(self, archive: ArchiveLog, log: Log | None) -> None:
        self.url, self.run, self._storage, self._lanes = archive.url, archive.run, archive._storage, archive._lanes
        self._log = log

    def _other(self, topic: str) -> Log | None:
        """The log that holds this topic; None: the archive does."""
        return None if topic in TOPICS or topic == BATCHES else self._log

    async def partitions(self, topic: str) -> int:
        log = self._other(topic)
        return await (super().partitions(topic) if log is None else log.partitions(topic))

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        log = self._other(topic)
        return await (super().ranges(topic, partitions) if log is None else log.ranges(topic, partitions))

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        log = self._other(topic)
        if log is None:
            return await super().offsets_at(topic, partitions, time_ns)
        return await log.offsets_at(topic, partitions, time_ns)

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:  # type: ignore[override]
        log = self._other(topic)
        return await (super().reader(topic, offsets) if log is None else log.reader(topic, offsets))

    async def close(self) -> None:
        await super().close()
        if self._log is not None:
            await self._log.close()
