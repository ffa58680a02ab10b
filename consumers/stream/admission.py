"""Which samples of a batch are trained on, as far as the batch itself decides, and how the others end. Pure.

rejected  what is wrong in itself: consumers.stream.sample_checks
filtered  a sample without reward (`missing_reward="exclude"`); one with more tokens than the stream takes, where it is
          not cut; a group without variance (`zero_variance="filter"`)
Not here  staleness, which changes while a batch waits: consumers.stream.collector
"""

import logging
from collections import Counter
from math import isclose
from typing import TYPE_CHECKING

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.advantages import rollout_rewards
from rolloutlog.consumers.stream.sample_checks import batch_fault, sample_fault
from rolloutlog.consumers.stream.soundness import is_plainly_sound
from rolloutlog.eventstore.acks import FILTERED, REJECTED, SampleEnd

if TYPE_CHECKING:
    from rolloutlog.consumers.stream.collector import StepSettings

EXCLUDE = "exclude"
KEEP, FILTER = "keep", "filter"

logger = logging.getLogger("rolloutlog.trainer")


def admit(batch: Batch, settings: "StepSettings", counts: Counter[str]) -> tuple[list[Sample], list[SampleEnd]]:
    """The samples to train on, cut where the stream does so, and the ends of all others, counted by reason."""
    sound = is_plainly_sound(batch)
    if not sound and (fault := batch_fault(batch)) is not None:
        logger.warning("batch %s of group %s rejected: %s", batch.batch_id, batch.group_id, fault)
        counts["samples_rejected"] += len(batch.samples)
        return [], [SampleEnd(each.sample_id, REJECTED) for each in batch.samples]
    limits = settings.limits
    kept: list[Sample] = []
    ends: list[SampleEnd] = []
    rejected: list[str] = []
    looked_at = batch.samples
    if sound and limits.is_none and (settings.missing_reward != EXCLUDE or all(s.total is not None for s in looked_at)):
        kept, looked_at = list(looked_at), ()  # nothing can keep one of them out
    for sample in looked_at:
        fitting = None
        if limits.drop(sample):
            counts["samples_too_long"] += 1
        elif not sound and (fault := sample_fault(sample, batch.rollouts)) is not None:
            rejected.append(f"{sample.sample_id}: {fault}")
            ends.append(SampleEnd(sample.sample_id, REJECTED))
            continue
        elif sample.total is None and settings.missing_reward == EXCLUDE:
            counts["samples_without_reward"] += 1
        else:
            fitting = limits.cut(sample)
            if fitting is not sample:
                counts["samples_too_long" if fitting is None else "samples_truncated"] += 1
        if fitting is None:
            ends.append(SampleEnd(sample.sample_id, FILTERED))
        else:
            kept.append(fitting)
    if rejected:
        counts["samples_rejected"] += len(rejected)
        more = f"; {len(rejected) - 1} more of its batch" if len(rejected) > 1 else ""
        logger.warning("group %s: a sample is rejected, others are trained on: %s%s", batch.group_id, rejected[0], more)
    if settings.zero_variance == FILTER and _without_variance(batch, settings):
        counts["groups_without_variance"] += 1
        counts["samples_without_variance"] += len(kept)
        ends += [SampleEnd(sample.sample_id, FILTERED) for sample in kept]
        kept = []
    return kept, ends


def _without_variance(batch: Batch, settings: "StepSettings") -> bool:
    """Whether two or more rollouts have one reward. A group of one has nothing to differ from, and is no such group.

    As for advantages, samples count that are left out though nothing is wrong with them: a rollout whose last call is
    too long has earned its reward all the same.
    """
    samples = [sample for sample in batch.samples if sample_fault(sample, batch.rollouts) is None]
    rewards = list(rollout_rewards(samples, [0] * len(samples), settings.fill).values())
    known = [each for each in rewards if each is not None]
    return len(known) > 1 and all(isclose(each, known[0], rel_tol=1e-9, abs_tol=1e-12) for each in known)
