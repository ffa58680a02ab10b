"""An output's topic leaves the embedded log: at once for everyone, its records then bit by bit.

First it gets a name that nobody asks for, in the transaction in which its app's positions go. What a kill leaves behind
is removed by the next drop. The rows of the app's owners stay, with a new epoch: an older owner is fenced, and one that
comes later begins anew.

Not here  which topics may go: eventstore.log.limits
"""

import os
import socket
import sqlite3
from collections.abc import Callable
from functools import partial

from rolloutlog.eventstore.log.sqlite_file import Database, transaction

RECORDS_A_TRANSACTION = 500  # other writers wait no longer than one such removal takes
DROPPED = "dropped."  # and the id of its first partition, and its name

_PARTITIONS = f"SELECT id FROM partitions WHERE substr(topic, 1, {len(DROPPED)}) = '{DROPPED}'"


async def drop_topic(database: Database, clock: Callable[[], int], topic: str, app: str) -> bool:
    """Remove a topic, and the positions of `app`. Returns whether the topic was there."""
    there = await database.run(partial(_hide, clock(), topic, app))
    while await database.run(_remove_some):
        pass
    await database.run(_remove_rest)
    return there


async def size_of(database: Database, topic: str) -> int:
    """Bytes of the values of a topic's records."""

    def look(connection: sqlite3.Connection) -> int:
        (size_bytes,) = connection.execute(
            "SELECT coalesce(sum(length(r.value)), 0) FROM records r JOIN partitions p ON p.id = r.partition_id "
            "WHERE p.topic = ?",
            (topic,),
        ).fetchone()
        return int(size_bytes)

    return await database.run(look)


def _hide(now_ns: int, topic: str, app: str, connection: sqlite3.Connection) -> bool:
    with transaction(connection, "IMMEDIATE"):
        connection.execute(
            "UPDATE owners SET epoch = epoch + 1, host = ?, pid = ?, since_ns = ?, position_offset = NULL, "
            "position_metadata = NULL WHERE app = ?",
            (socket.gethostname(), os.getpid(), now_ns, app),
        )
        (first,) = connection.execute("SELECT min(id) FROM partitions WHERE topic = ?", (topic,)).fetchone()
        if first is None:
            return False
        name = f"{DROPPED}{first}.{topic}"
        # partitions' ids are given again
        connection.execute(
            "DELETE FROM owners WHERE partition_id IN (SELECT id FROM partitions WHERE topic = ?)", (topic,)
        )
        connection.execute("UPDATE partitions SET topic = ? WHERE topic = ?", (name, topic))
        connection.execute("UPDATE topics SET name = ? WHERE name = ?", (name, topic))
    return True


def _remove_some(connection: sqlite3.Connection) -> int:
    with transaction(connection, "IMMEDIATE"):
        rows = f"SELECT id FROM records WHERE partition_id IN ({_PARTITIONS}) LIMIT {RECORDS_A_TRANSACTION}"
        return connection.execute(f"DELETE FROM records WHERE id IN ({rows})").rowcount


def _remove_rest(connection: sqlite3.Connection) -> None:
    with transaction(connection, "IMMEDIATE"):
        connection.execute(f"DELETE FROM records WHERE partition_id IN ({_PARTITIONS})")
        connection.execute(f"DELETE FROM partitions WHERE id IN ({_PARTITIONS})")
        connection.execute(f"DELETE FROM topics WHERE substr(name, 1, {len(DROPPED)}) = '{DROPPED}'")
