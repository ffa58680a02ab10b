#!/bin/sh
# Grant rolloutlog's users what they need on a Kafka cluster with an authorizer, and no more.
#
#   acls.sh PREFIX ROLE PRINCIPAL [option of kafka-acls.sh ...]
#   acls.sh run1 host      User:hosts    --bootstrap-server kafka:9092 --command-config admin.properties
#   acls.sh run1 assembler User:assemble --bootstrap-server kafka:9092 --command-config admin.properties
#   acls.sh run1 trainer   User:train    --bootstrap-server kafka:9092 --command-config admin.properties
#   acls.sh run1 replay    User:replay   --bootstrap-server kafka:9092 --command-config admin.properties
#   acls.sh run1 archive   User:archive  --bootstrap-server kafka:9092 --command-config admin.properties
#   acls.sh run1 operator  User:ops      --bootstrap-server kafka:9092 --command-config admin.properties
#
# Guarantee: a host can't write batches or move anyone's position; a trainer can't write events; a replay can't write
# what is live, and makes topics of outputs only; no one but the operator makes others. Who may own a position, and so
# fence its owner, is decided by the transactional id.
#
# Settings that carry it, by role:
#   host       Write events; Read meta (the run), acks and batches' ends (policy version, lag)
#   assembler  Read and Write events, batches, dead-letters, meta; group and transactional ids PREFIX.assembler...
#   trainer    Read batches; Write acks, meta; Read acks, meta; group and transactional id PREFIX.trainer (its reader name);
#              the same of outputs: Read PREFIX.output..., group and transactional id PREFIX.trainer.output...
#   replay     Read events, batches; Read and Write meta, rewards; Create, Read and Write PREFIX.output...; groups and
#              transactional ids PREFIX.replay..., PREFIX.output...
#   archive    Read events, rewards, meta
#   operator   everything on PREFIX., for `topics create`, `doctor`, `status`
#
# KAFKA_ACLS names the tool where it is not on the path; `KAFKA_ACLS=echo` shows what would be done.
set -eu

usage() {
    echo "usage: acls.sh PREFIX host|assembler|trainer|replay|archive|operator PRINCIPAL [option of kafka-acls.sh ...]" >&2
    exit 2
}

[ "$#" -ge 3 ] || usage
prefix=$1 role=$2 principal=$3
shift 3

acls() { "${KAFKA_ACLS:-kafka-acls.sh}" "$@"; }

# allow RESOURCE NAME PATTERN OPERATION... [-- options]
allow() {
    resource=$1 name=$2 pattern=$3
    shift 3
    operations=
    while [ "$1" != -- ]; do operations="$operations --operation $1"; shift; done
    shift
    # shellcheck disable=SC2086  # one word each
    acls "$@" --add --allow-principal "$principal" "--$resource" "$name" --resource-pattern-type "$pattern" $operations
}

topic() {
    name=$1
    shift
    allow topic "$prefix.$name" literal "$@"
}

case $role in
host)
    topic events Write Describe DescribeConfigs -- "$@"
    for name in meta acks; do topic "$name" Read Describe DescribeConfigs -- "$@"; done
    topic batches Describe DescribeConfigs -- "$@"
    ;;
assembler)
    for name in events batches dead-letters meta; do topic "$name" Read Write Describe DescribeConfigs -- "$@"; done
    allow group "$prefix.assembler" literal Read Describe -- "$@"
    allow transactional-id "$prefix.assembler" prefixed Write Describe -- "$@"
    ;;
trainer)
    topic batches Read Describe DescribeConfigs -- "$@"
    for name in acks meta; do topic "$name" Read Write Describe DescribeConfigs -- "$@"; done
    topic events Describe DescribeConfigs -- "$@"
    allow group "$prefix.trainer" literal Read Describe -- "$@"
    allow transactional-id "$prefix.trainer" literal Write Describe -- "$@"
    allow topic "$prefix.output." prefixed Read Describe DescribeConfigs -- "$@"
    allow group "$prefix.trainer.output." prefixed Read Describe -- "$@"
    allow transactional-id "$prefix.trainer.output." prefixed Write Describe -- "$@"
    ;;
replay)
    for name in events batches; do topic "$name" Read Describe DescribeConfigs -- "$@"; done
    for name in meta rewards; do topic "$name" Read Write Describe DescribeConfigs -- "$@"; done
    allow topic "$prefix.output." prefixed Create Read Write Describe DescribeConfigs -- "$@"
    allow group "$prefix.replay." prefixed Read Describe -- "$@"
    for name in replay output; do allow transactional-id "$prefix.$name." prefixed Write Describe -- "$@"; done
    ;;
archive)
    for name in events rewards meta; do topic "$name" Read Describe DescribeConfigs -- "$@"; done
    ;;
operator)
    allow topic "$prefix." prefixed Create Read Write Describe DescribeConfigs -- "$@"
    allow group "$prefix." prefixed Read Describe -- "$@"
    allow transactional-id "$prefix." prefixed Write Describe -- "$@"
    ;;
*) usage ;;
esac
