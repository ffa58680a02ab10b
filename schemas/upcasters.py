"""Translate what an older version of a record meant into what the newest one means.

Avro fills in fields that were added. Where a default does not say what the old bytes meant, an upcaster does: a
function on the decoded fields, which have the newest version's names already, registered under the record and the
version it goes on from. One after the other is applied, from the version that was written up to the newest.

Pure: no clock, no log; what cannot be known stays the field's default. Golden tests pin what each one gives.
"""

from collections.abc import Callable
from math import isclose
from typing import Any

Upcaster = Callable[[dict[str, Any]], None]  # changes the fields in place


def upcast(name: str, written: int, newest: int, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of version `written`, in the meaning of `newest`."""
    for version in range(written, newest):
        upcaster = UPCASTERS.get((name, version))
        if upcaster is not None:
            upcaster(fields)
    return fields


def _final_totals(batch: dict[str, Any]) -> None:
    """`final_total` is new in v2, where null says that no final value reaches the row. In v1 `total` held it unseen.

    A v1 row is one call. Where it has both kinds of rewards, its weights are needed to tell them apart, and are not in
    the batch: known are those of 1, the default. With others it stays null.
    """
    for sample in batch["samples"]:
        step, final, total = sample["step"], sample["final"], sample["total"]
        if not final or total is None:
            continue
        unweighted = sum(final.values())
        if not step:
            sample["final_total"] = total
        elif isclose(sum(step.values()) + unweighted, total, rel_tol=1e-9, abs_tol=1e-12):
            sample["final_total"] = unweighted


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("TrainingBatch", 1): _final_totals,
}
