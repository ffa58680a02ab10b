"""Acknowledgements: what trainers write to the `acks` topic, in the transaction that moves their position.

A step is acknowledged once its optimizer step is done; a rewind takes back what was acknowledged after a checkpoint.
The last word on a sample counts. A trainer that waits for groups says so too, outside of any transaction. Fields and
units: schemas/StepAcknowledged.v3.avsc, schemas/Rewound.v4.avsc, schemas/StepAwaited.v2.avsc.

A reader's name counts in its topic: `trainer` of an output is another one than `trainer` of the live batches.
`read_ack` gives those of one topic alone; whoever takes `read_said` looks at `topic`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log.port import ACKS, BATCHES, NewRecord, Record

TRAINED, STALE, FILTERED, REJECTED = "trained", "stale", "filtered", "rejected"
ENDS = (TRAINED, STALE, FILTERED, REJECTED)

PARTITION = 0
RECORD_BYTES_MAX = 2**20  # of samples and batch ids in one record; a larger step takes several


class SampleEnd(NamedTuple):
    """How a sample ended. `end`: one of ENDS."""

    sample_id: str
    end: str


@dataclass(frozen=True, slots=True)
class StepAcknowledged:
    """A step is done. A large one comes as several records of the same step; only the last has `offsets`.

    step            optimizer step, from 0
    policy_version  of the weights after it; None = unknown
    samples         ends of its samples, and of those that ended stale or filtered since the record before
    offsets         batches partition → where reading goes on: everything before is acknowledged
    topic           of the batches: BATCHES, or an output's
    """

    reader: str
    step: int
    policy_version: int | None
    batch_ids: tuple[str, ...]
    samples: tuple[SampleEnd, ...]
    offsets: Mapping[int, int]
    time_ns: int
    topic: str = BATCHES


@dataclass(frozen=True, slots=True)
class Rewound:
    """A checkpoint was loaded: what was acknowledged from `step` on, or on another line, does not count any more.

    A line of steps begins with each Rewound: a checkpoint may have been saved on one that was left since.

    step            the next one
    offsets         batches partition → where reading goes on
    policy_version  of the weights that were loaded; None = unknown
    time_ns         names the line that begins here: above all those before
    line            on which the checkpoint was saved; 0 = the reader's first, None = another reader's, or unknown: the
                    one before is then taken to go on
    """

    reader: str
    step: int
    offsets: Mapping[int, int]
    policy_version: int | None
    time_ns: int
    line: int | None = None
    topic: str = BATCHES


@dataclass(frozen=True, slots=True)
class StepAwaited:
    """The trainer waits: for step `step` it lacks `groups` groups. Acknowledges nothing."""

    reader: str
    step: int
    groups: int
    time_ns: int
    topic: str = BATCHES


Ack = StepAcknowledged | Rewound
Said = Ack | StepAwaited


def ack_records(ack: Said) -> list[NewRecord]:
    """The records that say so, to be written in one transaction. Key: the reader, for an output with its topic."""
    key = ack.reader if ack.topic == BATCHES else f"{ack.reader}.{ack.topic}"  # readers' names have no dot
    return [NewRecord(ACKS, PARTITION, key.encode(), value) for value in _values(ack)]


def read_said(record: Record) -> Said:
    """Read one record of the acks topic. Raises InvalidEvent when it is none."""
    name, fields = decode_record(record.value)
    if name == StepAwaited.__name__:
        return StepAwaited(**fields)
    if name not in (StepAcknowledged.__name__, Rewound.__name__):
        raise InvalidEvent(
            f"acknowledgement refused: expected StepAcknowledged, Rewound or StepAwaited, got {name} (topic "
            f"{record.topic}, offset {record.partition}:{record.offset})",
            reason="no_acknowledgement",
        )
    fields["offsets"] = {each["partition"]: each["offset"] for each in fields["offsets"]}
    if name == Rewound.__name__:
        return Rewound(**fields)
    fields["batch_ids"] = tuple(fields["batch_ids"])
    fields["samples"] = tuple(SampleEnd(**each) for each in fields["samples"])
    return StepAcknowledged(**fields)


def read_ack(record: Record, topic: str = BATCHES) -> Ack | None:
    """As `read_said`; None where nothing of that topic is acknowledged."""
    said = read_said(record)
    return None if isinstance(said, StepAwaited) or said.topic != topic else said


def _values(ack: Said) -> Iterator[bytes]:
    fields: dict[str, Any] = {name: getattr(ack, name) for name in ack.__slots__}
    if isinstance(ack, StepAwaited):
        yield encode_record(StepAwaited.__name__, fields)
        return
    fields["offsets"] = [{"partition": partition, "offset": offset} for partition, offset in ack.offsets.items()]
    if isinstance(ack, Rewound):
        yield encode_record(Rewound.__name__, fields)
        return
    last = {"batch_ids": fields.pop("batch_ids"), "samples": fields.pop("samples"), "offsets": fields.pop("offsets")}
    batch_ids: list[str] = []
    samples: list[dict[str, str]] = []
    size = 0
    for item in (*last["batch_ids"], *last["samples"]):
        item_bytes = 4 * (len(item) if isinstance(item, str) else len(item.sample_id)) + 20
        if size and size + item_bytes > RECORD_BYTES_MAX:
            part = {**fields, "batch_ids": batch_ids, "samples": samples, "offsets": []}
            yield encode_record(StepAcknowledged.__name__, part)
            batch_ids, samples, size = [], [], 0
        size += item_bytes
        if isinstance(item, str):
            batch_ids.append(item)
        else:
            samples.append({"sample_id": item.sample_id, "end": item.end})
    part = {**fields, "batch_ids": batch_ids, "samples": samples, "offsets": last["offsets"]}
    yield encode_record(StepAcknowledged.__name__, part)
