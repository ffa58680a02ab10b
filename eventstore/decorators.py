"""Decorators: a function as a block of the rollout it runs in, or as a whole rollout.

    @operation                    named after the function
    @agent("writer")              or by a name; so do @tool and @evaluator
    @rollout_function             what it returns is the rollout's outcome

Functions, `async def` and methods are taken. Generators are not: their code runs in the context of whoever takes their
values, so a block left open between two values would be taken for that code's own.

Outside of any rollout a decorated function just runs, so that an agent can be tested without a log; the first time it
says so in a warning, since a thread without context is such a place too.

Not here  blocks for `with`: eventstore.spans; what `finish` takes: eventstore.rollout
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, update_wrapper, wraps
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

import numpy as np

from rolloutlog.eventstore import scope as _scope
from rolloutlog.eventstore.checks import check_id, say_where
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.group import Group
from rolloutlog.eventstore.recorder import Recorder
from rolloutlog.eventstore.rollout import Rollout
from rolloutlog.eventstore.scope import NotOpen
from rolloutlog.eventstore.spans import SpanBlock

if TYPE_CHECKING:
    from rolloutlog.eventstore.publisher import EventPublisher

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_logger = logging.getLogger(__name__)


def current_rollout() -> Recorder:
    """The rollout, or attachment, whose block this code runs in. Raises NotOpen outside of any."""
    recorder = _scope.current_rollout()
    if recorder is None:
        raise NotOpen(
            "no rollout's block is open in this context; call it within `with events.rollout(...)`, or in a function "
            "run by `function.rollout(events, ...)`. A thread started by hand, or of a pool, has no context: use "
            "`asyncio.to_thread`, or start it with `contextvars.copy_context().run`"
        )
    return cast(Recorder, recorder)


@overload
def agent(function: F, /) -> F: ...
@overload
def agent(name: str | None = None, /) -> Callable[[F], F]: ...
def agent(function: Any = None, /) -> Any:
    """The function works as the agent of this name, or of its own: `Rollout.agent`."""
    return _decorate(Recorder.agent, function)


@overload
def operation(function: F, /) -> F: ...
@overload
def operation(name: str | None = None, /) -> Callable[[F], F]: ...
def operation(function: Any = None, /) -> Any:
    """The function is a step of an agent, of this name or its own: `Rollout.operation`."""
    return _decorate(Recorder.operation, function)


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(name: str | None = None, /) -> Callable[[F], F]: ...
def tool(function: Any = None, /) -> Any:
    """The function is a tool, of this name or its own: `Rollout.tool`."""
    return _decorate(Recorder.tool, function)


@overload
def evaluator(function: F, /) -> F: ...
@overload
def evaluator(name: str | None = None, /) -> Callable[[F], F]: ...
def evaluator(function: Any = None, /) -> Any:
    """The function judges, under this name or its own: `Rollout.evaluator`. Its calls are never trained on."""
    return _decorate(Recorder.evaluator, function)


class RolloutFunction(Generic[P, R]):
    """A function whose every call may be a rollout. Called itself, it just runs. Made by `rollout_function`."""

    def __init__(self, function: Callable[P, R]) -> None:
        _require_function(function, "rollout_function")
        self.__wrapped__ = function
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function alone: in the rollout that is open here, or in none."""
        return self.__wrapped__(*args, **kwargs)

    def rollout(
        self, events: "EventPublisher", task_id: str | None = None, group: Group | None = None, **options: Any
    ) -> Callable[P, R]:
        """The function to call instead: each call of it is a rollout of its own, and returns what the function returns.

        events    where it is published
        options   further keywords of `EventPublisher.rollout`, such as policy_version; with a rollout_id it can be
                  called once, since an id names one rollout

        What the function returns is the rollout's outcome: a number, name → number, or None for none. It never merges
        with what was emitted. An exception ends the rollout as failed, and goes on.

        The call raises  InvalidEvent when something else is returned; the rollout then ends as failed. NotOpen when a
                         rollout_id is used again, or something is returned after `finish`
        """
        calls = count()

        def open_rollout() -> Rollout:
            if next(calls) and options.get("rollout_id") is not None:
                raise NotOpen(
                    f"rollout {options['rollout_id']} not started: {_name_of(self.__wrapped__)!r} has been called with "
                    "this rollout_id before, and what a second rollout of one id records counts for nothing; leave "
                    "rollout_id out, or ask for `.rollout(...)` again, with another id or the next attempt"
                )
            return events.rollout(task_id, group, **options)

        if _is_async(self.__wrapped__):

            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with open_rollout() as rollout:
                    value = await cast(Awaitable[Any], self.__wrapped__(*args, **kwargs))
                    self._finish(rollout, value)
                    return value

            return cast(Callable[P, R], wraps(self.__wrapped__)(run_async))

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with open_rollout() as rollout:
                value = self.__wrapped__(*args, **kwargs)
                self._finish(rollout, value)
                return value

        return wraps(self.__wrapped__)(run)

    def __get__(self, instance: object, owner: type | None = None) -> "RolloutFunction[..., R]":
        return self if instance is None else RolloutFunction(partial(cast(Any, self.__wrapped__), instance))

    def _finish(self, rollout: Rollout, value: Any) -> None:
        if value is None:
            return
        numbers = int | float | np.integer | np.floating
        if isinstance(value, bool | np.bool_) or not isinstance(value, numbers | Mapping):
            hint = "1.0 or 0.0" if isinstance(value, bool | np.bool_) else "float(...) of it, if it is one"
            error = InvalidEvent(
                f"expected a number, a mapping of names to numbers, or None from {_name_of(self.__wrapped__)!r}, got "
                f"{_shown(value)} at $.value; return {hint}. The rollout ends as failed",
                reason="value",
                field="$.value",
            )
            say_where(error, "returned reward", rollout.rollout_id, rollout.attempt)
            raise error
        if rollout.finished:
            raise NotOpen(
                f"returned reward refused: {_name_of(self.__wrapped__)!r} finished its rollout before it returned "
                f"{_shown(value)}; either return the outcome, or `finish` and return None (rollout "
                f"{rollout.rollout_id}, attempt {rollout.attempt})"
            )
        rollout.finish(value)


