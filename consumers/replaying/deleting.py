"""An output is deleted: whoever writes it is fenced first, so that no half of it comes again.

  1 lock    nobody creates or deletes an output of this name meanwhile
  2 fence   become the owner of each partition for the output, and say so: a replay that runs stores nothing more
  3 drop    its topic, and the positions of its replays
  4 forget  its record and statuses in the meta topic: the name is free again

Broken off, it is run again: the record goes last, so that the output is still listed until then. Rewards that scorers
recorded stay, they are the log's.
"""

import os
import socket
import time
from collections.abc import Callable

from rolloutlog.consumers.owners import Claim, write_claim
from rolloutlog.consumers.replaying.outputs import (
    META_PARTITION,
    PREFIX,
    Output,
    app_of,
    list_outputs,
    lock_of,
    topic_of,
)
from rolloutlog.consumers.status import status_key
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import EVENTS, META, Log, NewRecord


async def find_output(log: Log, name: str) -> Output:
    """The output of this name. Raises InvalidSettings naming those that there are."""
    topic_of(name)
    outputs = {each.name: each for each in await list_outputs(log)}
    if name not in outputs:
        raise InvalidSettings(
            f"output {name!r}: expected one of {', '.join(outputs) or 'none, for there are no outputs'}, got another "
            "name; nothing was deleted"
        )
    return outputs[name]


async def delete_output(log: Log, name: str, *, clock: Callable[[], int] = time.time_ns) -> None:
    """Delete an output. `clock`: UTC nanoseconds, for claims.

    Raises  InvalidSettings when there is none of this name; Fenced when another process deletes or creates it
    """
    lock = await log.own(lock_of(name), META, META_PARTITION)
    try:
        output = await find_output(log, name)
        partitions = range(len(output.ends))
        for partition in partitions:
            await _fence(log, output, partition, clock())
        await log.drop(output.topic, app=app_of(name))
        keys = [status_key(output.app, partition) for partition in partitions]
        keys.append(PREFIX + name.encode())
        await lock.commit([NewRecord(META, META_PARTITION, key, None) for key in keys], {})
    finally:
        await lock.close()


async def _fence(log: Log, output: Output, partition: int, time_ns: int) -> None:
    owner = await log.own(output.app, EVENTS, partition)
    try:
        await write_claim(owner, Claim(output.app, EVENTS, partition, socket.gethostname(), os.getpid(), time_ns))
    finally:
        await owner.close()
