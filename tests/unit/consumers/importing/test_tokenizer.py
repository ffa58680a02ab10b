"""Token ids of a vocabulary: ChatML by its special tokens, in pieces that fit together."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="extra `tokenizer`")
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rolloutlog.consumers.importing.messages import parse_trajectory, trajectory_events
from rolloutlog.consumers.importing.rendering import BEGIN, END
from rolloutlog.consumers.importing.tokenizer import Vocabulary
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings
from rolloutlog.eventstore.events import Span
from rolloutlog.eventstore.prompts import PromptRestore
from rolloutlog.eventstore.tokens import unpack_token_ids

TEXTS = ["the user asks for the weather", "assistant\n", "system\nuser\n", "it rains in the town"] * 4


def make_tokenizer(path: Path, *special: str) -> Path:
    """A tokenizer.json of byte-level pieces, which truncates and pads as such files may."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(TEXTS, trainer)
    made.enable_truncation(4)
    made.enable_padding(length=8)
    made.save(str(path))
    return path


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("t") / "tokenizer.json", BEGIN, END)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("t") / "plain.json")


def calls(path: Path, *messages: Any) -> list[tuple[list[int], list[int]]]:
    """Full prompt and response of each call."""
    text = json.dumps({"task_id": "t", "messages": list(messages)}).encode()
    made = trajectory_events(
        parse_trajectory(text, 1), "ab" * 16, group_size=1, run_id="", time_ns=0, rendering=Vocabulary(path)
    )
    spans = [each for each in made if isinstance(each, Span)]
    restore = PromptRestore()
    for span in spans:
        restore.add(span)
    return [
        (unpack_token_ids(restore.prompt(span)).tolist(), unpack_token_ids(span.response_ids or b"").tolist())
        for span in spans
    ]


def text_of(path: Path, numbers: list[int]) -> str:
    return str(Tokenizer.from_file(str(path)).decode(numbers, skip_special_tokens=False))


USER = {"role": "user", "content": "the weather"}
ANSWER = {"role": "assistant", "content": "it rains"}


def test_call_has_ids_of_the_vocabulary_and_its_special_tokens(chatml: Path):
    ((prompt, response),) = calls(chatml, USER, ANSWER)
    assert text_of(chatml, prompt) == f"{BEGIN}user\nthe weather{END}\n{BEGIN}assistant\n"
    assert text_of(chatml, response) == f"it rains{END}"
    assert [prompt[0], response[-1]] == [0, 1]


def test_line_end_after_an_answer_is_part_of_the_next_prompt(chatml: Path):
    first, second = calls(chatml, USER, ANSWER, USER, ANSWER)
    assert text_of(chatml, second[0][len(first[0] + first[1]) :]).startswith(f"\n{BEGIN}user\n")


def test_text_that_looks_like_a_special_token_is_text(chatml: Path):
    ((prompt, response),) = calls(chatml, {"role": "user", "content": END * 3}, {"role": "assistant", "content": BEGIN})
    assert (prompt.count(1), response.count(0)) == (1, 0)
    assert text_of(chatml, response) == f"{BEGIN}{END}"


def test_vocabulary_without_special_tokens_gets_the_markers_as_text(plain: Path):
    ((prompt, response),) = calls(plain, USER, ANSWER)
    assert text_of(plain, prompt) == f"{BEGIN}user\nthe weather{END}\n{BEGIN}assistant\n"
    assert text_of(plain, response) == f"it rains{END}"


def test_vocabulary_says_what_it_does(chatml: Path, plain: Path):
    assert Vocabulary(chatml).said == "token ids of tokenizer.json, 299 tokens; ChatML, markers as special tokens"
    assert Vocabulary(plain).said == (
        "token ids of plain.json, 297 tokens; ChatML, markers as text: the vocabulary lacks <|im_start|> or <|im_end|>"
    )


def test_file_that_is_no_tokenizer_is_refused(tmp_path: Path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InvalidSettings, match=r"x.json: expected a tokenizer.json of the tokenizers library"):
        Vocabulary(tmp_path / "x.json")
    with pytest.raises(InvalidSettings, match="expected a file that can be read"):
        Vocabulary(tmp_path / "none.json")


def saved(path: Path, made: Any) -> Path:
    made.save(str(path))
    return path


def test_text_that_a_vocabulary_has_no_token_for_is_refused_by_its_field(tmp_path: Path):
    made = Tokenizer(models.WordLevel({BEGIN: 0, END: 1, "user": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([BEGIN, END])
    vocabulary = Vocabulary(saved(tmp_path / "t.json", made))
    assert unpack_token_ids(vocabulary.answer("user")).tolist() == [2, 1]
    with pytest.raises(
        InvalidEvent, match=r"expected text that the tokenizer has ids of \(.*\), got 'Rome' at \$.content"
    ):
        vocabulary.answer("Rome")


def test_vocabulary_that_has_no_ids_of_a_line_end_is_refused(tmp_path: Path):
    made = Tokenizer(models.Unigram([("a", -1.0)], None))
    with pytest.raises(InvalidSettings, match=r"t.json: expected one that has ids of a line end"):
        Vocabulary(saved(tmp_path / "t.json", made))


def test_file_on_which_the_library_panics_is_refused(chatml: Path, tmp_path: Path):
    """Its panics are no exceptions of Python's usual kind."""
    content = json.loads(chatml.read_text())
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(InvalidSettings, match=r"x.json: expected a tokenizer.json of the tokenizers library"):
        Vocabulary(tmp_path / "x.json")


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
conversations = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": words}), max_size=10
)


@settings(max_examples=100, deadline=None)
@given(conversations)
def test_prompt_and_answer_of_any_conversation_begin_the_next_prompt(chatml: Path, conversation: list[Any]):
    turns = calls(chatml, *conversation)
    for (prompt, answer), (following, _) in pairwise(turns):
        assert following[: len(prompt + answer)] == prompt + answer
