"""Steps with literal tokens, for tests of adapters."""

from collections.abc import Mapping, Sequence
from typing import Any

from support.batches import batch, result, sample

from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.extra_info import encode_extra_info

Info = Mapping[str, Any]


def step(groups: Mapping[str, Sequence[float]], infos: Sequence[Info] = (), **fields: Any) -> Step:
    """A step of the groups, each with one rollout and one sample a total. `infos`: extra info of samples, in order."""
    infos = [*infos, *[{}] * (sum(map(len, groups.values())) - len(infos))]
    batches, samples, indices = [], [], []
    for index, (group_id, totals) in enumerate(groups.items()):
        made = [
            sample(
                f"{group_id}-{number}/0/c",
                total=total,
                rollout_index=number,
                extra_info=encode_extra_info(infos[len(samples) + number]),
                **fields,
            )
            for number, total in enumerate(totals)
        ]
        results = tuple(result(f"{group_id}-{number}") for number in range(len(made)))
        batches.append(batch(group_id, made, rollouts=results))
        samples += made
        indices += [index] * len(made)
    return Step(7, tuple(batches), tuple(samples), tuple(indices), (0,) * len(batches), 3)
