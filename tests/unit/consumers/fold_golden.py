"""A log of every kind of event, kept as bytes, and what each fold version makes of it.

`python tests/unit/consumers/fold_golden.py` writes `fold_versions/v{N}.txt` of this fold version where there is none.
What a version has made of the log never changes: other outputs are another version (docs/schemas.md).
"""

import gzip
import json
from pathlib import Path

from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import BatchReady, DeadLetter, GroupClosing
from rolloutlog.consumers.settings import FOLD_VERSION, FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.log import EVENTS, Record

FOLDER = Path(__file__).with_name("fold_versions")
EVENTS_FILE = FOLDER / "events.jsonl.gz"
SETTINGS = {
    "default": FoldSettings(),
    "lines of conversation": FoldSettings(
        merge="trajectory", min_group=1, on_incomplete="keep", splits=("train", "val")
    ),
}


def events() -> list[Record]:
    """Of all partitions, by partition and offset."""
    found = []
    for line in gzip.decompress(EVENTS_FILE.read_bytes()).decode().splitlines():
        partition, offset, log_time_ns, key, value, headers = json.loads(line)
        pairs = tuple((name, _bytes(text)) for name, text in headers)
        found.append(Record(EVENTS, partition, offset, log_time_ns, _bytes(key), _bytes(value), pairs))
    return found


def outputs() -> str:
    """What this fold version makes of them, in words: the same whoever folds them."""
    lines = []
    for name, settings in SETTINGS.items():
        states: dict[int, PartitionState] = {}
        for record in events():
            state = states.setdefault(record.partition, PartitionState(record.partition, settings))
            for output in fold(state, record):
                where = f"{name}, {record.partition}:{output.trigger}"
                if isinstance(output, BatchReady):
                    lines += [f"{where} {line}" for line in _batch_lines(output)]
                elif isinstance(output, DeadLetter):
                    lines.append(f"{where} dead letter {output.reason} {output.field}")
                elif isinstance(output, GroupClosing):
                    lines.append(f"{where} closing of {output.group_id}")
                else:
                    lines.append(f"{where} end of the run, {output.offset}")
    return "\n".join(lines) + "\n"


def _batch_lines(output: BatchReady) -> list[str]:
    batch = output.batch
    lines = [f"batch {batch.group_id} {batch.closed_reason} {batch.reason}, first event {batch.first_event}"]
    for result in batch.rollouts:
        lines.append(f"rollout {result.rollout_id} {result.attempt} {result.status} {result.reason} {result.final}")
        lines += [f"reward {each.reward_id} {each.outcome} {each.rule} {each.calls}" for each in result.outcomes]
    for each in batch.samples:
        tokens = f"{len(each.prompt_ids) // 4} + {len(each.response_mask)} tokens, {sum(each.response_mask)} written"
        lines.append(f"sample {each.sample_id} {tokens} {each.step} {each.final} {each.total}")
    return lines


def file_of(version: int) -> Path:
    return FOLDER / f"v{version}.txt"


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


if __name__ == "__main__":
    if not file_of(FOLD_VERSION).exists():
        file_of(FOLD_VERSION).write_text(outputs(), encoding="utf-8")
        print("wrote", file_of(FOLD_VERSION).name)
