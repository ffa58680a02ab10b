"""Reward extra info as columns of a whole optimizer batch: one mapping a row in, one array a key out.

    columns = assemble_extra_info([{"acc": 1.0}, {"acc": 0.0, "pred": "42"}])
    columns["pred"]          # array([None, '42'], dtype=object)
    columns.present["pred"]  # array([False, True])

Scorers return different keys for different samples. The columns are the union of the keys, in first-seen order over the
rows; which host, partition or batch a row came from makes no difference. So they are assembled once, over all rows.

Not here  the mapping of one sample: consumers.extra_info_merging; a column's dtype: consumers.extra_info_column
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rolloutlog.consumers.extra_info_column import ABSENT, column_of, mean_of, numbers_in
from rolloutlog.eventstore.errors import InvalidSettings, StoreError
from rolloutlog.eventstore.extra_info import KEYS_MAX, RESERVED_KEYS, InvalidExtraInfo, decode_extra_info

if TYPE_CHECKING:
    from rolloutlog.consumers.stream.step import Step

__all__ = ["ExtraInfoColumns", "ExtraInfoRefused", "NoExtraInfo", "assemble_extra_info"]

REJECT, PREFIX = "reject", "prefix"
REWARD = "reward/"
METRICS = "extra_info/"
COLUMNS_MAX = 4_096  # of a step: where keys contain an id, each row brings columns that hold one value

NAMED_MAX = 20

logger = logging.getLogger("rolloutlog.trainer")

Info = Mapping[str, Any] | None


class ExtraInfoRefused(StoreError, ValueError):
    """Keys have reserved names, or a row has too many; the text names them all, and the first row with each."""


class NoExtraInfo(StoreError, TypeError):
    """A row is something else than a mapping of text to values; the text names the row."""


class ExtraInfoColumns(dict[str, NDArray[Any]]):
    """Name → array of one element a row, in first-seen order.

    present          name → bool [B]: whether the row has the key. None, absent and NaN are three things
    row_count        B, rows of padding included
    padding_count    the last rows, which hold no sample; what is in them is 0, False, "" or None, and not present
    refused_keys     keys without a column → sample id of the first row with it
    refused_samples  sample id → why none of its extra info was taken; the row is as if it had none
    """

    def __init__(self, row_count: int = 0) -> None:
        super().__init__()
        self.present: dict[str, NDArray[np.bool_]] = {}
        self.row_count = row_count
        self.padding_count = 0
        self.refused_keys: dict[str, str] = {}
        self.refused_samples: dict[str, str] = {}

    def metrics(self) -> dict[str, float]:
        """Flat names for a trainer's log: `extra_info/{key}/rows`, `/present`, and `/mean` of columns of numbers.

        A mean is of the finite numbers present. A column with any other value has none, whichever row it is in.
        """
        found: dict[str, float] = {}
        for name, column in self.items():
            present = self.present[name]
            found[f"{METRICS}{name}/rows"] = self.row_count - self.padding_count
            found[f"{METRICS}{name}/present"] = int(present.sum())
            numbers = numbers_in(column, present)
            if numbers is not None and len(numbers):
                found[f"{METRICS}{name}/mean"] = mean_of(numbers)
        return found

    def shard(self, rank: int, world: int) -> "ExtraInfoColumns":
        """One rank's rows, cut as `shard` cuts the step's. All ranks have the same columns, of the same dtypes."""
        from rolloutlog.consumers.stream.step import shard_rows, share_of

        if self.padding_count:
            raise InvalidSettings("extra info: expected columns of a whole step, got a share's")
        start, end, row_count = share_of(self.row_count, rank, world)
        share = ExtraInfoColumns(row_count)
        share.padding_count = row_count - (end - start)
        for name, column in self.items():
            share[name] = shard_rows(column, rank, world)
            share.present[name] = shard_rows(self.present[name], rank, world)
        share.refused_keys, share.refused_samples = dict(self.refused_keys), dict(self.refused_samples)
        return share


def assemble_extra_info(
    infos: Iterable[Info],
    *,
    reserved: Iterable[str] = (),
    on_collision: str = REJECT,
    numpy_parity: bool = False,
    sample_ids: Sequence[str] | None = None,
) -> ExtraInfoColumns:
    """Columns of all rows of an optimizer batch, in their final order.

    infos         one mapping a row; None is {}
    reserved      names besides RESERVED_KEYS that no column may have, such as those of the prompts' data
    on_collision  `reject`, or `prefix`: such a column is named `reward/` and its key
    numpy_parity  dtypes as in verl's pull request 7151: dense columns as `np.array` infers them, equal lists 2-D
    sample_ids    of each row, to name it in errors; None = its index
    Returns       all rows' keys in first-seen order; no rows give no columns. A column in which a row lacks the key is
                  of objects, None there
    Raises        ExtraInfoRefused, a ValueError, naming all reserved keys, or a row with more than KEYS_MAX;
                  NoExtraInfo, a TypeError, for a row that is no mapping of text; InvalidSettings
    """
    infos = list(infos)
    if sample_ids is not None and len(sample_ids) != len(infos):
        raise InvalidSettings(f"sample_ids: expected {len(infos)}, one per row, got {len(sample_ids)}")
    rows = _rows(infos, sample_ids)
    keys = _keys(rows, sample_ids)
    names, refused = _names(keys, _reserved(reserved), _checked(on_collision))
    if refused:
        first = ", ".join(f"{key!r} (first in {_row(keys[key].first, sample_ids)})" for key in refused)
        raise ExtraInfoRefused(
            f"extra info refused: expected keys that no other column has, got {first}; rename them in the scorer, or "
            'assemble with on_collision="prefix"'
        )
    return _columns(rows, keys, names, numpy_parity=numpy_parity)


def step_extra_info(step: "Step", reserved: Iterable[str], on_collision: str, numpy_parity: bool) -> ExtraInfoColumns:
    """See `Step.extra_info`."""
    from rolloutlog.consumers.stream.padding import Padded

    on_collision = _checked(on_collision)
    if step.world != 1:
        raise InvalidSettings(
            f"extra info of step {step.number}: expected a whole step, got a share: its rows alone may lack columns of "
            "the others. Take it before `shard`, and cut it with its own shard(rank, world)"
        )
    sample_ids = [sample.sample_id for sample in step.samples]
    rows, refused_samples = _decoded(step)
    keys = _keys(rows, sample_ids)
    names, refused = _names(keys, _reserved(reserved) | set(Padded.__slots__), on_collision)
    for key in list(names)[COLUMNS_MAX:]:
        del names[key]
        refused.append(key)
    columns = _columns(rows, keys, names, numpy_parity=numpy_parity)
    columns.refused_keys = {key: sample_ids[keys[key].first] for key in refused}
    columns.refused_samples = refused_samples
    _warn(step.number, columns, on_collision)
    return columns


def _warn(number: int, columns: ExtraInfoColumns, on_collision: str) -> None:
    keys, samples = columns.refused_keys, columns.refused_samples
    if keys:
        shown = ", ".join(f"{key!r:.200} (first in {keys[key]})" for key in list(keys)[:NAMED_MAX])
        logger.warning(
            "step %d: extra info without a column, since another has the name, or there are more than %d columns: "
            "%s%s; samples and rewards stay. Rename them in the scorer%s",
            number, COLUMNS_MAX, shown, _more(keys), ', or ask with on_collision="prefix"' * (on_collision == REJECT),
        )  # fmt: skip
    if samples:
        sample_id, why = next(iter(samples.items()))
        logger.warning(
            "step %d: extra info of %d samples refused, which are trained on without it; first %s: %s",
            number, len(samples), sample_id, why,
        )  # fmt: skip


def _rows(infos: Iterable[Info], sample_ids: Sequence[str] | None) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for index, info in enumerate(infos):
        if info is not None and not isinstance(info, Mapping):
            raise NoExtraInfo(
                f"extra info of {_row(index, sample_ids)}: expected a mapping or None, got {type(info).__name__}"
            )
        rows.append({} if info is None else info)
    return rows


@dataclass(slots=True)
class _Key:
    """Index of the first row with a key, and how many have it."""

    first: int
    count: int = 1


def _keys(rows: Sequence[Mapping[str, Any]], sample_ids: Sequence[str] | None) -> dict[str, _Key]:
    """All keys, in first-seen order."""
    schemas: dict[tuple[str, ...], _Key] = {}  # most rows have the keys of another, and are counted at once
    for index, row in enumerate(rows):
        schema = tuple(row)
        if schema in schemas:
            schemas[schema].count += 1
        else:
            schemas[schema] = _Key(index)
    keys: dict[str, _Key] = {}
    for schema, found in schemas.items():
        _check_keys(schema, _row(found.first, sample_ids))
        for key in schema:
            if key in keys:
                keys[key].count += found.count
            else:
                keys[key] = _Key(found.first, found.count)
    return keys


def _check_keys(keys: Sequence[Any], where: str) -> None:
    if len(keys) > KEYS_MAX:
        shown = ", ".join(f"{key!r:.200}" for key in keys[:NAMED_MAX])
        raise ExtraInfoRefused(
            f"extra info of {where} refused: expected at most {KEYS_MAX} keys, got {len(keys)}: {shown}{_more(keys)}"
        )
    for key in keys:
        if not isinstance(key, str):
            raise NoExtraInfo(f"extra info of {where}: expected keys that are text, got {key!r:.100}")


def _names(keys: Iterable[str], reserved: Iterable[str], on_collision: str) -> tuple[dict[str, str], list[str]]:
    """Key → name of its column, and the keys for which no name is free."""
    keys = list(keys)
    names = {key: key for key in keys if key not in reserved}
    refused: list[str] = []
    for key in keys:
        if key in reserved:
            name = REWARD + key
            if on_collision == REJECT or name in names or name in reserved:
                refused.append(key)
            else:
                names[key] = name
    # a prefixed column stays where its key was first seen
    return {key: names[key] for key in keys if key in names}, refused


def _columns(
    rows: Sequence[Mapping[str, Any]], keys: Mapping[str, _Key], names: Mapping[str, str], *, numpy_parity: bool
) -> ExtraInfoColumns:
    columns = ExtraInfoColumns(len(rows))
    for key, name in names.items():
        dense = keys[key].count == len(rows)
        values = list(map(itemgetter(key), rows)) if dense else [row.get(key, ABSENT) for row in rows]
        if dense and numpy_parity:
            columns[name] = _as_numpy_infers(values, key)
        else:
            columns[name] = column_of(values, dense=dense)
        if dense:
            columns.present[name] = np.ones(len(rows), np.bool_)
        else:
            columns.present[name] = np.fromiter((value is not ABSENT for value in values), np.bool_, len(rows))
    return columns


def _as_numpy_infers(values: Sequence[Any], key: str) -> NDArray[Any]:
    try:
        return np.array(values)
    except ValueError as error:
        raise ExtraInfoRefused(
            f"extra info {key!r}: expected values of which numpy makes an array, got {error}; without numpy_parity it "
            "is a column of objects"
        ) from error


def _decoded(step: "Step") -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """The mapping of each row; {} for one that is refused, with the reason by sample id."""
    rows: list[Mapping[str, Any]] = []
    refused: dict[str, str] = {}
    shared: dict[bytes, Mapping[str, Any]] = {}  # a rollout's reward is the same in all of its samples
    for sample in step.samples:
        encoded = sample.extra_info
        row = shared.get(encoded)
        if row is None:
            try:
                row = decode_extra_info(encoded)
            except InvalidExtraInfo as error:
                refused[sample.sample_id] = str(error)
                row = {}
            else:
                if _holds_no_container(encoded):
                    shared[encoded] = row
        rows.append(row)
    return rows, refused


def _holds_no_container(encoded: bytes) -> bool:
    """Whether its values are surely plain: lists and mappings can be changed, and are no other row's to change."""
    return b"[" not in encoded and encoded.find(b"{", 1) < 0


def _reserved(names: Iterable[str]) -> set[str]:
    iterable = isinstance(names, Iterable) and not isinstance(names, str)
    names = list(names) if iterable else names
    if not iterable or not all(isinstance(name, str) for name in names):
        raise InvalidSettings(f"reserved: expected names of columns, got {names!r:.100}")
    return {*RESERVED_KEYS, *names}


def _checked(on_collision: str) -> str:
    if on_collision not in (REJECT, PREFIX):
        raise InvalidSettings(f"on_collision: expected {REJECT} or {PREFIX}, got {on_collision!r}")
    return on_collision


def _row(index: int, sample_ids: Sequence[str] | None) -> str:
    return f"row {index}" if sample_ids is None else sample_ids[index]


def _more(keys: Collection[str]) -> str:
    return f" and {len(keys) - NAMED_MAX} more" if len(keys) > NAMED_MAX else ""
