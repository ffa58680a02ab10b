"""A policy of the user's own: `policy = "package.module:function"`. docs/rewards.md, "A policy of your own".

`load_policy` imports it and checks it before anything is read. `CustomPolicy.find` asks it for one reward; whatever it
does wrong becomes a fault of the rollout, with its traceback, and never ends the process.

Not here  importing it: consumers.named_function; what it is given: attribution.view; the rules around it:
          attribution.rules
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from rolloutlog.consumers.attribution.calls import Call, Calls, in_turn_order
from rolloutlog.consumers.attribution.earlier import Earlier
from rolloutlog.consumers.attribution.model import UNATTRIBUTED, RewardEntry
from rolloutlog.consumers.attribution.view import CallView, PolicyView, PolicyViews
from rolloutlog.consumers.named_function import WrongAnswer, load_function, shown, told, unusable

REPEATS_MAX = 1_000  # of calls named twice, beyond the rollout's spans: an iterator may have no end

_SETTING = "attribution setting 'policy'"

Policy = Callable[[PolicyView], str | Iterable[str] | None]


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """`source`: BLAKE2b-128 of the file that holds it, as 32 hex digits; a part of the config hash."""

    name: str
    function: Policy
    source: str


def is_custom(policy: str) -> bool:
    """Whether the setting names a function. No policy of ours has a colon in its name."""
    return ":" in policy


@cache  # the source is that of the moment at which the module was imported, however often settings are made
def load_policy(name: str) -> LoadedPolicy:
    """Import a policy by `package.module:function`.

    Raises  InvalidSettings that says what is wrong with it: its name, its import, what it is, how it is called
    """
    loaded = load_function(_SETTING, name, "the view")
    if loaded.is_async:
        raise unusable(_SETTING, name, "a plain function", "it is an async one, which could wait for something")
    return LoadedPolicy(name, loaded.function, loaded.source)


class CustomPolicy:
    """Asks a policy about the rewards of one rollout. `fault` tells what it did wrong, None when nothing."""

    def __init__(self, loaded: LoadedPolicy, calls: Calls, earlier: Earlier) -> None:
        self._loaded, self._calls = loaded, calls
        self._rollout = PolicyViews(calls, earlier)
        self._asked = self._failed = 0
        self._first = ""

    @property
    def fault(self) -> str | None:
        if not self._failed:
            return None
        return f"policy {self._loaded.name} failed for {self._failed} of {self._asked} rewards, first {self._first}"

    def find(self, reward: RewardEntry, after: Call | None) -> list[Call] | str:
        """The calls it names, in turn order, or the outcome when it names none or fails."""
        self._asked += 1
        try:
            found = self._named(self._loaded.function(self._rollout.of(reward, after)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: no policy ends the assembler
            self._failed += 1
            if self._failed == 1:
                self._first = f"for reward {reward.reward_id}: {told(error, (__file__,))}"
            return UNATTRIBUTED
        return found or UNATTRIBUTED

    def _named(self, answer: Any) -> list[Call]:
        if answer is None:
            return []
        if isinstance(answer, CallView) or not isinstance(answer, Iterable):
            raise WrongAnswer(f"expected a span id, several, or None, got {shown(answer)}")
        most = len(self._calls.tree.spans) + REPEATS_MAX
        found: dict[Call, None] = {}
        for count, span_id in enumerate(islice([answer] if isinstance(answer, str) else answer, most + 1)):
            if count == most:
                raise WrongAnswer(f"expected the span ids of calls, got more than {most} of them")
            found[self._call(span_id)] = None
        return in_turn_order(found)

    def _call(self, span_id: Any) -> Call:
        call = self._calls.by_span(span_id) if isinstance(span_id, str) else None
        if call is None:
            raise WrongAnswer(f"expected the span id of a call of this rollout, got {shown(span_id)}")
        if call.judge:
            raise WrongAnswer(f"expected the span id of a call, got {shown(span_id)}, which is a judge's")
        return call
