"""Samples of batches as a Parquet file: one row a sample, tokens as columns of lists.

The file appears once it is whole: it is written beside it, as `FILE.XXXXXXXX.part`, a name of its own, since two that
write the same one would mix their rows. Memory is that of a row group and of the batch that is added.

Needs     the extra `parquet`
Not here  reading batches: consumers.published; the command: consumers.cli.exporting
"""

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rolloutlog.consumers.adapters import missing
from rolloutlog.consumers.batches import Batch, RolloutResult
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.sample_checks import sample_fault
from rolloutlog.eventstore.errors import InvalidSettings

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise missing(__name__, "parquet", error) from error

ROW_GROUP_BYTES = 64 * 2**20  # of packed tokens and texts; readers take a row group at once
ROW_GROUP_BYTES_MAX = 2**30  # lists are counted in 32 bits

_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_MASK = pa.list_(pa.field("element", pa.uint8(), nullable=False))
_FLOATS = pa.list_(pa.field("element", pa.float32(), nullable=False))
_DOUBLES = pa.list_(pa.field("element", pa.float64(), nullable=False))
_VALUES = pa.map_(pa.string(), pa.float64())
_RUN = pa.struct([pa.field("policy_version", pa.int64()), pa.field("tokens", pa.int64(), nullable=False)])

