"""Settings of commands: one TOML file, then the environment, then flags; later wins.

The file has the same names as the flags, with `_` for `-`, and a table `[attribution]`. The environment has
`ROLLOUTLOG_NAME`, for attribution `ROLLOUTLOG_ATTRIBUTION_NAME`.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rolloutlog.consumers.assembler import AssemblerSettings
from rolloutlog.consumers.attribution import settings_from
from rolloutlog.consumers.limits import SECONDS_MAX, Limits
from rolloutlog.consumers.settings import LATE_WINDOW_S_MAX, FoldSettings
from rolloutlog.eventstore.errors import InvalidSettings

ENVIRONMENT = "ROLLOUTLOG_"
ATTRIBUTION = "attribution"


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class Configuration(BaseModel):
    """Every setting of the assembler, with its default. Units come last in the names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: str | None = None
    partitions: str = "all"
    merge: Literal["none", "trajectory"] = "none"
    min_group: int = Field(2, ge=1)
    splits: Annotated[tuple[str, ...], BeforeValidator(_split)] = ("train",)
    on_incomplete: Literal["drop", "keep"] = "drop"
    idle_s: float = Field(600.0, gt=0, le=SECONDS_MAX)
    age_s: float = Field(7_200.0, gt=0, le=SECONDS_MAX)
    grace_s: float = Field(60.0, gt=0, le=SECONDS_MAX)
    retry_s: float = Field(300.0, gt=0, le=SECONDS_MAX)
    group_age_s: float = Field(900.0, gt=0, le=SECONDS_MAX)
    replay_bytes_max: int = Field(2 * 2**30, ge=1)
    late_window_s: float = Field(600.0, ge=0, le=LATE_WINDOW_S_MAX, allow_inf_nan=False)
    commit_interval_s: float = Field(0.2, gt=0, le=60)
    commit_events: int = Field(2_000, ge=1)
    commit_bytes: int = Field(8 * 2**20, ge=1)
    position_interval_s: float = Field(10.0, gt=0, le=3600)
    dead_letters_in_row: int = Field(1_000, ge=1)
    dead_letters_share: float = Field(0.05, gt=0, le=1)
    on_history_lost: Literal["fail", "skip"] = "fail"
    status_interval_s: float = Field(5.0, gt=0, le=3600)
    attribution: dict[str, Any] = Field(default_factory=dict)

    def url(self) -> str:
        """The log's URL. Raises InvalidSettings when none is given."""
        if not self.log:
            raise InvalidSettings(
                "no log given: use --log sqlite:///run.db or --log kafka://host:port/prefix, or set ROLLOUTLOG_LOG"
            )
        return self.log

    def limits(self) -> Limits:
        return Limits(
            idle_s=self.idle_s,
            age_s=self.age_s,
            grace_s=self.grace_s,
            retry_s=self.retry_s,
            group_age_s=self.group_age_s,
            replay_bytes_max=self.replay_bytes_max,
        )

    def assembler(self) -> AssemblerSettings:
        return AssemblerSettings(
            fold=FoldSettings(
                attribution=settings_from(self.attribution),
                merge=self.merge,
                min_group=self.min_group,
                splits=self.splits,
                on_incomplete=self.on_incomplete,
                late_window_s=self.late_window_s,
            ),
            limits=self.limits(),
            commit_interval_s=self.commit_interval_s,
            commit_events=self.commit_events,
            commit_bytes=self.commit_bytes,
            position_interval_s=self.position_interval_s,
            dead_letters_in_row=self.dead_letters_in_row,
            dead_letters_share=self.dead_letters_share,
            on_history_lost=self.on_history_lost,
            status_interval_s=self.status_interval_s,
        )


def load(
    file: Path | None,
    flags: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
    base: FoldSettings | None = None,
) -> Configuration:
    """Join file, environment and flags (None = not given).

    base    settings that stand where none of them says anything, in place of the defaults
    Raises  InvalidSettings naming the setting, what was expected and what came
    """
    values: dict[str, Any] = {} if base is None else _fields(base)
    attribution = values.pop(ATTRIBUTION, {})
    if file is not None:
        try:
            values |= tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidSettings(f"settings file {file}: expected readable TOML: {error}") from error
        if not isinstance(values.get(ATTRIBUTION, {}), dict):
            raise InvalidSettings(f"settings file {file}: expected a table [attribution]")
    attribution |= values.get(ATTRIBUTION, {})
    for name, value in environment.items():
        key = name.removeprefix(ENVIRONMENT).lower()
        if not name.startswith(ENVIRONMENT):
            continue
        if key.startswith(f"{ATTRIBUTION}_"):
            attribution[key.removeprefix(f"{ATTRIBUTION}_")] = value
        elif key in Configuration.model_fields and key != ATTRIBUTION:
            values[key] = value
    for name, value in flags.items():
        if value is None:
            continue
        if name.startswith(f"{ATTRIBUTION}_"):
            attribution[name.removeprefix(f"{ATTRIBUTION}_")] = value
        else:
            values[name] = value
    values[ATTRIBUTION] = attribution
    try:
        return Configuration(**values)
    except ValidationError as error:
        raise InvalidSettings(_message(error.errors()[0])) from error


def _fields(settings: FoldSettings) -> dict[str, Any]:
    fields = {name: value for name, value in settings.canonical().items() if name in Configuration.model_fields}
    attribution = fields[ATTRIBUTION].items()
    return {**fields, ATTRIBUTION: {name: value for name, value in attribution if name != "policy_source"}}


def _message(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"setting {name}: unknown; expected one of {', '.join(Configuration.model_fields)}"
    return f"setting {name}: {error['msg'].replace('Input should be', 'expected', 1)}, got {error['input']!r}"


def parse_partitions(text: str, count: int) -> list[int]:
    """Partitions of `count` that `text` names: `all`, `0-3,7`, or `i/n` = the i-th of n equal shares, i from 0.

    Raises  InvalidSettings
    """
    expected = f"--partitions: expected all, ranges such as 0-3 within 0-{count - 1}, or i/n with i below n"
    try:
        if text == "all":
            return list(range(count))
        if "/" in text:
            share, shares = (int(part) for part in text.split("/"))
            if not 0 <= share < shares:
                raise ValueError
            return list(range(share, count, shares))
        found: set[int] = set()
        for part in text.split(","):
            low, dash, high = part.partition("-")
            first, last = int(low), int(high if dash else low)
            if not 0 <= first <= last < count:
                raise ValueError
            found.update(range(first, last + 1))
        return sorted(found)
    except ValueError:
        raise InvalidSettings(f"{expected}; got {text!r}") from None
