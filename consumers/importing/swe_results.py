"""What an evaluation says of SWE-bench instances: which are resolved.

Three forms are read: a run's report (`resolved_ids` beside other lists of ids), the older `results.json` (`resolved`
beside other lists), and an instance's `report.json` ({id: {"resolved": true}}), of which there may be many in one file.
An instance without verdict, such as one whose evaluation failed, has no reward: it is not 0.
"""

from collections.abc import Mapping
from typing import Any

from rolloutlog.consumers.importing.chat import parse_object
from rolloutlog.eventstore.checks import refused

RESOLVED = ("resolved_ids", "resolved")
# Evaluated, or handed in with nothing in it, and not resolved. Not among them: evaluations that failed or never ran.
UNRESOLVED = ("unresolved_ids", "empty_patch_ids", "applied", "no_apply", "no_generation", "generated")


def parse_results(text: bytes) -> dict[str, float]:
    """Reward by instance: 1.0 or 0.0. Raises InvalidEvent naming the field."""
    given = parse_object(text, "a JSON object of results")
    if any(name in given for name in RESOLVED):
        return _of_lists(given)
    rewards = {}
    for instance, report in given.items():
        resolved = report.get("resolved") if isinstance(report, dict) else None
        if type(resolved) is not bool:
            raise refused(
                "`resolved_ids` or `resolved`, lists of ids, or of each instance an object with `resolved`",
                report,
                instance,
            )
        rewards[instance] = float(resolved)
    return rewards


def _of_lists(given: Mapping[str, Any]) -> dict[str, float]:
    rewards: dict[str, float] = {}
    for names, reward in ((UNRESOLVED, 0.0), (RESOLVED, 1.0)):
        for name in names:
            ids = given.get(name, [])
            if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
                raise refused("a list of instance ids", ids, name)
            rewards.update(dict.fromkeys(ids, reward))
    return rewards