# What each column holds: docs/export.md. Columns of JSON are text, as recorded.
SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("batch_id", pa.string(), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("rollout_id", pa.string(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("attempt", pa.int64(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("turn_index", pa.int64(), nullable=False),
        pa.field("turn_count", pa.int64(), nullable=False),
        pa.field("span_ids", pa.list_(pa.string()), nullable=False),
        pa.field("prompt_ids", _IDS, nullable=False),
        pa.field("response_ids", _IDS, nullable=False),
        pa.field("response_mask", _MASK, nullable=False),
        pa.field("logprobs", _FLOATS),
        pa.field("policy_version_runs", pa.list_(_RUN), nullable=False),
        pa.field("total", pa.float64()),
        pa.field("step", _VALUES, nullable=False),
        pa.field("final", _VALUES, nullable=False),
        pa.field("rollout_final", _VALUES, nullable=False),
        pa.field("reward_token_index", _IDS, nullable=False),
        pa.field("reward_token_value", _DOUBLES, nullable=False),
        pa.field("extra_info", pa.string(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("finish_reason", pa.string()),
    ]
)

Row = tuple[Sample, RolloutResult, Batch]

logger = logging.getLogger("rolloutlog.parquet")


class ParquetFile:
    """Writes batches into one file. Use as a context: the file appears at its end, and not when it is left by an error.

    path             overwritten when it is there; of a link, the file that it leads to
    row_group_bytes  of samples, packed; a row group is written when they are reached
    Raises           InvalidSettings for what is no file, such as a device; OSError naming the path when it cannot be
                     written, as on a full disk
    """

    def __init__(self, path: Path, *, row_group_bytes: int = ROW_GROUP_BYTES) -> None:
        if not 1 <= row_group_bytes <= ROW_GROUP_BYTES_MAX:
            raise InvalidSettings(
                f"row_group_bytes: expected an integer from 1 to {ROW_GROUP_BYTES_MAX}, got {row_group_bytes!r}"
            )
        self.sample_count = 0
        # a link's own place may be on another disk, and a device that is replaced is gone
        target = path.resolve()
        if target.exists() and not target.is_file():
            raise InvalidSettings(
                f"{path}: expected a file, or a name for one; it is something else, and is left as it is"
            )
        self._path = path
        self._target = target
        self._part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
        self._row_group_bytes = row_group_bytes
        self._rows: list[Row] = []
        self._size_bytes = 0
        self._writer: Any = None

    def add(self, batch: Batch) -> None:
        """Add a batch's samples, in their order. One without samples adds nothing.

        What trainers reject is left out with a warning: its tokens would be written as those of other rows.
        """
        for sample in batch.samples:
            if (fault := sample_fault(sample, batch.rollouts)) is not None:
                logger.warning("sample %s of group %s is left out: %s", sample.sample_id, batch.group_id, fault)
                continue
            rollout = batch.rollouts[sample.rollout_index]
            self._rows.append((sample, rollout, batch))
            self._size_bytes += sample.size_bytes + len(rollout.metadata)
            self.sample_count += 1
            if self._size_bytes >= self._row_group_bytes:
                self._write()

    def __enter__(self) -> Self:
        try:
            with self._writing():
                self._writer = pq.ParquetWriter(self._part, SCHEMA, compression="zstd")
        except BaseException:
            self._part.unlink(missing_ok=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self._rows:
                    self._write()
                with self._writing():
                    self._writer.close()
                    _store(self._part)
                    os.replace(self._part, self._target)
        finally:
            with suppress(OSError):  # what is wrong is said already
                self._writer.close()
            self._part.unlink(missing_ok=True)

    def _write(self) -> None:
        table = pa.Table.from_arrays(_arrays(self._rows), schema=SCHEMA)
        with self._writing():
            self._writer.write_table(table)
        self._rows, self._size_bytes = [], 0

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """pyarrow's errors name the part, or nothing at all: who reads them knows the file."""
        try:
            yield
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(error.errno or 0, f"could not be written: {why}", str(self._path)) from error


def _store(path: Path) -> None:
    """Wait until the bytes are on the disk: a file that takes the place of another one must be whole."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _arrays(rows: Sequence[Row]) -> list[Any]:
    samples = [sample for sample, _, _ in rows]
    rollouts = [rollout for _, rollout, _ in rows]
    batches = [batch for _, _, batch in rows]
    columns = {
        "sample_id": [each.sample_id for each in samples],
        "batch_id": [each.batch_id for each in batches],
        "group_id": [each.group_id for each in batches],
        "rollout_id": [each.rollout_id for each in rollouts],
        "task_id": [each.task_id for each in rollouts],
        "attempt": [each.attempt for each in rollouts],
        "split": [each.split for each in rollouts],
        "turn_index": [each.turn_index for each in samples],
        "turn_count": [each.turn_count for each in rollouts],
        "span_ids": [each.span_ids for each in samples],
        "prompt_ids": _packed(_IDS, 4, [each.prompt_ids for each in samples]),
        "response_ids": _packed(_IDS, 4, [each.response_ids for each in samples]),
        "response_mask": _packed(_MASK, 1, [each.response_mask for each in samples]),
        "logprobs": _packed(_FLOATS, 4, [each.logprobs for each in samples]),
        "policy_version_runs": [
            [{"policy_version": run.policy_version, "tokens": run.tokens} for run in each.policy_version_runs]
            for each in samples
        ],
        "total": [each.total for each in samples],
        "step": _pairs(each.step for each in samples),
        "final": _pairs(each.final for each in samples),
        "rollout_final": _pairs(each.final for each in rollouts),
        "reward_token_index": _packed(_IDS, 4, [each.reward_token_index for each in samples]),
        "reward_token_value": _packed(_DOUBLES, 8, [each.reward_token_value for each in samples]),
        "extra_info": [(each.extra_info or b"{}").decode(errors="replace") for each in samples],
        "metadata": [(each.metadata or b"{}").decode(errors="replace") for each in rollouts],
        "model": [each.model for each in samples],
        "finish_reason": [each.finish_reason for each in samples],
    }
    return [
        values if isinstance(values := columns[field.name], pa.Array) else pa.array(values, field.type)
        for field in SCHEMA
    ]


def _packed(kind: Any, item_bytes: int, parts: Sequence[bytes | None]) -> Any:
    """A column of lists from packed little-endian bytes, without a Python list of tokens."""
    ends = [0, *accumulate(len(part or b"") // item_bytes for part in parts)]
    values = pa.Array.from_buffers(
        kind.value_type, ends[-1], [None, pa.py_buffer(b"".join(part or b"" for part in parts))]
    )
    mask = pa.array([part is None for part in parts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=kind, mask=mask)


def _pairs(mappings: Iterable[Mapping[str, float]]) -> list[list[tuple[str, float]]]:
    return [list(each.items()) for each in mappings]
