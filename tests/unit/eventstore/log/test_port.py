import pytest

from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import LogUrl, parse_url


def test_parse_url_with_three_slashes_is_a_relative_file():
    assert parse_url("sqlite:///runs/a.db") == LogUrl("sqlite", path="runs/a.db")


def test_parse_url_with_four_slashes_is_an_absolute_file():
    assert parse_url("sqlite:////data/a.db") == LogUrl("sqlite", path="/data/a.db")


def test_parse_url_of_kafka_gives_server_and_prefix():
    assert parse_url("kafka://broker:9092/run-1") == LogUrl("kafka", servers=("broker:9092",), prefix="run-1")


def test_parse_url_of_kafka_with_several_servers_keeps_their_order():
    assert parse_url("kafka://b:9092,a:9093/x").servers == ("b:9092", "a:9093")


def test_parse_url_of_kafka_with_ipv6_server_keeps_brackets():
    assert parse_url("kafka://[::1]:9092/x").servers == ("[::1]:9092",)


def test_parse_url_with_options_gives_them_by_name():
    url = "kafka://broker:9092/x?security_protocol=SASL_SSL&sasl_plain_password=a=b"
    assert parse_url(url).options == {"security_protocol": "SASL_SSL", "sasl_plain_password": "a=b"}


def test_parse_url_without_options_gives_none():
    assert parse_url("sqlite:///a.db").options == {}


@pytest.mark.parametrize(
    ("url", "got"),
    [
        ("", ""),
        ("a.db", ""),
        ("sqlite", ""),
        ("http://host:1/x", ""),
        ("sqlite://a.db", "got no file path"),
        ("sqlite:///", "got no file path"),
        ("kafka://broker/x", "got servers 'broker'"),
        ("kafka://:9092/x", "got servers ':9092'"),
        ("kafka://broker:0/x", "got servers 'broker:0'"),
        ("kafka://broker:65536/x", "got servers 'broker:65536'"),
        ("kafka:///x", "got servers ''"),
        ("kafka://broker:9092", "got prefix ''"),
        ("kafka://broker:9092/", "got prefix ''"),
        ("kafka://broker:9092/a/b", "got prefix 'a/b'"),
        ("kafka://broker:9092/a b", "got prefix 'a b'"),
        ("kafka://broker:9092/ä", "got prefix 'ä'"),
    ],
)
def test_parse_url_of_unusable_url_says_what_is_expected_and_got(url: str, got: str):
    with pytest.raises(InvalidSettings, match=r"expected sqlite:///relative\.db, .* or kafka://") as error:
        parse_url(url)
    assert repr(url) in str(error.value)
    assert got in str(error.value)


@pytest.mark.parametrize(
    ("url", "got"),
    [
        ("sqlite:///?synchronous=full", "'sqlite:///?...': "),
        ("sqlite:///a.db?synchronous", "got option 'synchronous' without a value"),
        ("sqlite:///a.db?=secret", "got option '' without a name"),
        ("kafka://me:secret@broker:9092/x", "got servers 'broker:9092'"),
        ("kafka://broker:9092/a b?password=secret", "got prefix 'a b'"),
    ],
)
def test_parse_url_of_unusable_url_shows_no_option_and_no_user(url: str, got: str):
    with pytest.raises(InvalidSettings) as error:
        parse_url(url)
    assert got in str(error.value)
    assert "secret" not in str(error.value)
