"""Scorers by name: what `@scorer` says of a function, and `load_scorer`, which imports and checks it.

Not here  calling it: scoring.calling
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from math import isfinite
from re import compile as regex
from typing import Any, TypeVar, overload

from rolloutlog.consumers.named_function import load_function, unusable
from rolloutlog.eventstore.checks import check_text
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings
from rolloutlog.eventstore.events import COMPLETED, FAILED

EXPIRED = "expired"
STATUSES = (COMPLETED, FAILED, EXPIRED)
VERSION_CHARACTERS = 16  # of the file's digest, where a scorer names no version

_SETTING = "scorer"
_OPTIONS = "__rolloutlog_scorer__"
_NAME = regex(r"[A-Za-z0-9_.-]{1,64}")  # the first part of the source of its rewards

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class LoadedScorer:
    """A scorer and what `@scorer` says of it.

    name     as recorded with its rewards
    path     `package.module:function`, as given
    version  as recorded with its rewards
    source   BLAKE2b-128 of the file that holds it, as 32 hex digits
    names_version  it says its version itself, which then stands for its file too
    """

    name: str
    path: str
    function: Callable[..., Any]
    version: str
    source: str
    is_async: bool = False
    deterministic: bool = True
    concurrency: int | None = None
    rate_per_s: float | None = None
    timeout_s: float | None = None
    retries: int | None = None
    statuses: tuple[str, ...] = (COMPLETED,)
    names_version: bool = False


@dataclass(frozen=True, slots=True)
class _Options:
    name: str | None = None
    version: str | None = None
    deterministic: bool = True
    concurrency: int | None = None
    rate_per_s: float | None = None
    timeout_s: float | None = None
    retries: int | None = None
    statuses: tuple[str, ...] = (COMPLETED,)


@overload
def scorer(function: Function, /) -> Function: ...
@overload
def scorer(
    *,
    name: str | None = None,
    version: str | None = None,
    deterministic: bool = True,
    concurrency: int | None = None,
    rate_per_s: float | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    statuses: Iterable[str] = (COMPLETED,),
) -> Callable[[Function], Function]: ...
def scorer(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    version: str | None = None,
    deterministic: bool = True,
    concurrency: int | None = None,
    rate_per_s: float | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    statuses: Iterable[str] = (COMPLETED,),
) -> Any:
    """Say more of a scorer than its code does. The function itself stays as it is.

    name           None = the function's
    version        None = the beginning of the BLAKE2b-128 of its file: another whenever the file changes
    deterministic  False where the same rollout may be judged otherwise next time, as by an LLM
    concurrency    calls at a time, over all workers; None = 4 for functions, 16 for async ones, in each process
    rate_per_s     calls that begin in a second, over all workers; None = as many as there may be
    timeout_s      of one call; None = 300
    retries        further tries after an error, a reward that is refused apart; None = 2
    statuses       which rollouts it is asked about: completed, failed, expired
    Raises         InvalidSettings naming what is wrong
    """
    if isinstance(function, str):
        raise InvalidSettings(f"@scorer: expected a function or settings by name, got {function!r}: @scorer(name=...)")
    options = _Options(name, version, deterministic, concurrency, rate_per_s, timeout_s, retries, _statuses(statuses))
    _check(options)

    def mark(marked: Any) -> Any:
        try:
            setattr(marked, _OPTIONS, options)
        except (AttributeError, TypeError) as error:
            raise InvalidSettings(
                f"@scorer: expected a function, got one of type {type(marked).__name__} that nothing can be said of; "
                "call it in a function of your own"
            ) from error
        return marked

    return mark if function is None else mark(function)


@cache  # the source is that of the moment at which the module was imported
def load_scorer(name: str) -> LoadedScorer:
    """Import a scorer by `package.module:function`. Raises InvalidSettings that says what is wrong with it."""
    loaded = load_function(_SETTING, name, "the rollout")
    options = getattr(loaded.function, _OPTIONS, None)
    if not isinstance(options, _Options):
        options = _Options()
    own = options.name or getattr(loaded.function, "__name__", None)
    if not isinstance(own, str) or not own:
        own = name.rpartition(".")[2].rpartition(":")[2]
    if not _NAME.fullmatch(own):
        raise unusable(
            _SETTING,
            name,
            "a name of 1 to 64 letters, digits, `_`, `.` or `-`",
            f"it is named {own!r}; give it another name with @scorer(name=...)",
        )
    return LoadedScorer(
        name=own,
        path=name,
        function=loaded.function,
        version=options.version or loaded.source[:VERSION_CHARACTERS],
        source=loaded.source,
        is_async=loaded.is_async,
        deterministic=options.deterministic,
        concurrency=options.concurrency,
        rate_per_s=options.rate_per_s,
        timeout_s=options.timeout_s,
        retries=options.retries,
        statuses=options.statuses,
        names_version=options.version is not None,
    )


def check_limits(
    what: str, *, concurrency: int | None, rate_per_s: float | None, timeout_s: float | None, retries: int | None
) -> None:
    """Check limits of the command line or of `@scorer`. Raises InvalidSettings naming the one that is unusable."""
    for name, count, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
        if count is not None and (type(count) is not int or count < least):
            raise InvalidSettings(f"{what} {name}: expected an integer from {least}, got {count!r}")
    for name, number, unit in (("rate_per_s", rate_per_s, "a number"), ("timeout_s", timeout_s, "seconds")):
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number) or number <= 0
        ):
            raise InvalidSettings(f"{what} {name}: expected {unit} above 0, got {number!r}")


def _check(options: _Options) -> None:
    if options.name is not None and not (isinstance(options.name, str) and _NAME.fullmatch(options.name)):
        raise InvalidSettings(f"@scorer name: expected 1 to 64 letters, digits, `_`, `.` or `-`, got {options.name!r}")
    try:
        check_text(options.version, "version")
    except InvalidEvent as error:
        raise InvalidSettings(f"@scorer version: {error}") from None
    if options.version == "":
        raise InvalidSettings("@scorer version: expected text, got an empty one; leave it out for that of the file")
    if type(options.deterministic) is not bool:
        raise InvalidSettings(f"@scorer deterministic: expected True or False, got {options.deterministic!r}")
    check_limits(
        "@scorer",
        concurrency=options.concurrency,
        rate_per_s=options.rate_per_s,
        timeout_s=options.timeout_s,
        retries=options.retries,
    )


def _statuses(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = (given,)
    found = tuple(given)
    wrong = [each for each in found if each not in STATUSES]
    if wrong or not found:
        got = repr(wrong[0]) if wrong else "none"
        raise InvalidSettings(f"@scorer statuses: expected some of {', '.join(STATUSES)}, got {got}")
    return tuple(dict.fromkeys(found))
