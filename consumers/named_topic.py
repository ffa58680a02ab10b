"""The topic of batches that a name stands for: `live` what was assembled, any other name what a replay made; and the
settings of the latter.

Not here  what an output is and how it was made: consumers.replaying.outputs
"""

from rolloutlog.consumers import used_settings
from rolloutlog.consumers.replaying.outputs import LIVE, Output, beyond_of, is_there, list_outputs, topic_of
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import BATCHES, Log


async def topic_named(log: Log, name: str | None) -> str:
    """The topic; None stands for `live`. Raises InvalidSettings naming the outputs that exist, when it is none."""
    if name is None or name == LIVE:
        return BATCHES
    topic = topic_of(name)
    try:
        await log.partitions(topic)
    except LogMissing:
        outputs = [each.name for each in await list_outputs(log) if await is_there(log, each)]
        known = ", ".join([LIVE, *sorted(outputs)])
        raise InvalidSettings(f"output {name!r}: expected one of {known}, got none of that name") from None
    return topic


def settings_of(output: Output) -> FoldSettings | None:
    """The settings that an output was made with; None where this version or this machine has other ones."""
    beyond = beyond_of(output.scorers, output.rewards_ends)
    made = used_settings.settings_of(output.settings, beyond=beyond)
    return made if made is not None and made.config_hash == output.config_hash else None
