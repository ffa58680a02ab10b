"""A step: the batches handed to the optimizer at once, their rows, and their shares of several ranks.

Pure. Rows are samples, in the order of their batches (partition, offset) and within a batch as published. A step can be
pickled and sent to other processes.

Not here  which batches make a step: consumers.stream.collector; arrays of rows: consumers.stream.padding;
          columns of extra info: consumers.extra_info
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.metrics import flat_metrics
from rolloutlog.consumers.samples import Sample
from rolloutlog.eventstore.checks import plain_integer
from rolloutlog.eventstore.errors import InvalidSettings

if TYPE_CHECKING:
    from rolloutlog.consumers.extra_info import ExtraInfoColumns
    from rolloutlog.consumers.stream.padding import Padded


@dataclass(frozen=True, slots=True)
class Step:
    """Batches of one optimizer step, or one rank's share of them.

    number          optimizer step, from 0
    batches         one a group, by partition and offset; in a share each holds the share's samples alone
    samples         rows to train on; a batch's samples that ended filtered are not among them
    groups          index into `batches` of each sample
    staleness       of each group: `policy_version` less its oldest policy version; None = one of them is unknown
    policy_version  of the stream when the step was handed out; None = never set
    evaluations     groups without samples (other splits, dropped ones) that were handed out with it
    missing_reward  what stands for a total that is None; the samples' own stays None
    padding_count   rows without a sample that follow the samples, so that all ranks have as many
    origin          of which stream the step is, for its acknowledgement
    world           shares the step was cut into, of which this is one; 1 = the whole step
    """

    number: int
    batches: tuple[Batch, ...]
    samples: tuple[Sample, ...]
    groups: tuple[int, ...]
    staleness: tuple[int | None, ...]
    policy_version: int | None
    evaluations: tuple[Batch, ...] = ()
    missing_reward: float | None = None
    padding_count: int = 0
    origin: str = ""
    world: int = 1

    @property
    def staleness_max(self) -> int | None:
        """The highest staleness that is known, None when none is."""
        return max((each for each in self.staleness if each is not None), default=None)

    @property
    def row_count(self) -> int:
        return len(self.samples) + self.padding_count

    @property
    def totals(self) -> tuple[float | None, ...]:
        """The reward of each sample: its total, or what stands for a missing one."""
        return tuple(self.missing_reward if each.total is None else each.total for each in self.samples)

    def metrics(self) -> dict[str, float]:
        """What the rewards of its groups and evaluations come to, as flat names by split: docs/training.md, "Metrics".

        Of whole groups, samples that ended filtered included: take them of the whole step, not of each rank's share.
        """
        return flat_metrics((*self.batches, *self.evaluations))

    def padded(self, prompt_tokens: int, response_tokens: int, pad_id: int) -> "Padded":
        """All rows as arrays: prompts left-padded to `prompt_tokens`, responses right-padded to `response_tokens`.

        Raises  SampleTooLong naming the first sample that is longer: nothing is cut
        """
        from rolloutlog.consumers.stream.padding import pad_step

        return pad_step(self, prompt_tokens, response_tokens, pad_id)

    def extra_info(
        self, *, reserved: Iterable[str] = (), on_collision: str = "reject", numpy_parity: bool = False
    ) -> "ExtraInfoColumns":
        """Columns of the rewards' extra info over all rows. Data never raises: what is refused is named, and warned of.

        Take it of the whole step, before `shard`, and cut it with its own `shard`.

        reserved      names of columns that the trainer has, such as those of the prompts' data; those of `padded` and
                      those that trainers add later are reserved as well
        on_collision  `reject`: a key with a reserved name has no column; `prefix`: its column is named `reward/` and
                      the key, unless that is taken too
        numpy_parity  as `assemble_extra_info` says; may raise ExtraInfoRefused
        Raises        InvalidSettings naming the argument
        """
        from rolloutlog.consumers.extra_info import step_extra_info

        return step_extra_info(self, reserved, on_collision, numpy_parity)


def shard(step: Step, rank: int, world: int) -> Step:
    """One rank's share of a step: rows in order, as many on each rank, padding included.

    Ranks differ by at most one sample; those with fewer get a row of padding. Group indices are the whole step's, so
    that statistics of a group can be put together over ranks. Evaluations go to rank 0.
    """
    if step.world != 1 or step.padding_count:
        raise InvalidSettings(f"shard: expected a whole step, got a share of step {step.number}")
    start, end, row_count = share_of(len(step.samples), rank, world)
    samples, groups = step.samples[start:end], step.groups[start:end]
    return replace(
        step,
        batches=_cut(step.batches, samples, groups),
        samples=samples,
        groups=groups,
        evaluations=step.evaluations if rank == 0 else (),
        padding_count=row_count - len(samples),
        world=int(world),
    )


def shard_rows(values: NDArray[Any], rank: int, world: int) -> NDArray[Any]:
    """One rank's share of an array over the rows of a whole step, cut as `shard` cuts it.

    Rows of padding are zeros; None in an array of objects.
    """
    start, end, row_count = share_of(len(values), rank, world)
    shape = (row_count, *values.shape[1:])
    share = np.full(shape, None, object) if values.dtype == object else np.zeros(shape, values.dtype)
    share[: end - start] = values[start:end]
    return share


def share_of(row_count: int, rank: int, world: int) -> tuple[int, int, int]:
    """Where a rank's rows begin and end, and how many rows each rank has, padding included. Raises InvalidSettings."""
    rank, world = plain_integer(rank), plain_integer(world)
    if type(rank) is not int or type(world) is not int or not 0 <= rank < world:
        raise InvalidSettings(
            f"shard: expected a rank from 0 and below its world, got rank {rank!r} of world {world!r}"
        )
    fewest, more = divmod(row_count, world)
    start = rank * fewest + min(rank, more)
    return start, start + fewest + (rank < more), fewest + (more > 0)


def _cut(batches: Sequence[Batch], samples: Sequence[Sample], groups: Sequence[int]) -> tuple[Batch, ...]:
    own: dict[int, list[Sample]] = {}
    for sample, group in zip(samples, groups, strict=True):
        own.setdefault(group, []).append(sample)
    return tuple(replace(batch, samples=tuple(own.get(index, ()))) for index, batch in enumerate(batches))
