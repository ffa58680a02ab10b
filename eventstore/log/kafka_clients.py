"""Start and stop the driver's clients: always whole, and within a time.

Stopping one while Kafka is down can wait for ever, and one that breaks off leaves its tasks behind. So every stop runs
in a task of its own, and what it leaves is found and ended here.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from aiokafka.client import AIOKafkaClient

STOP_S = 5.0  # a stop with a live cluster takes milliseconds
LEFT_S = 1.0  # for tasks that were cancelled

_stopping: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive


async def start(client: Any, *, within_s: float) -> None:
    """Start a producer or consumer. Raises what its start does, and TimeoutError; it is stopped then.

    A cancelled caller first lets it come to its end: broken off half-way, the driver forgets a connection that it has
    just made, and complains of it when it is freed.
    """
    starting = asyncio.ensure_future(client.start())
    starting.add_done_callback(consume)
    try:
        async with asyncio.timeout(within_s):
            await asyncio.shield(starting)
    except BaseException:
        await _in_background(_leave(client, starting))
        raise


async def stop(client: Any, *, within_s: float = STOP_S) -> None:
    """Stop a producer, consumer or client. Takes at most `within_s` and some; never raises but for a cancelled caller,
    and goes on then."""
    await _in_background(_stop(client, within_s))


def consume(future: "asyncio.Future[Any]") -> None:
    """A done callback: an error that nobody waits for any more is no news."""
    if not future.cancelled():
        future.exception()


async def _in_background(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    _stopping.add(task)
    task.add_done_callback(_stopping.discard)
    await asyncio.shield(task)


async def _leave(client: Any, starting: "asyncio.Future[None]") -> None:
    await asyncio.wait([starting], timeout=LEFT_S)
    starting.cancel()
    await _stop(client, STOP_S)


async def _stop(client: Any, within_s: float) -> None:
    ending: Any = client.close if isinstance(client, AIOKafkaClient) else client.stop
    stopping = asyncio.ensure_future(ending())
    stopping.add_done_callback(consume)
    await asyncio.wait([stopping], timeout=within_s)
    if not stopping.done() or stopping.cancelled() or stopping.exception():
        await _end([stopping, *_tasks_of(client)])
        inner = getattr(client, "client", None) or getattr(client, "_client", client)
        await _end([asyncio.ensure_future(inner.close())], cancel=False)
    _hush(client)


async def _end(tasks: Iterable["asyncio.Future[Any]"], *, cancel: bool = True) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.add_done_callback(consume)
        if cancel:
            task.cancel()
    await asyncio.wait(tasks, timeout=LEFT_S)
    for task in tasks:
        task.cancel()


def _tasks_of(client: Any) -> list["asyncio.Task[Any]"]:
    """Running tasks of a client's parts: the driver keeps no list of those it starts."""
    parts = [client, *vars(client).values()]
    found = []
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        owner = frame.f_locals.get("self") if frame is not None else None
        if owner is not None and any(owner is part for part in parts):
            found.append(task)
    return found


def _hush(producer: Any) -> None:
    """Take note of errors in a producer that nobody waits for; else they are logged when it is freed."""
    transactions = getattr(producer, "_txn_manager", None)
    waiters = [transactions.wait_for_transaction_end()] if transactions is not None else []
    batches = getattr(producer, "_message_accumulator", None)
    if batches is not None:
        left = [batch for lane in batches._batches.values() for batch in lane]
        for batch in (*left, *batches._pending_batches):
            waiters += [batch.future, batch._drain_waiter]
    for waiter in waiters:
        if waiter is not None and waiter.done():
            consume(waiter)
