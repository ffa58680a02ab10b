"""What is told of a function's errors, and which files its version stands for."""

import sys
from pathlib import Path

import pytest

from rolloutlog.consumers.named_function import HEADLINE_CHARACTERS_MAX, headline, load_function, shown, told
from rolloutlog.eventstore.errors import InvalidSettings


def raised(error: Exception) -> str:
    try:
        raise error
    except Exception as caught:
        return told(caught, ())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (raised(ValueError("no such user")), "ValueError: no such user"),
        (raised(ValueError("first\n  second\n\nthird")), "ValueError: first second third"),
        (raised(ValueError()), "ValueError"),
        (raised(OSError("503")) + "; tried 3 times", "OSError: 503; tried 3 times"),
        ("expected a Reward, got 1.0", "expected a Reward, got 1.0"),
        ("", ""),
    ],
)
def test_headline_is_the_error_without_its_frames(text: str, line: str):
    assert headline(text) == line


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("scorers.py:tools", "it names a file: write scorers:tools"),
        ("./judges/scorers.py:tools", "it names a file: write judges.scorers:tools"),
        ("/home/me/scorers.py", "it names a file: in its folder write scorers:FUNCTION"),
        ("scorers", "it names no function: write scorers:FUNCTION"),
        ("a b:c", "it is no such name"),
    ],
)
def test_function_that_is_no_name_of_one_is_refused_with_what_to_write(name: str, advice: str):
    with pytest.raises(InvalidSettings, match=f"expected package.module:function, got '{name}': {advice}$"):
        load_function("scorer", name, "the rollout")


def test_headline_of_a_long_error_keeps_its_ends():
    line = headline(raised(ValueError("x" * 2_000)) + "; tried 3 times")
    assert line.startswith("ValueError: xxx")
    assert line.endswith("; tried 3 times")
    assert len(line) <= HEADLINE_CHARACTERS_MAX


def test_what_is_told_names_no_address():
    """It goes into batches, which are the same bytes in every process."""
    value = object()
    assert shown(value) == "<object object> of type object"
    assert raised(ValueError(value)).endswith("ValueError: <object object>")


def test_source_of_a_partial_function_changes_with_the_file_of_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`functools`, where partial is defined, says nothing of the function."""
    monkeypatch.syspath_prepend(tmp_path)
    sources = []
    for comment in ("", "# changed"):
        (tmp_path / "partial_inner.py").write_text(f"def judge(strict, rollout): ...\n{comment}")
        (tmp_path / "partial_outer.py").write_text(
            "from functools import partial\nfrom partial_inner import judge\njudge = partial(judge, True)\n"
        )
        sources.append(load_function("scorer", "partial_outer:judge", "the rollout").source)
        for name in ("partial_inner", "partial_outer"):
            sys.modules.pop(name)
    assert sources[0] != sources[1]


def test_function_of_a_module_that_answers_with_an_error_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "answering.py").write_text(
        "def __getattr__(name): raise RuntimeError('not now')\n"
        "class Odd:\n    def __getattr__(self, name): raise RuntimeError('nor now')\n    def __call__(self, r): ...\n"
        "odd = Odd()\n"
    )
    with pytest.raises(InvalidSettings, match=r"expected a function judge in answering.*: RuntimeError: not now"):
        load_function("scorer", "answering:judge", "the rollout")
    with pytest.raises(InvalidSettings, match="its signature: RuntimeError: nor now"):
        load_function("scorer", "answering:odd", "the rollout")
