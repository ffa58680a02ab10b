"""`rolloutlog outputs`: what is told of outputs, by their records and the statuses of their replays."""

import json

from click.testing import CliRunner
from support.outputs import write_output
from support.store import Store

from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.consumers.cli.outputs import COLUMNS
from rolloutlog.consumers.replaying.outputs import OutputRewards, OutputScorer
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.status import Status, status_record

JUDGE = OutputScorer("judge", "2", "", True)


def listed(store: Store, *arguments: str) -> list[str]:
    result = CliRunner().invoke(rolloutlog, ["outputs", "--log", store.url, *arguments])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def told(store: Store, partition: int, position: int, **counts: int) -> None:
    status = Status("replay.judged", partition, "h", 1, 0, position, 0, 10, 0, 0, None, counts, ())
    store.append([status_record(status)])


def test_outputs_are_listed_with_what_is_in_them_and_what_made_them(store: Store):
    partitions = store.partitions
    store.run(
        write_output(
            store.log, "judged", [], scorers=(JUDGE,), record=True, rewards_of=(OutputRewards("slow", None),),
            selection=Selection(None, 2_000_000_000, ("g",), ("r", "s")), ends=(10,) * partitions,
            config_hash="0123456789abcdef" * 2,
        )
    )  # fmt: skip
    for partition in range(partitions):
        told(store, partition, 5, groups=1, groups_ahead=2, unscored=1, read=1)
    header, line = listed(store)
    assert header.split() == list(COLUMNS)
    shown = " ".join(line.split())
    assert shown.startswith(f"judged at 50 % {partitions} of {3 * partitions} {partitions} to 1970-01-01T00:00:02Z, ")
    assert ", 1 group, 2 rollouts judge 2, recorded; recorded rewards of slow 01234567 1970-01-01T00:00:00Z " in shown


def test_outputs_say_how_many_groups_there_will_be_only_when_all_events_are_read(store: Store):
    partitions = store.partitions
    store.run(write_output(store.log, "judged", [], ends=(10,) * partitions))
    told(store, 0, 5, groups=1, groups_ahead=2, read=1)
    (line,) = listed(store, "--json")
    found = json.loads(line)
    assert (found["groups"], found["groups_in_all"], found["failures"], found["complete"]) == (1, None, 0, False)
    for partition in range(1, partitions):
        told(store, partition, 10, read=1)
    (line,) = listed(store, "--json")
    assert json.loads(line)["groups_in_all"] == 3