@overload
def rollout_function(function: Callable[P, R], /) -> RolloutFunction[P, R]: ...
@overload
def rollout_function() -> Callable[[Callable[P, R]], RolloutFunction[P, R]]: ...
def rollout_function(function: Any = None, /) -> Any:
    """What the function returns is a rollout's outcome: `function.rollout(events, "task")(...)` runs it as one."""
    return RolloutFunction if function is None else RolloutFunction(function)


def _decorate(block: Callable[[Recorder, str], SpanBlock], given: Any) -> Any:
    """The decorated function, or the decorator when a name, or nothing, was given."""
    if given is None:
        return partial(_around, block, None)
    if isinstance(given, str):
        try:
            check_id(given, "name")
        except InvalidEvent as error:
            raise InvalidEvent(f"@{block.__name__} refused: {error}", reason=error.reason, field=error.field) from error
        return partial(_around, block, given)
    return _around(block, None, given)


def _around(block: Callable[[Recorder, str], SpanBlock], name: str | None, function: Any) -> Callable[..., Any]:
    kind = block.__name__
    _require_function(function, kind)
    name = name or _name_of(function)
    if name is None:
        raise TypeError(f"@{kind} on {_shown(function)}, which has no name: give one, `@{kind}('name')`")
    place = _Place(block, name)

    if _is_async(function):

        @wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with place.open():
                return await function(*args, **kwargs)

        return run_async

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with place.open():
            return function(*args, **kwargs)

    return run


class _Place:
    """Opens a block of one kind and name, in the rollout of the context."""

    def __init__(self, block: Callable[[Recorder, str], SpanBlock], name: str) -> None:
        self._block = block
        self._name = name
        self._warned = False

    def open(self) -> AbstractContextManager[Any]:
        recorder = _scope.current_rollout()
        if recorder is not None:
            return self._block(cast(Recorder, recorder), self._name)
        if not self._warned:
            self._warned = True
            _logger.warning(
                "%s %r runs outside of any rollout: it runs, and nothing is recorded (said once); open `with "
                "events.rollout(...)` around it, or give its thread the context: `contextvars.copy_context().run`",
                self._block.__name__,
                self._name,
            )
        return nullcontext()


def _require_function(function: Any, kind: str) -> None:
    if isinstance(function, classmethod | staticmethod) or not callable(function):
        hint = f": write @{kind} below it" if isinstance(function, classmethod | staticmethod) else ""
        raise TypeError(f"@{kind} expected a function, got {_shown(function)}{hint}")
    if inspect.isclass(function):
        raise TypeError(f"@{kind} expected a function, got class {function.__qualname__}: decorate its methods")
    if _is_a(inspect.isgeneratorfunction, function) or _is_a(inspect.isasyncgenfunction, function):
        raise TypeError(
            f"@{kind} on {_name_of(function)!r} refused: a generator's code runs where its values are taken, so its "
            "block would be open there too; decorate the function that takes the values"
        )


def _is_async(function: Any) -> bool:
    return _is_a(inspect.iscoroutinefunction, function)


def _is_a(check: Callable[[Any], bool], function: Any) -> bool:
    return check(function) or check(getattr(function, "__call__", None))  # noqa: B004 of objects that can be called


def _name_of(function: Any) -> str | None:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", None)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a value whose text fails must not hide the refusal
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
