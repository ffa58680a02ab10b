"""What a policy of the user's own is given: one reward, and the rollout as it stood before it. Read only.

Nothing here is made before it is asked for, so that a policy that looks at little costs little, however large the
rollout. A view is good during the call for which it was made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from rolloutlog.consumers.attribution.calls import Call, Calls
from rolloutlog.consumers.attribution.earlier import Earlier
from rolloutlog.consumers.attribution.model import RewardEntry, SpanEntry
from rolloutlog.consumers.attribution.tree import NONE


@dataclass(frozen=True, slots=True)
class CallView:
    """One answer of the policy.

    span_id     the span it is named after: the first with response token ids; its name, parent and times are the call's
    span_ids    all of its spans, in log order
    agent       name of the nearest enclosing agent, None = none
    turn_index  place among all calls by (start_ns, log order)
    selected    whether it is trained on; a reward that finds only others ends as `filtered`
    """

    span_id: str
    span_ids: tuple[str, ...]
    parent_id: str | None
    name: str
    agent: str | None
    model: str | None
    response_id: str | None
    start_ns: int
    end_ns: int
    turn_index: int
    selected: bool


class PolicyView:
    """One reward and its rollout.

    reward  the reward to find a call for
    calls   every call but judges', in log order, selected or not
    earlier those of them that were recorded before the reward, or not after its `after_call`
    after   the call that its `after_call` names, None = none, or a judge's
    spans   every span, in log order
    """

    __slots__ = ("_rollout", "after", "calls", "earlier", "reward", "spans")

    def __init__(
        self, rollout: "PolicyViews", reward: RewardEntry, after: CallView | None, earlier: "Earliest"
    ) -> None:
        self._rollout = rollout
        self.reward = reward
        self.after = after
        self.earlier: Sequence[CallView] = earlier
        self.calls: Sequence[CallView] = rollout.calls
        self.spans: Sequence[SpanEntry] = rollout.spans

    @property
    def agent(self) -> str | None:
        """Name of the nearest agent that the reward was emitted in; None = in none."""
        agents = (span.name for span in self.enclosing(self.reward.parent_id) if span.kind == "agent")
        return next(agents, None)

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the operations that the reward was emitted in, nearest first."""
        return tuple(span.name for span in self.enclosing(self.reward.parent_id) if span.kind == "operation")

    def span(self, span_id: str) -> SpanEntry | None:
        return self._rollout.span(span_id)

    def call(self, span_id: str) -> CallView | None:
        """The call that a span belongs to; None for other spans, and for a judge's."""
        return self._rollout.call(span_id)

    def enclosing(self, span_id: str | None) -> Iterator[SpanEntry]:
        """A span, its parent, and so on upwards, as far as they were recorded. None: nothing."""
        return self._rollout.enclosing(span_id)

    def last_beneath(self, span_id: str) -> CallView | None:
        """The last earlier call at or beneath a span."""
        return self._rollout.last_beneath(span_id)

    def beneath(self, span_id: str) -> list[CallView]:
        """Every earlier call at or beneath a span, in turn order."""
        return self._rollout.beneath(span_id)


class Earliest(Sequence[CallView]):
    """The first `count` of some calls, without a copy: many rewards may each see many calls."""

    __slots__ = ("_calls", "_count")

    def __init__(self, calls: Sequence[CallView], count: int) -> None:
        self._calls, self._count = calls, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> CallView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CallView]: ...
    def __getitem__(self, index: int | slice) -> CallView | Sequence[CallView]:
        if isinstance(index, slice):
            return [self._calls[each] for each in range(*index.indices(self._count))]
        return self._calls[range(self._count)[index]]


class PolicyViews:
    """What the views of one rollout's rewards share."""

    def __init__(self, calls: Calls, earlier: Earlier) -> None:
        self._calls, self._earlier, self._tree = calls, earlier, calls.tree
        counted = [call for call in calls.every if not call.judge]
        self._views = {call: _view(call, self._tree.spans) for call in counted}
        self.calls: Sequence[CallView] = tuple(self._views.values())
        self.spans: Sequence[SpanEntry] = tuple(self._tree.spans)

    def of(self, reward: RewardEntry, after: Call | None) -> PolicyView:
        """The view of a reward at the present moment. `after`: the call that it says it came after."""
        came_after = None if after is None else self._views.get(after)
        return PolicyView(self, reward, came_after, Earliest(self.calls, self._earlier.count))

    def span(self, span_id: str) -> SpanEntry | None:
        v = self._tree.number.get(span_id)
        return None if v is None or v >= len(self.spans) else self.spans[v]

    def call(self, span_id: str) -> CallView | None:
        call = self._calls.by_span(span_id)
        return None if call is None else self._views.get(call)

    def enclosing(self, span_id: str | None) -> Iterator[SpanEntry]:
        tree = self._tree
        v = NONE if span_id is None else tree.number.get(span_id, NONE)
        seen: set[int] = set()  # parents may be each other's
        while v != NONE and v < len(self.spans) and v not in seen:
            seen.add(v)
            yield self.spans[v]
            v = tree.parent[v]

    def last_beneath(self, span_id: str) -> CallView | None:
        v = self._tree.number.get(span_id)
        call = None if v is None else self._earlier.last_beneath(v)
        return None if call is None else self._views[call]

    def beneath(self, span_id: str) -> list[CallView]:
        v = self._tree.number.get(span_id)
        return [] if v is None else [self._views[call] for call in self._earlier.all_beneath(v)]


def _view(call: Call, spans: Sequence[SpanEntry]) -> CallView:
    named = call.named
    return CallView(
        span_id=named.span_id,
        span_ids=tuple(spans[v].span_id for v in call.spans),
        parent_id=named.parent_id,
        name=named.name,
        agent=call.agent,
        model=call.model,
        response_id=named.response_id,
        start_ns=named.start_ns,
        end_ns=named.end_ns,
        turn_index=call.turn_index,
        selected=call.selected,
    )
