"""Records of outputs: what one transaction writes for what a fold put out."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rolloutlog.consumers.batches import encode_parts
from rolloutlog.consumers.decisions import Decision, Expiry
from rolloutlog.consumers.origin import HEADER as ORIGIN
from rolloutlog.consumers.origin import Origin
from rolloutlog.consumers.outputs import BatchReady, DeadLetter, GroupClosing, Output, RunEnding
from rolloutlog.eventstore.codec import HEADER as EVENT
from rolloutlog.eventstore.codec import encode_event, header_of
from rolloutlog.eventstore.events import COMPLETE, Event, GroupClosed, RolloutExpired
from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, EVENTS, NewRecord
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX, RECORD_OVERHEAD_BYTES

WHY = "why"
RECORD_BYTES_MAX = EVENT_BYTES_MAX + RECORD_OVERHEAD_BYTES  # a record as the events topic takes it, uncompressed
HEADERS_MAX = 256
KEY_BYTES_KEPT = 1_024
DETAIL_CHARACTERS_MAX = 2_000  # a dead letter's own headers must fit beside a record of the largest size


@dataclass(slots=True)
class Packer:
    """Makes records of one partition's outputs.

    source  numbers the decisions that it appends to the events
    topic   of batches and the end of the run
    """

    partition: int
    config_hash: str
    source: str
    sequence: int = 0
    topic: str = BATCHES

    def pack(self, outputs: Iterable[Output], *, time_ns: int) -> list[NewRecord]:
        """All records of the outputs, in their order. `time_ns`: now, for events appended."""
        records: list[NewRecord] = []
        for output in outputs:
            if isinstance(output, BatchReady):
                records += self._batch(output)
            elif isinstance(output, DeadLetter):
                records.append(self._dead_letter(output))
            elif isinstance(output, RunEnding):
                records.append(self._run_ending(output))
            elif isinstance(output, GroupClosing):
                records.append(self._group_closed(output.group_id, COMPLETE, None, time_ns))
            else:
                raise AssertionError("what leaves a fold unsettled is settled before it is packed")
        return records

    def pack_decisions(self, decisions: Iterable[Decision], *, time_ns: int) -> list[NewRecord]:
        """Events of decisions, to append to the events. `time_ns`: now."""
        return [
            self._expired(each, time_ns)
            if isinstance(each, Expiry)
            else self._group_closed(each.group_id, each.reason, each.as_of, time_ns)
            for each in decisions
        ]

    def _expired(self, decision: Expiry, time_ns: int) -> NewRecord:
        event = RolloutExpired(
            rollout_id=decision.rollout_id,
            attempt=decision.attempt,
            source=self.source,
            sequence=self.sequence,
            time_ns=time_ns,
            reason=decision.reason,
            as_of=decision.as_of,
            missing_events=decision.missing_events,
            missing_names=decision.missing_names,
            missing_rewards=decision.missing_rewards,
        )
        return self._event(event, decision.group_id)

    def _group_closed(self, group_id: str, reason: str, as_of: int | None, time_ns: int) -> NewRecord:
        event = GroupClosed(
            rollout_id="",
            attempt=0,
            source=self.source,
            sequence=self.sequence,
            time_ns=time_ns,
            group_id=group_id,
            reason=reason,
            as_of=as_of,
        )
        return self._event(event, group_id)

    def _event(self, event: Event, group_id: str) -> NewRecord:
        self.sequence += 1
        headers = ((EVENT, header_of(event).text()),)
        return NewRecord(EVENTS, self.partition, group_id.encode(), encode_event(event), headers)

    def _batch(self, output: BatchReady) -> list[NewRecord]:
        batch = output.batch
        parts = encode_parts(batch)
        records = []
        for part, value in enumerate(parts):
            origin = Origin(self.partition, output.trigger, batch.first_event, self.config_hash, part, len(parts))
            records.append(
                NewRecord(self.topic, self.partition, batch.group_id.encode(), value, ((ORIGIN, origin.text()),))
            )
        return records

    def _run_ending(self, output: RunEnding) -> NewRecord:
        origin = Origin(self.partition, output.trigger, output.offset, self.config_hash)
        key = f"run/{output.event.run_id}".encode()
        return NewRecord(self.topic, self.partition, key, encode_event(output.event), ((ORIGIN, origin.text()),))

    def _dead_letter(self, output: DeadLetter) -> NewRecord:
        record = output.record
        why: dict[str, Any] = {
            "reason": output.reason,
            "field": output.field,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "detail": output.detail[:DETAIL_CHARACTERS_MAX],
        }
        origin = Origin(self.partition, output.trigger, record.offset, self.config_hash)
        key, value, given = record.key, record.value, record.headers
        size_bytes = len(key or b"") + len(value or b"") + sum(len(name) + len(text or b"") for name, text in given)
        if size_bytes > RECORD_BYTES_MAX or len(given) > HEADERS_MAX:
            # Above the topic's limit, as compressed records can be: what it was, and where it still stands.
            digest = blake2b(value or b"", digest_size=16).hexdigest()
            why |= {"cut": True, "size_bytes": size_bytes, "header_count": len(given), "value_blake2b": digest}
            key, value, given = (key or b"")[:KEY_BYTES_KEPT], None, ()
        headers = (*given, (WHY, json.dumps(why, sort_keys=True).encode()), (ORIGIN, origin.text()))
        return NewRecord(DEAD_LETTERS, self.partition, key, value, headers)
