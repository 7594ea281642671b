#!/usr/bin/env bash
# Install the servers that the tests and the full demo start privately: RabbitMQ, Redis, PostgreSQL, PgBouncer, MariaDB; what
# Kafka and Artemis run on and are fetched with (install-jars.sh); and two small tools of the tests. For Debian and its descendants. Installs only what is missing, starts no service, and does nothing, fast, when all are there.
set -euo pipefail

fail() {
    echo "install-servers-debian: $*" >&2
    exit 1
}

have() { # a program, on the PATH or in one of the folders where Debian puts servers
    PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null
}

missing=()
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing+=(rabbitmq-server)
have redis-server || missing+=(redis-server)
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
have pgbouncer || missing+=(pgbouncer)
have mariadbd || missing+=(mariadb-server)
have java || missing+=(default-jre-headless) # Kafka and Artemis
have mvn || missing+=(maven)
have openssl || missing+=(openssl) # throw-away certificates
have faketime || missing+=(faketime) # a host whose clock is wrong
have ip || missing+=(iproute2) # hosts in network namespaces of their own

if [ "${#missing[@]}" -eq 0 ]; then
    echo "servers: all are installed"
    exit 0
fi

have apt-get || fail "this machine has no apt-get; install ${missing[*]} in its own way, or use docker-compose.yml"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    have sudo || fail "needs root or sudo to install ${missing[*]}"
    as_root=(sudo)
fi

# A policy of 101 tells the packages' scripts not to start their services. Ours goes away again; somebody else's stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null || fail "cannot write $policy"
    "${as_root[@]}" chmod 755 "$policy"
elif ! grep -q 'exit 101' "$policy"; then
    echo "servers: $policy exists and may allow services to start; it is left as it is" >&2
fi

echo "servers: installing ${missing[*]} (no service is started)"
log=$(mktemp)
"${as_root[@]}" apt-get update -qq >"$log" 2>&1 || fail "apt-get update failed: $(tail -n 1 "$log")"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
    fail "apt-get install ${missing[*]} failed: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log") (all of it: $log)"
rm -f "$log"
echo "servers: installed ${missing[*]}"
