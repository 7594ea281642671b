#!/usr/bin/env bash
# Fetch the jars of the servers that Debian has no package of, with Maven, from where Maven is set up to fetch: Kafka and
# ActiveMQ Artemis. Into .jars/ of the checkout, which git ignores and `make clean` keeps. Does nothing, fast, when all are there.
# install-jars.sh [VERSION...]: these versions of Kafka in the place of the one that tests run on; each has its own folder.
set -euo pipefail

KAFKA=4.4.0
ARTEMIS=2.40.0
PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

here=$(cd "$(dirname "$0")" && pwd)
jars=$(dirname "$here")/.jars
[ $# -gt 0 ] || set -- "$KAFKA"

fail() {
    echo "install-jars: $*" >&2
    exit 1
}

missing=()
for version; do
    [[ $version =~ ^[0-9.]+$ ]] || fail "what is Kafka $version? Need versions such as $KAFKA"
    [ -d "$jars/kafka-$version" ] || missing+=("$version")
done
if [ ${#missing[@]} = 0 ] && [ -d "$jars/apache-artemis-$ARTEMIS" ]; then
    echo "servers: the jars of Kafka $* and Artemis $ARTEMIS are there"
    exit 0
fi
command -v mvn >/dev/null || fail "Maven is not installed: apt-get install maven"

mkdir -p "$jars"
partial=$(mktemp -d "$jars/partial-XXXXXX") # becomes the folder by one rename: what is there is complete
trap 'rm -rf "$partial"' EXIT

fetch() {
    mvn --quiet --batch-mode "$@" >"$partial/log" 2>&1 || fail "Maven failed: $(grep -m 1 ERROR "$partial/log" || tail -n 1 "$partial/log")"
}

for version in "${missing[@]}"; do
    echo "servers: fetching the jars of Kafka $version"
    fetch -f "$here/kafka.pom.xml" "$PLUGIN:copy-dependencies" -Dkafka="$version" -DincludeScope=runtime -DoutputDirectory="$partial/kafka"
    mv "$partial/kafka" "$jars/kafka-$version"
done
if [ ! -d "$jars/apache-artemis-$ARTEMIS" ]; then
    echo "servers: fetching Artemis $ARTEMIS"
    fetch -f "$here/kafka.pom.xml" "$PLUGIN:copy" -Dartifact="org.apache.activemq:apache-artemis:$ARTEMIS:tar.gz:bin" -DoutputDirectory="$partial"
    tar xzf "$partial/apache-artemis-$ARTEMIS-bin.tar.gz" -C "$partial"
    mv "$partial/apache-artemis-$ARTEMIS" "$jars/"
fi
echo "servers: the jars are in .jars/"
