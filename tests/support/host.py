"""A rollout host that is killed: `python host.py MODE URL …`, in a process of its own.

append GROUP PARTITION   append the first half of a group's events, a rollout at a time; print `ready`; hang
publish                  with EventPublisher: record half a rollout of a group of two whose other one is whole, flush;
                         print the group's id and `ready`; hang
stream                   with EventPublisher: rollouts of two turns without end, a line for each; flushes every tenth
follow LAG_MAX           as `stream`, of the trainer's policy version, holding while its lag is above LAG_MAX
"""

import asyncio
import sys
import threading
import time

from rolloutlog.eventstore import EventPublisher, Rollout, open_log
from support.workload import whole_group

TURNS = 2
ROLLOUTS_BETWEEN_FLUSHES = 10
FOLLOW_PAUSE_S = 0.02  # a trainer that is killed again and again should train on some of them


async def append(url: str, group_id: str, partition: str) -> None:
    log = await open_log(url)
    records = whole_group(group_id, partition=int(partition), rollouts=2)
    for start in (0, 4):
        await log.append(records[start : start + 2])  # the start and the call of each rollout
    await log.close()


def publish(url: str) -> None:
    events = EventPublisher.open(url)
    group = events.group("task", size=2)
    with events.rollout(group=group) as whole:
        _turn(whole, 0)
        whole.finish(reward=1.0)
    half = events.rollout(group=group)
    half.__enter__()
    _turn(half, 0)
    half.reward(0.5)
    events.flush(30)
    print(group.group_id, flush=True)


def stream(url: str) -> None:
    events = EventPublisher.open(url)
    count = 0
    while True:
        with events.rollout("task") as rollout:
            for turn in range(TURNS):
                _turn(rollout, turn)
            rollout.finish(reward=1.0)
        count += 1
        if count % ROLLOUTS_BETWEEN_FLUSHES == 0:
            events.flush(30)
        print(count, flush=True)


def follow(url: str, lag_max: str) -> None:
    events = EventPublisher.open(url)
    count = 0
    while True:
        events.hold(int(lag_max))
        version = events.policy_version() or 0
        with events.rollout("task", policy_version=version) as rollout:
            for turn in range(TURNS):
                _turn(rollout, turn, version)
            rollout.finish(reward=1.0)
        events.flush(60)
        time.sleep(FOLLOW_PAUSE_S)
        count += 1
        print(count, flush=True)


def _turn(rollout: Rollout, turn: int, version: int | None = None) -> None:
    with rollout.agent("solver"), rollout.call(model="policy", policy_version=version) as call:
        call.record(prompt_ids=[1, 2, turn], response_ids=[3, 4], logprobs=[-0.1, -0.2])


def main(mode: str, url: str, *arguments: str) -> None:
    if mode == "append":
        asyncio.run(append(url, *arguments))
    else:
        {"publish": publish, "stream": stream, "follow": follow}[mode](url, *arguments)
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
