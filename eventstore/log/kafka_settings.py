"""What a `kafka://` URL and the environment say about a cluster: servers, prefix, security.

A URL names no secret, so that it can be printed, logged and handed on. Secrets come from the environment:

ROLLOUTLOG_KAFKA_SASL_USERNAME     where the URL has no sasl_plain_username
ROLLOUTLOG_KAFKA_SASL_PASSWORD
ROLLOUTLOG_KAFKA_SSL_KEY_PASSWORD  of the private key in ssl_keyfile
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from aiokafka.helpers import create_ssl_context

from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log.port import parse_url

ENVIRONMENT = "ROLLOUTLOG_KAFKA_"
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
OPTIONS = (
    "security_protocol",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
)
SECRETS: Mapping[str, str] = {
    "sasl_plain_password": f"{ENVIRONMENT}SASL_PASSWORD",
    "sasl_password": f"{ENVIRONMENT}SASL_PASSWORD",
    "ssl_password": f"{ENVIRONMENT}SSL_KEY_PASSWORD",
}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """A parsed `kafka://` URL. `client`: what every client of the cluster is made with; holds the secrets."""

    url: str
    servers: tuple[str, ...]
    prefix: str
    client: Mapping[str, Any] = field(repr=False)

    def full_name(self, topic: str) -> str:
        """Kafka's name of one of our topics."""
        return f"{self.prefix}.{topic}"

    def group(self, app: str) -> str:
        """The group in which an app's positions are kept; it never has members."""
        return f"{self.prefix}.{app}"

    def transactional_id(self, app: str, topic: str, partition: int | None) -> str:
        """What fences. It begins with the prefix: logs on one cluster leave each other alone, one rule covers each."""
        return f"{self.prefix}.{app}" if partition is None else f"{self.prefix}.{app}.{topic}.{partition}"


def kafka_settings(url: str, environment: Mapping[str, str] | None = None) -> KafkaSettings:
    """Parse the URL of a Kafka log. Raises InvalidSettings naming what is expected, without any secret."""
    environment = os.environ if environment is None else environment
    parsed = parse_url(url)
    where = f"log URL kafka://{','.join(parsed.servers)}/{parsed.prefix}"
    options = {name: unquote(value) for name, value in parsed.options.items()}
    for name in options:
        if name in SECRETS:
            raise InvalidSettings(
                f"{where}: a URL is printed and logged, so {name} is not taken from it; set {SECRETS[name]}"
            )
        if name not in OPTIONS:
            raise InvalidSettings(f"{where}: expected options {', '.join(OPTIONS)}; got {name}")
    protocol = _one_of(where, options, "security_protocol", SECURITY_PROTOCOLS)
    client: dict[str, Any] = {"bootstrap_servers": list(parsed.servers), "security_protocol": protocol}
    if protocol.startswith("SASL_"):
        client |= _sasl(where, options, environment)
    if protocol.endswith("SSL"):
        client["ssl_context"] = _ssl_context(where, options, environment)
    _refuse_unused(where, options, protocol)
    return KafkaSettings(url, parsed.servers, parsed.prefix, client)


def _sasl(where: str, options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    mechanism = _one_of(where, options, "sasl_mechanism", SASL_MECHANISMS)
    if mechanism == "GSSAPI":
        kerberos = {name: options[name] for name in options if name.startswith("sasl_kerberos_")}
        return {"sasl_mechanism": mechanism, **kerberos}
    username = options.get("sasl_plain_username") or environment.get(f"{ENVIRONMENT}SASL_USERNAME")
    password = environment.get(f"{ENVIRONMENT}SASL_PASSWORD")
    if not username:
        raise InvalidSettings(
            f"{where}: expected option sasl_plain_username or {ENVIRONMENT}SASL_USERNAME, got neither"
        )
    if not password:
        raise InvalidSettings(f"{where}: expected {ENVIRONMENT}SASL_PASSWORD for user {username}, got none")
    return {"sasl_mechanism": mechanism, "sasl_plain_username": username, "sasl_plain_password": password}


def _ssl_context(where: str, options: Mapping[str, str], environment: Mapping[str, str]) -> ssl.SSLContext:
    check = _one_of(where, options, "ssl_check_hostname", ("true", "false"))
    try:
        context = create_ssl_context(
            cafile=options.get("ssl_cafile"),
            certfile=options.get("ssl_certfile"),
            keyfile=options.get("ssl_keyfile"),
            # "" rather than None: OpenSSL would ask at the terminal
            password=environment.get(f"{ENVIRONMENT}SSL_KEY_PASSWORD", ""),
        )
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(f"{name}={options[name]}" for name in options if name.endswith("file"))
        raise InvalidSettings(f"{where}: expected readable PEM files, got {files or 'none'}: {error}") from error
    context.check_hostname = check == "true"
    return context


def _one_of(where: str, options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(name, allowed[0])
    if value not in allowed:
        raise InvalidSettings(f"{where}: expected {name} to be one of {', '.join(allowed)}; got {value}")
    return value


def _refuse_unused(where: str, options: Mapping[str, str], protocol: str) -> None:
    """An option that has no effect under this protocol means less security than someone believes."""
    for name in options:
        if (name.startswith("sasl_") and "SASL" not in protocol) or (name.startswith("ssl_") and "SSL" not in protocol):
            raise InvalidSettings(f"{where}: option {name} has no effect with security_protocol={protocol}")
