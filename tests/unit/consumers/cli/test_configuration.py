"""Settings of commands: file, environment, flags; which partitions a process takes."""

from pathlib import Path

import pytest

from rolloutlog.consumers.assembler import AssemblerSettings
from rolloutlog.consumers.attribution import settings_from
from rolloutlog.consumers.cli.configuration import Configuration, load, parse_partitions
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.errors import InvalidSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def written(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def refusal(file: Path | None = None, flags: dict[str, object] | None = None, **environment: str) -> str:
    with pytest.raises(InvalidSettings) as caught:
        load(file, flags or {}, environment=environment).assembler()
    return str(caught.value)


def test_load_without_anything_gives_the_assemblers_own_defaults():
    assert load(None, {}, environment={}).assembler() == AssemblerSettings()


def test_load_takes_settings_from_the_file(file: Path):
    assert load(written(file, "min_group = 3"), {}, environment={}).min_group == 3


def test_load_takes_the_environment_before_the_file(file: Path):
    written(file, "min_group = 3")
    assert load(file, {}, environment={"ROLLOUTLOG_MIN_GROUP": "4"}).min_group == 4


def test_load_takes_flags_before_the_environment():
    assert load(None, {"min_group": 5}, environment={"ROLLOUTLOG_MIN_GROUP": "4"}).min_group == 5


def test_load_takes_a_flag_that_is_not_given_from_elsewhere():
    assert load(None, {"min_group": None}, environment={"ROLLOUTLOG_MIN_GROUP": "4"}).min_group == 4


def test_load_takes_attribution_from_the_files_table(file: Path):
    written(file, '[attribution]\nfinal = "every_call"\nweights = { style = 0.5 }')
    attribution = load(file, {}, environment={}).assembler().fold.attribution
    assert (attribution.final, attribution.weights) == ("every_call", {"style": 0.5})


def test_load_takes_attribution_in_the_same_order(file: Path):
    written(file, '[attribution]\nfinal = "every_call"\npolicy = "none"\nagent = "a"')
    environment = {"ROLLOUTLOG_ATTRIBUTION_POLICY": "nearest", "ROLLOUTLOG_ATTRIBUTION_AGENT": "b"}
    attribution = load(file, {"attribution_agent": "c"}, environment=environment).assembler().fold.attribution
    assert (attribution.final, attribution.policy, attribution.agent) == ("every_call", "nearest", "c")


def test_load_takes_splits_with_commas():
    assert load(None, {"splits": "train, val"}, environment={}).splits == ("train", "val")


def test_load_takes_splits_as_a_list(file: Path):
    assert load(written(file, 'splits = ["val"]'), {}, environment={}).splits == ("val",)


def test_load_passes_over_other_names_of_the_environment():
    environment = {"ROLLOUTLOG_SHARED": "/x", "PATH": "/bin"}
    assert load(None, {}, environment=environment) == Configuration()


def test_load_with_an_unknown_name_in_the_file_names_it(file: Path):
    assert "min_grup" in refusal(written(file, "min_grup = 3"))


def test_load_with_an_unknown_name_in_the_attribution_table_names_it(file: Path):
    assert "attribution setting 'finale' is unknown" in refusal(written(file, '[attribution]\nfinale = "x"'))


def test_load_with_an_unknown_attribution_name_in_the_environment_names_it():
    assert "attribution setting 'finale' is unknown" in refusal(ROLLOUTLOG_ATTRIBUTION_FINALE="x")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("min_group = 0", ("min_group", "greater than or equal to 1", "0")),
        ('min_group = "two"', ("min_group", "integer", "'two'")),
        ("min_group = 2.5", ("min_group", "integer", "2.5")),
        ('on_incomplete = "hide"', ("on_incomplete", "'drop' or 'keep'", "'hide'")),
        ('merge = "all"', ("merge", "'none' or 'trajectory'", "'all'")),
        ("late_window_s = -1", ("late_window_s", "greater than or equal to 0", "-1")),
        ("late_window_s = nan", ("late_window_s", "finite", "nan")),
        ("dead_letters_share = 2", ("dead_letters_share", "less than or equal to 1", "2")),
        ('on_history_lost = "ignore"', ("on_history_lost", "'fail' or 'skip'", "'ignore'")),
        ('splits = ["dev"]', ("splits", "train, val, test", "'dev'")),
        ('[attribution]\npolicy = "x"', ("policy", "enclosing, nearest", "'x'")),
        ('[attribution]\nagent = "("', ("agent", "a regular expression", "'('")),
        ("[attribution.weights]\nreward = inf", ("weights.reward", "a finite number", "inf")),
    ],
)
def test_load_with_a_wrong_value_names_setting_expected_and_got(file: Path, text: str, parts: tuple[str, ...]):
    said = refusal(written(file, text))
    assert [part for part in parts if part not in said] == []


def test_load_of_a_file_that_is_missing_names_it(file: Path):
    assert str(file) in refusal(file)


def test_load_of_a_file_that_is_no_toml_names_it(file: Path):
    assert f"settings file {file}: expected readable TOML" in refusal(written(file, "min_group"))


def test_load_of_a_file_that_is_no_utf8_names_it(file: Path):
    file.write_bytes(b'log = "\xff"')
    assert f"settings file {file}: expected readable TOML" in refusal(file)


def test_load_of_attribution_that_is_no_table_names_it(file: Path):
    assert "expected a table [attribution]" in refusal(written(file, "attribution = 1"))


def test_url_without_any_says_how_to_give_one():
    with pytest.raises(InvalidSettings, match="or set ROLLOUTLOG_LOG"):
        load(None, {}, environment={}).url()


def test_url_comes_from_the_environment():
    assert load(None, {}, environment={"ROLLOUTLOG_LOG": "sqlite:///a.db"}).url() == "sqlite:///a.db"


def test_base_stands_where_neither_file_nor_flags_say_anything(file: Path):
    base = FoldSettings(
        attribution=settings_from({"final": "every_call", "weights": {"cost": -1.0}}), min_group=3, splits=("val",)
    )
    assert load(None, {}, environment={}, base=base).assembler().fold == base
    written(file, '[attribution]\nreduce = "mean"\n')
    found = load(file, {"min_group": 1}, environment={}, base=base).assembler().fold
    assert (found.min_group, found.splits, found.attribution.final, found.attribution.reduce) == (
        1,
        ("val",),
        "every_call",
        "mean",
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("all", [0, 1, 2, 3, 4]),
        ("2", [2]),
        ("0-3", [0, 1, 2, 3]),
        ("0-1,4", [0, 1, 4]),
        ("4,0-1,1", [0, 1, 4]),
        ("0/2", [0, 2, 4]),
        ("1/2", [1, 3]),
        ("0/1", [0, 1, 2, 3, 4]),
    ],
)
def test_partitions_named_are_those(text: str, found: list[int]):
    assert parse_partitions(text, 5) == found


@pytest.mark.parametrize("count", [1, 4, 32])
def test_partitions_of_all_shares_are_all_partitions_once(count: int):
    shares = [partition for share in range(3) for partition in parse_partitions(f"{share}/3", count)]
    assert sorted(shares) == list(range(count))


@pytest.mark.parametrize("text", ["", "x", "5", "0-5", "3-1", "-1", "1-", ",", "2/2", "-1/2", "0/0", "1/2/3", "0.5"])
def test_partitions_that_are_none_are_refused_by_name(text: str):
    with pytest.raises(InvalidSettings) as caught:
        parse_partitions(text, 5)
    assert str(caught.value) == (
        f"--partitions: expected all, ranges such as 0-3 within 0-4, or i/n with i below n; got {text!r}"
    )
