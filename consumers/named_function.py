"""A function of the user's own, named in the settings: `package.module:function`.

`load_function` imports it and checks what it is before anything is read. `told` says what it did wrong later: the
innermost frames by their modules, rather than by paths, which differ by machine.

Not here  what it is called with, and when: consumers.attribution.custom, consumers.scoring
"""

import inspect
import linecache
import reprlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import dropwhile
from pathlib import Path
from re import compile as regex
from types import ModuleType, TracebackType
from typing import Any

from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.spans import describe

FRAMES_SHOWN = 8  # the innermost ones; an endless recursion has a thousand
LINE_CHARACTERS_MAX = 160
TOLD_CHARACTERS_MAX = 3_500  # it fits into a rollout's reason, with what stands before it
HEADLINE_CHARACTERS_MAX = 400
DIGEST_BYTES = 16
FILE_ENDING = ".py"

_TRACEBACK = "Traceback (most recent call last):"
_ADDRESS = regex(r" at 0x[0-9a-fA-F]+")


class WrongAnswer(Exception):
    """A function returned what it must not return. Its text says all: frames would add nothing."""


class _Short(reprlib.Repr):
    def repr_instance(self, x: Any, level: int) -> str:
        try:
            text = _ADDRESS.sub("", repr(x))
        except Exception:
            text = f"<{type(x).__name__} instance>"
        return text if len(text) <= self.maxother else f"{text[: self.maxother - 3]}..."


_SHORT = _Short()


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """`source`: BLAKE2b-128 of the file that holds it, as 32 hex digits."""

    name: str
    function: Callable[..., Any]
    source: str

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function)


def load_function(setting: str, name: str, argument: str) -> NamedFunction:
    """Import a function by `package.module:function`.

    setting   what names it, for the error's text: `attribution setting 'policy'`
    argument  what it is called with, in words
    Raises    InvalidSettings that says what is wrong with it: its name, its import, what it is, how it is called
    """
    module_name, _, path = name.partition(":")
    advice = _advice(module_name, path)
    if advice or not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise unusable(setting, name, "package.module:function", advice or "it is no such name")
    module = _imported(setting, name, module_name)
    function: Any = module
    for part in path.split("."):
        try:
            function = getattr(function, part)
        except AttributeError:
            raise unusable(setting, name, f"a function {path} in {module_name}", f"it has no {part}") from None
        except Exception as error:  # code of the module's own may look for it
            raise unusable(setting, name, f"a function {path} in {module_name}", describe(error)) from error
    if not callable(function) or inspect.isclass(function):
        raise unusable(setting, name, f"a function {path} in {module_name}", f"it is of type {type(function).__name__}")
    try:
        inspect.signature(function).bind(None)
    except Exception as error:  # an object that is called may answer anything when asked what it is
        text = str(error) if isinstance(error, TypeError | ValueError) else describe(error)
        raise unusable(setting, name, f"a function of one argument, {argument}", f"its signature: {text}") from error
    return NamedFunction(name, function, _source(setting, name, module, function))


def _advice(module_name: str, path: str) -> str:
    """What was meant, where a file is named or no function; empty otherwise."""
    file = module_name.removesuffix(FILE_ENDING)
    inside = [part for part in file.split("/") if part not in ("", ".")]
    module = ".".join(inside)
    if not module or not all(part.isidentifier() for part in module.split(".")):
        return ""
    if file != module_name:
        where, module = ("in its folder ", inside[-1]) if file.startswith("/") else ("", module)
        return f"it names a file: {where}write {module}:{path or 'FUNCTION'}"
    return "" if path or len(inside) > 1 else f"it names no function: write {module}:FUNCTION"


def unusable(setting: str, name: str, expected: str, got: str) -> InvalidSettings:
    return InvalidSettings(f"{setting} is unusable: expected {expected}, got {name!r}: {got}")


def shown(value: Any) -> str:
    """A value and its type, in short."""
    try:
        text = _SHORT.repr(value)
    except Exception:
        text = "an object"
    return f"{text} of type {type(value).__name__}"


def told(error: BaseException, ours: Collection[str]) -> str:
    """What went wrong, with the innermost frames. `ours`: files whose frames say nothing to the function's author."""
    if isinstance(error, WrongAnswer):
        return str(error)
    lines = list(_frames(error.__traceback__, ours))
    hidden = f"  {len(lines) - FRAMES_SHOWN} frames\n" if len(lines) > FRAMES_SHOWN else ""
    text = f"{_TRACEBACK}\n{hidden}{''.join(lines[-FRAMES_SHOWN:])}{describe(error)}"
    text = _ADDRESS.sub("", text)  # what is told goes into batches: the same in each process
    return text.encode(errors="backslashreplace").decode()[:TOLD_CHARACTERS_MAX]


def headline(text: str) -> str:
    """Of what `told` tells, the error itself in one line."""
    lines = text.splitlines()
    if lines and lines[0] == _TRACEBACK:
        lines = list(dropwhile(lambda line: line.startswith("  "), lines[1:]))
    text = " ".join(filter(None, map(str.strip, lines)))
    if len(text) <= HEADLINE_CHARACTERS_MAX:
        return text
    return f"{text[: HEADLINE_CHARACTERS_MAX - 60]} ... {text[-55:]}"  # how often it was tried comes last


def _imported(setting: str, name: str, module_name: str) -> ModuleType:
    try:
        return import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever its module does, sys.exit() too, is wrong with this setting
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            advice = "; install it, or run in the folder that holds it, or put that on PYTHONPATH"
        expected = f"a module {module_name} that can be imported"
        raise unusable(setting, name, expected, f"{describe(error)}{advice}") from error


def _source(setting: str, name: str, module: ModuleType, function: Any) -> str:
    """Of the file of the module named, and of the one in which the function is defined, where that is another."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    defined_in = sys.modules.get(_module_of(function), module)
    for each in dict.fromkeys((module, defined_in)):
        file = getattr(each, "__file__", None)
        try:
            source = Path(file or "").read_bytes()
        except OSError as error:
            if each is not module:
                continue  # built in: a part of Python
            expected = "a module with a file, whose source goes into the config hash"
            raise unusable(setting, name, expected, str(error)) from error
        digest.update(len(source).to_bytes(8, "little") + source)
    return digest.hexdigest()


def _module_of(function: Any) -> str:
    """Name of the module in which the innermost function is defined, of those that wrap each other; "" = not known."""
    try:
        inner = inspect.unwrap(function)
        while isinstance(inner, partial):
            inner = inspect.unwrap(inner.func)
        found = getattr(inner, "__module__", None)
    except Exception:  # of an object with attributes of its own making, or of functions that wrap each other in turn
        return ""
    return found if isinstance(found, str) else ""


def _frames(found: TracebackType | None, ours: Collection[str]) -> Iterable[str]:
    for frame, line_number in traceback.walk_tb(found):
        code = frame.f_code
        if code.co_filename not in ours:
            module = frame.f_globals.get("__name__", "?")
            line = linecache.getline(code.co_filename, line_number, frame.f_globals).strip()
            where = f"  {module}, line {line_number}, in {code.co_name}"
            yield f"{where[:LINE_CHARACTERS_MAX]}\n    {line[:LINE_CHARACTERS_MAX]}\n"
