"""Which calls are selected: trained on, and able to be rewarded."""

import re
from collections.abc import Callable
from functools import cache

from rolloutlog.consumers.attribution.calls import Call, Calls
from rolloutlog.consumers.attribution.settings import AttributionSettings


def select(calls: Calls, settings: AttributionSettings) -> None:
    """Mark the selected calls; a judge's is none. A call without agent, operation or model never matches."""
    inside = _inside(calls, settings.operation)
    outside = _inside(calls, settings.exclude_operation)
    agent, model = _matcher(settings.agent), _matcher(settings.model)
    not_agent = _matcher(settings.exclude_agent)
    for call in calls.turns:
        call.selected = (
            (settings.agent is None or agent(call.agent))
            and (settings.model is None or model(call.model))
            and (settings.operation is None or inside(call))
            and not not_agent(call.agent)
            and not outside(call)
            and all(calls.tree.spans[v].trainable is not False for v in call.spans)
        )


def _matcher(pattern: str | None) -> Callable[[str | None], bool]:
    """Is there a name, and does it match? Without a pattern nothing does."""
    if pattern is None:
        return lambda name: False
    search = cache(re.compile(pattern).search)  # names repeat: one search for each
    return lambda name: name is not None and search(name) is not None


def _inside(calls: Calls, pattern: str | None) -> Callable[[Call], bool]:
    """Does any span of a call lie beneath an operation whose name matches?"""
    if pattern is None:
        return lambda call: False
    match, tree = _matcher(pattern), calls.tree
    matching = [span.kind == "operation" and match(span.name) for span in tree.spans]
    matching += [False] * (len(tree) - len(matching))  # never recorded: no name
    within = tree.any_above(matching)
    return lambda call: any(within[v] for v in call.spans)
