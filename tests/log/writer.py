"""A process that writes to a log until it is done or killed; the tests start it with `python writer.py MODE URL …`.

append NAME COUNT            append COUNT records, one a request, to events/0 and events/1 in turn
commit FROM RECORDS BYTES    own events/0; commit RECORDS records of BYTES and the position n, for n = FROM, FROM + 1, …
                             half of each commit's records go to batches/0, half to dead-letters/0
create                       make the log and its topics, all at the moment the input ends; prints the topics it made
It prints a line for each request that is stored, after a line `ready`.
"""

import asyncio
import sys

from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, EVENTS, Log, NewRecord, Position, TopicSettings, open_log


async def append(log: Log, name: str, count: str) -> None:
    for i in range(int(count)):
        await log.append([NewRecord(EVENTS, i % 2, name.encode(), str(i).encode())])


async def commit(log: Log, first: str, records: str, size_bytes: str) -> None:
    owner = await log.own("app", EVENTS, 0)
    n = int(first)
    while True:
        body = str(n).encode().ljust(int(size_bytes))
        half = int(records) // 2
        await owner.commit(
            [NewRecord(topic, 0, None, body) for topic in (BATCHES, DEAD_LETTERS) for _ in range(half)],
            {0: Position(n, f"n={n}")},
        )
        print(n, flush=True)
        n += 1


async def create(url: str) -> None:
    print("ready", flush=True)
    sys.stdin.read()
    log = await open_log(url, create=True)
    print(*await log.create([TopicSettings(name, 2, None, 10_000) for name in (EVENTS, BATCHES, DEAD_LETTERS)]))
    await log.close()


async def main(mode: str, url: str, *arguments: str) -> None:
    if mode == "create":
        return await create(url)
    log = await open_log(url)
    print("ready", flush=True)
    await {"append": append, "commit": commit}[mode](log, *arguments)
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
