"""A Kafka broker from its jars, for machines without a container engine.

Types      Broker
Functions  broker_jars, kafka_version
Errors     BrokerError, KafkaMissing
"""

from rolloutlog.deploy.kafka.broker import Broker, BrokerError
from rolloutlog.deploy.kafka.jars import KafkaMissing, broker_jars, kafka_version

__all__ = ["Broker", "BrokerError", "KafkaMissing", "broker_jars", "kafka_version"]
