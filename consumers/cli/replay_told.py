"""What `rolloutlog replay` says: before it begins, what will count; at its end, what came out and what did not.

The line of counts goes to standard output, all else to standard error.
"""

from math import ceil

import click

from rolloutlog.consumers.attribution import OUTCOMES
from rolloutlog.consumers.named_function import headline
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.replaying.ids import hinted
from rolloutlog.consumers.replaying.job import Job
from rolloutlog.consumers.replaying.summary import Summary
from rolloutlog.consumers.scoring import cache_path, load_scorer
from rolloutlog.consumers.scoring.scoring import CACHED, RECORDED, UNASKED

FAILURES_SHOWN = 20
MISSING_SHOWN = 5
ANSWERS = ("answered", "failed", "cached", "recorded")
MINUTE_S, HOUR_S = 60, 3_600


def say(text: str) -> None:
    click.echo(printable(text), err=True)


def announce(job: Job) -> None:
    """Say what a replay does that its command line does not."""
    output = job.output
    loose = [each.name for each in output.scorers if not each.deterministic]
    if loose and not job.wish.dry_run:
        kept = "" if output.record else ": add --record, then replay without --scorer"
        say(
            f"scorer {', '.join(loose)} is not deterministic: the same bytes come again only from its recorded rewards"
            f"{kept}"
        )
    if job.resumed:
        say(f"output {output.name} exists: going on with it")
    if output.rewards_of:
        how = "as the output was made" if job.resumed else "--rewards-as-of none leaves them out"
        say(f"counting recorded rewards of {', '.join(map(str, output.rewards_of))} ({how})")


def tell(job: Job, summary: Summary) -> None:
    """Say what came out."""
    click.echo(printable(_counts(job, summary)))
    if job.wish.dry_run:
        _tell_calls(job, summary)
    else:
        _tell_answers(job, summary)
    for reason, count in sorted(summary.without_samples.items()):
        say(f"{count} groups without samples: {reason}")
    if summary.open_groups:
        say(f"still open where reading ended: {summary.open_rollouts} rollouts in {summary.open_groups} groups")
    if summary.counts["refused"]:
        say(f"{summary.counts['refused']} events refused")
    _tell_missing(job, summary)
    _tell_failures(job, summary)
    if summary.stopped:
        say("stopped before its end: what is done is kept; run the same command again to go on")


def missing(job: Job, summary: Summary) -> list[str]:
    """Ids asked for that are not in the output; none while it is not complete."""
    return [] if summary.stopped else job.output.selection.missing(summary.found)


def _counts(job: Job, summary: Summary) -> str:
    counts = summary.counts
    ends = ", ".join(f"{value} {name[9:]}" for name, value in sorted(counts.items()) if name.startswith("rollouts_"))
    rewards = ", ".join(f"{summary.rewards[name]} {name}" for name in OUTCOMES if summary.rewards[name])
    what = "would be: " if job.wish.dry_run else f"{job.output.name}: "
    groups = f"{counts['groups']} groups"
    if summary.stopped and not job.wish.dry_run:
        groups = f"so far, {_so_far(job, summary)}; this time {groups}"
    elif job.resumed:
        groups = f"{groups} this time, {summary.groups_out} in all"
    return (
        f"{what}{groups}, {counts['samples']} samples ({counts['samples_without_reward']} without reward); rollouts: "
        f"{ends or 'none'}; rewards: {rewards or 'none'}"
    )


def _so_far(job: Job, summary: Summary) -> str:
    """How many are to come is known once all events are read, as with slow scorers."""
    if summary.partitions_read < len(job.partitions):
        return f"{summary.groups_out} groups"
    return f"{summary.groups_out} of {summary.groups_out + summary.groups_ahead} groups"


def _tell_calls(job: Job, summary: Summary) -> None:
    """What a dry run's scorers would have to do."""
    for name in job.wish.scorers:
        scorer = load_scorer(name)
        calls, cached, recorded = (summary.asked[scorer.name, way] for way in (UNASKED, CACHED, RECORDED))
        line = f"{scorer.name} {scorer.version}: {calls} calls, {cached} cached, {recorded} recorded"
        rate_per_s = scorer.rate_per_s if job.wish.limits.rate_per_s is None else job.wish.limits.rate_per_s
        if calls and rate_per_s is not None:
            line += f"; at rate_per_s {rate_per_s:g} at least {_duration(calls / rate_per_s)}"
        say(line)


def _tell_answers(job: Job, summary: Summary) -> None:
    answers = [f"{summary.counts[name]} {name}" for name in ANSWERS if summary.counts[name]]
    if answers:
        say("scorers: " + ", ".join(answers))
    if job.wish.cache and (summary.counts["answered"] or summary.counts["cached"]):
        say(f"verdicts are kept in {cache_path(job.output.run_id)}")


def _tell_missing(job: Job, summary: Summary) -> None:
    names = missing(job, summary)
    for each in names[:MISSING_SHOWN]:
        say(f"not found: {hinted(each)}")
    if len(names) > MISSING_SHOWN:
        say(f"not found: and {len(names) - MISSING_SHOWN} more")
    if names and not summary.groups_out and not job.wish.dry_run:
        say(
            f"nothing was selected, so that output {job.output.name} is complete and empty; `rolloutlog outputs delete "
            f"{job.output.name}` frees its name"
        )


def _tell_failures(job: Job, summary: Summary) -> None:
    for failure in summary.failures[:FAILURES_SHOWN]:
        reason = headline(failure.reason)
        say(f"failed: scorer {failure.scorer}, rollout {failure.rollout_id} (attempt {failure.attempt}): {reason}")
    if len(summary.failures) > FAILURES_SHOWN:
        say(f"failed: and {len(summary.failures) - FAILURES_SHOWN} more; --failures FILE has them all")
    count = summary.unscored_out
    if count:
        again = "for these alone (all else is cached)" if job.wish.cache else "for all of them again"
        say(
            f"{count} {'rollout is' if count == 1 else 'rollouts are'} incomplete in {job.output.name}, because a "
            f"scorer failed; a new output asks {again}"
        )


def _duration(seconds: float) -> str:
    """Rounded up, in the unit in which it is read best."""
    if seconds < 2 * MINUTE_S:
        return f"{ceil(seconds)} s"
    return f"{ceil(seconds / MINUTE_S)} min" if seconds < 2 * HOUR_S else f"{seconds / HOUR_S:.1f} h"
