"""A policy of the user's own: `policy = "package.module:function"`. docs/rewards.md, "A policy of your own".

`load_policy` imports it and checks it before anything is read. `CustomPolicy.find` asks it for one reward; whatever it
does wrong becomes a fault of the rollout, with its traceback, and never ends the process.

Not here  what it is given: attribution.view; the rules around it: attribution.rules
"""

import inspect
import linecache
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from rolloutlog.consumers.attribution.calls import Call, Calls, in_turn_order
from rolloutlog.consumers.attribution.earlier import Earlier
from rolloutlog.consumers.attribution.model import UNATTRIBUTED, RewardEntry
from rolloutlog.consumers.attribution.view import CallView, PolicyView, RolloutView
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.spans import describe

FRAMES_SHOWN = 8  # the innermost ones; an endless recursion has a thousand
LINE_CHARACTERS_MAX = 160
TOLD_CHARACTERS_MAX = 3_500  # it fits into a rollout's reason, with what stands before it
REPEATS_MAX = 1_000  # of calls named twice, beyond the rollout's spans: an iterator may have no end
DIGEST_BYTES = 16

Policy = Callable[[PolicyView], str | Iterable[str] | None]


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """`source`: BLAKE2b-128 of the file that holds it, as 32 hex digits; a part of the config hash."""

    name: str
    function: Policy
    source: str


class WrongAnswer(Exception):
    """The policy returned what names no call of the rollout."""


def is_custom(policy: str) -> bool:
    """Whether the setting names a function. No policy of ours has a colon in its name."""
    return ":" in policy


@cache  # the source is that of the moment at which the module was imported, however often settings are made
def load_policy(name: str) -> LoadedPolicy:
    """Import a policy by `package.module:function`.

    Raises  InvalidSettings that says what is wrong with it: its name, its import, what it is, how it is called
    """
    module_name, _, path = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise _unusable(name, "package.module:function", "it is no such name")
    function: Any = _imported(name, module_name)
    module = function
    for part in path.split("."):
        try:
            function = getattr(function, part)
        except AttributeError:
            raise _unusable(name, f"a function {path} in {module_name}", f"it has no {part}") from None
    if not callable(function) or inspect.isclass(function):
        raise _unusable(name, f"a function {path} in {module_name}", f"it is of type {type(function).__name__}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise _unusable(name, "a plain function", "it is an async one, which could wait for something")
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as error:
        raise _unusable(name, "a function of one argument, the view", f"its signature: {error}") from error
    return LoadedPolicy(name, function, _source(name, module, function))


def _imported(name: str, module_name: str) -> ModuleType:
    try:
        return import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever its module does, sys.exit() too, is wrong with this setting
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            advice = "; install it, or put the folder that holds it on PYTHONPATH"
        raise _unusable(name, f"a module {module_name} that can be imported", f"{describe(error)}{advice}") from error


def _source(name: str, module: ModuleType, function: Any) -> str:
    """Of the file of the module named, and of the one in which the function is defined, where that is another."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    defined_in = sys.modules.get(getattr(inspect.unwrap(function), "__module__", None) or "", module)
    for each in dict.fromkeys((module, defined_in)):
        file = getattr(each, "__file__", None)
        try:
            source = Path(file or "").read_bytes()
        except OSError as error:
            if each is not module:
                continue  # built in: a part of Python
            raise _unusable(name, "a module with a file, whose source goes into the config hash", str(error)) from error
        digest.update(len(source).to_bytes(8, "little") + source)
    return digest.hexdigest()


def _unusable(name: str, expected: str, got: str) -> InvalidSettings:
    return InvalidSettings(f"attribution setting 'policy' is unusable: expected {expected}, got {name!r}: {got}")


class CustomPolicy:
    """Asks a policy about the rewards of one rollout. `fault` tells what it did wrong, None when nothing."""

    def __init__(self, loaded: LoadedPolicy, calls: Calls, earlier: Earlier) -> None:
        self._loaded, self._calls = loaded, calls
        self._rollout = RolloutView(calls, earlier)
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
                self._first = f"for reward {reward.reward_id}: {_told(error)}"
            return UNATTRIBUTED
        return found or UNATTRIBUTED

    def _named(self, answer: Any) -> list[Call]:
        if answer is None:
            return []
        if isinstance(answer, CallView) or not isinstance(answer, Iterable):
            raise WrongAnswer(f"expected a span id, several, or None, got {_shown(answer)}")
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
            raise WrongAnswer(f"expected the span id of a call of this rollout, got {_shown(span_id)}")
        if call.judge:
            raise WrongAnswer(f"expected the span id of a call, got {_shown(span_id)}, which is a judge's")
        return call


def _shown(value: Any) -> str:
    try:
        shown = reprlib.repr(value)
    except Exception:
        shown = "an object"
    return f"{shown} of type {type(value).__name__}"


def _told(error: BaseException) -> str:
    """What went wrong, with the innermost frames of the policy: modules rather than paths, which differ by machine."""
    if isinstance(error, WrongAnswer):
        return str(error)
    lines = list(_frames(error.__traceback__))
    hidden = f"  {len(lines) - FRAMES_SHOWN} frames\n" if len(lines) > FRAMES_SHOWN else ""
    text = f"Traceback (most recent call last):\n{hidden}{''.join(lines[-FRAMES_SHOWN:])}{describe(error)}"
    return text.encode(errors="backslashreplace").decode()[:TOLD_CHARACTERS_MAX]


def _frames(found: TracebackType | None) -> Iterable[str]:
    for frame, line_number in traceback.walk_tb(found):
        code = frame.f_code
        if code.co_filename != __file__:
            module = frame.f_globals.get("__name__", "?")
            line = linecache.getline(code.co_filename, line_number, frame.f_globals).strip()
            where = f"  {module}, line {line_number}, in {code.co_name}"
            yield f"{where[:LINE_CHARACTERS_MAX]}\n    {line[:LINE_CHARACTERS_MAX]}\n"
