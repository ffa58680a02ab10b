"""Scorers by name: what is refused before anything is read, and what `@scorer` says of them."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from rolloutlog.consumers.scoring import load_scorer
from rolloutlog.eventstore.errors import InvalidSettings

NUMBERS = count()
HEAD = "from rolloutlog.consumers.scoring import Reward, scorer\n"

Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Write a module with this source; returns `module:judge`, a module of a new name each time."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def write(source: str, function: str = "judge") -> str:
        made.append(f"scorers_{next(NUMBERS)}")
        (tmp_path / f"{made[-1]}.py").write_text(HEAD + source, encoding="utf-8")
        return f"{made[-1]}:{function}"

    yield write
    for name in made:
        sys.modules.pop(name, None)


def test_scorer_without_settings_is_named_after_its_function_and_versioned_by_its_file(make: Make):
    same = "def judge(rollout):\n    return Reward(1.0)\n"
    found, again, other = load_scorer(make(same)), load_scorer(make(same)), load_scorer(make(same + "# changed\n"))
    assert (found.name, found.deterministic, found.is_async, found.statuses) == ("judge", True, False, ("completed",))
    assert found.version == found.source[:16] == again.version
    assert not found.names_version
    assert len(found.source) == 32
    assert other.version != found.version


def test_scorer_with_settings_has_them(make: Make):
    source = (
        "@scorer(name='quality', version='v2', deterministic=False, concurrency=8, rate_per_s=2.5, timeout_s=30,\n"
        "        retries=5, statuses=('completed', 'failed'))\n"
        "async def judge(rollout):\n    yield Reward(1.0)\n"
    )
    found = load_scorer(make(source))
    assert (found.name, found.version, found.deterministic, found.is_async) == ("quality", "v2", False, True)
    assert found.names_version
    assert (found.concurrency, found.rate_per_s, found.timeout_s, found.retries) == (8, 2.5, 30, 5)
    assert found.statuses == ("completed", "failed")


def test_decorated_scorer_is_still_the_function(make: Make):
    assert load_scorer(make("@scorer\ndef judge(rollout):\n    return Reward(rollout)\n")).function(0.5).value == 0.5


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("judge = 7\n", "scorer is unusable: expected a function judge in .*: it is of type int"),
        ("class judge:\n    pass\n", "it is of type type"),
        ("def other(rollout): ...\n", "it has no judge"),
        ("def judge(): ...\n", "expected a function of one argument, the rollout, got .*: its signature: too many"),
        ("raise SystemExit(3)\n", "that can be imported, got .*: SystemExit: 3"),
        ("@scorer(rate_per_s=0)\ndef judge(r): ...\n", "@scorer rate_per_s: expected a number above 0, got 0"),
        ("@scorer(concurrency=0)\ndef judge(r): ...\n", "@scorer concurrency: expected an integer from 1, got 0"),
        ("@scorer(timeout_s='1')\ndef judge(r): ...\n", "@scorer timeout_s: expected seconds above 0, got '1'"),
        ("@scorer(retries=-1)\ndef judge(r): ...\n", "@scorer retries: expected an integer from 0, got -1"),
        ("@scorer(name='a b')\ndef judge(r): ...\n", "@scorer name: expected 1 to 64 letters, digits"),
        ("@scorer(version='')\ndef judge(r): ...\n", "@scorer version: expected text, got an empty one"),
        ("@scorer(version=2)\ndef judge(r): ...\n", "@scorer version: expected text, got 2"),
        ("@scorer(statuses='won')\ndef judge(r): ...\n", "expected some of completed, failed, expired, got 'won'"),
        ("@scorer(statuses=5)\ndef judge(r): ...\n", "expected some of completed, failed, expired, got 5"),
        ("@scorer(statuses=[['failed']])\ndef judge(r): ...\n", "expired, got \\['failed'\\]"),
        ("@scorer('quality')\ndef judge(r): ...\n", "@scorer: expected a function or settings by name, got 'quality'"),
        ("judge = scorer(len)\n", "got one of type builtin_function_or_method that nothing can be said of"),
        ("@scorer(deterministic=None)\ndef judge(r): ...\n", "@scorer deterministic: expected True or False, got None"),
    ],
)
def test_scorer_that_is_unusable_is_refused_by_what_is_wrong(make: Make, source: str, text: str):
    with pytest.raises(InvalidSettings, match=text):
        load_scorer(make(source))


def test_scorer_whose_name_no_source_can_have_is_refused(make: Make):
    with pytest.raises(InvalidSettings, match=r"it is named 'größe'; give it another name with @scorer"):
        load_scorer(make("def größe(rollout): ...\n", "größe"))


@pytest.mark.parametrize("name", ["judge", "a.b", "a:b:c", ":judge", "a b:c", ""])
def test_scorer_that_is_no_such_name_is_refused(name: str):
    with pytest.raises(InvalidSettings, match=r"expected package\.module:function"):
        load_scorer(name)


def test_scorer_of_a_module_that_is_not_there_says_where_to_put_it():
    with pytest.raises(InvalidSettings, match="run in the folder that holds it, or put that on PYTHONPATH"):
        load_scorer("no_such_module_anywhere:judge")
