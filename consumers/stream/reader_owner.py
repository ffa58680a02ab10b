"""The one owner of a reader's name: what it acknowledged, committed with the records that say so.

`open` takes these steps, and `commit` takes 1 to 3 again after an answer that did not come:

  1 fence     own the topic of batches as a whole under the reader's name; an older one can store nothing from here on
  2 claim     write host, pid and time to meta, for the one that was fenced
  3 position  read what is committed, only now: an older owner's last transaction is in it

A reader of an output owns under another name than one of live batches: an app's owner of a whole topic fences the one
before whatever its topic, and both may train at once.

A commit whose answer did not come is looked for in the positions: they are as before, or as wanted. It is sent again
only when no newer owner has claimed the name meanwhile.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence

from rolloutlog.consumers.owners import META_PARTITION, POLL_S, WHOLE_TOPIC, Claim, Claims, FencedOut, write_claim
from rolloutlog.consumers.stream.acked import Acked, acked_of, from_positions, to_positions
from rolloutlog.eventstore.errors import Fenced, LogUnavailable, StoreError
from rolloutlog.eventstore.log import META, Log, NewRecord, Owner, Position

SUCCESSOR_WAIT_S = 5.0
RETRY_S = (0.2, 5.0)  # first and longest pause before a commit is looked for again
OWNED_S = 1.0  # after a commit the name is taken for ours: looking would cost a fast trainer a part of each step

logger = logging.getLogger("rolloutlog.trainer")


class ReaderOwner:
    """Made by `open`. `acked`: what is committed; it changes with `commit` alone."""

    def __init__(
        self, log: Log, app: str, topic: str, name: str, claims: Claims, clock: Callable[[], int], commit_s: float
    ) -> None:
        self.acked = Acked(0, None, {})
        self._log = log
        self._app = app
        self._topic = topic
        self._name = name
        self._claims = claims
        self._clock = clock
        self._commit_s = commit_s
        self._owner: Owner | None = None
        self._positions: dict[int, Position] = {}  # as committed
        self._unknown: dict[int, Position] = {}  # of a commit that was given up without an answer
        self._claim: Claim | None = None  # the newest of ours that is stored
        self._claims_made: list[Claim] = []
        self._fenced: FencedOut | None = None
        self._stored_at = float("-inf")  # by the loop's clock
        self._turn = asyncio.Lock()

    @classmethod
    async def open(
        cls, log: Log, app: str, topic: str, *, name: str, clock: Callable[[], int], commit_s: float
    ) -> "ReaderOwner":
        """Fence older owners of the name and read what they acknowledged.

        app       under which it owns
        topic     of batches: the live ones, or an output's
        name      of the reader, in errors
        commit_s  for a commit with all its repetitions
        Raises    FencedOut when another one takes the name at the same moment; PositionRefused, LogUnavailable
        """
        # Our claim will stand above this, and those of successors above ours.
        end = (await log.ranges(META, [META_PARTITION]))[META_PARTITION].end
        made = cls(log, app, topic, name, Claims(log, first=end), clock, commit_s)
        try:
            owner = await made._own()
            made._positions = dict(await owner.positions())
            made.acked = from_positions(made._positions, where=made._name)
        except Fenced as error:
            fenced_out = await made._fenced_out()
            await made.close()
            raise fenced_out from error
        except BaseException:
            await made.close()
            raise
        return made

    async def commit(self, records: Sequence[NewRecord], acked: Acked) -> None:
        """Store `records` and what is acknowledged with them, in one transaction.

        Raises  FencedOut naming the successor; LogUnavailable when `commit_s` is over: it may be stored, and
                committing it again is safe
        """
        async with self._turn:
            wanted = to_positions(acked)
            loop = asyncio.get_running_loop()
            deadline, pause_s = loop.time() + self._commit_s, RETRY_S[0]
            while True:
                try:
                    if not await self._is_committed(wanted):
                        assert self._owner is not None
                        await self._owner.commit(records, wanted)
                    break
                except Fenced as error:
                    raise await self._fenced_out() from error
                except LogUnavailable as error:
                    await self._drop_owner()
                    self._unknown = wanted
                    if loop.time() + pause_s >= deadline:
                        raise LogUnavailable(
                            f"{self._name}: no answer within {self._commit_s:g} s to what acknowledges up to "
                            f"step {acked.step}, which may be stored; acknowledge it again: {error}"
                        ) from error
                    logger.warning("%s; looking again in %.1f s", error, pause_s)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_S[1])
                except StoreError:
                    await self._drop_owner()  # it may be unusable now
                    raise
            self._stored_at = loop.time()
            self._positions, self._unknown = self._positions | wanted, {}
            self.acked = acked_of(acked.step, acked.policy_version, self.acked.reached | acked.reached, acked.line)

    @property
    def has_just_stored(self) -> bool:
        """Whether the name was ours less than OWNED_S ago: a commit of ours was stored."""
        return self._fenced is None and asyncio.get_running_loop().time() < self._stored_at + OWNED_S

    async def check(self) -> None:
        """Raise FencedOut when a newer owner has claimed the name. Says nothing when claims cannot be read."""
        if self._fenced is not None:
            raise self._fenced
        try:
            successor = await self._successor()
        except StoreError:
            return
        if successor is not None:
            raise await self._fenced_out()

    async def close(self) -> None:
        await self._drop_owner()
        await self._claims.close()

    async def _is_committed(self, wanted: dict[int, Position]) -> bool:
        """Whether an earlier try has stored it; takes a new owner where the last one's result is unknown."""
        if self._fenced is not None:
            raise self._fenced
        if self._owner is not None:
            return False
        # Nobody is fenced on a guess: while claims cannot be read, there may be a newer owner, who is at work.
        if await self._successor() is not None:
            raise await self._fenced_out()
        found = dict(await (await self._own()).positions())
        if found == self._positions | wanted:
            return True
        if found == self._positions | self._unknown:
            self._positions = found  # ours, of a commit before this one
        elif found != self._positions:
            # It ended before we looked; what it acknowledged is not ours to write over.
            raise await self._fenced_out()
        return False

    async def _own(self) -> Owner:
        owner = await self._log.own(self._app, self._topic, None)
        try:
            claim = Claim(self._app, self._topic, WHOLE_TOPIC, socket.gethostname(), os.getpid(), self._clock())
            self._claims_made.append(claim)  # before it is written: an unanswered one may be stored
            await write_claim(owner, claim)
            self._claim = claim
        except BaseException:
            await owner.close()
            raise
        self._owner = owner
        return owner

    async def _drop_owner(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            await owner.close()

    async def _successor(self) -> Claim | None:
        """The newest owner after us; another stream of this process is one, too."""
        if self._claim is not None:
            newest = await self._claims.newest(self._claim)
        else:  # we were fenced before we could say anything, by one who came since `open` began
            found = await self._claims.all(self._claims_made[-1].key) if self._claims_made else []
            newest = found[-1] if found else None
        return None if newest in self._claims_made else newest

    async def _fenced_out(self) -> FencedOut:
        successor = None
        try:
            if self._claim is None:
                await asyncio.sleep(POLL_S)  # what is there now may be of one who came before us
            for _ in range(int(SUCCESSOR_WAIT_S / POLL_S)):
                if (successor := await self._successor()) is not None:
                    break
                await asyncio.sleep(POLL_S)
        except StoreError:
            logger.warning("%s: the successor's name could not be read", self._name)
        self._fenced = FencedOut(
            f"{self._name} was taken over by {successor or 'unknown'}; this stream stored "
            "nothing after that and gives no more steps. Trainers that run at once need readers of different names"
        )
        return self._fenced
