#!/usr/bin/env bash
# Fetch the servers of newer suites of Debian, each suite into a folder of its own below .newer/, which git ignores:
# install-newer-servers.sh [SUITE...]; trixie (Debian 13) alone without a word. `make test-newer` runs them from there.
# Root and debootstrap; about two minutes and 1 GB a suite. Nothing else of the machine is changed, no service is started.
#
# debootstrap and all that its packages start live in a mount, a process and an IPC namespace of their own: when it ends,
# however it ends, its mounts of /proc and /sys are gone, and so is every process. The folder gets its name when all of its
# programs have run once; what is there is complete, and is kept until the list of packages changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
below=.newer

fail() {
    echo "install-newer-servers: $*" >&2
    exit 1
}

packages_of() { # suite: the packages that are taken from it
    case $1 in
    trixie | forky) echo rabbitmq-server,redis-server,valkey-server,postgresql,pgbouncer,mariadb-server ;;
    sid) echo mysql-server ;; # the only suite that has MySQL itself, 9.7 when this was written; none has 8
    *) fail "what is to be taken from suite $1? Known: trixie, forky, sid" ;;
    esac
}

check() { # folder, packages: runs each server for its version, as the tests find it
    local package words
    for package in ${2//,/ }; do
        case $package in
        rabbitmq-server) words='test -x /usr/lib/rabbitmq/bin/rabbitmq-server && dpkg-query -W -f "RabbitMQ \${Version}\n" rabbitmq-server' ;;
        redis-server | valkey-server) words="$package --version" ;;
        postgresql) words='/usr/lib/postgresql/*/bin/postgres --version' ;;
        pgbouncer) words='pgbouncer --version | head -n 1' ;;
        mariadb-server) words='mariadbd --version' ;;
        mysql-server) words='mysqld --version' ;;
        esac
        chroot "$1" /bin/sh -c "PATH=/usr/sbin:/usr/bin; $words" || return 1
    done
}

fetch() { # suite, packages
    local mirror partial
    exec 9>"$below/.lock"
    flock 9 # debootstrap inherits it: it is free only when that has ended, too
    rm -rf --one-file-system "$below"/partial-* # of a run that was killed
    partial=$PWD/$below/partial-$1
    trap 'rm -rf --one-file-system "'"$partial"'"' EXIT
    trap 'exit 130' INT TERM HUP # a signal is an exit, too: bash runs no EXIT trap for a TERM by itself
    command -v debootstrap >/dev/null ||
        apt-get install --yes --no-install-recommends debootstrap >"$below/apt.log" 2>&1 ||
        fail "apt-get install debootstrap failed: $(tail -n 1 "$below/apt.log")"
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/*$') || fail "apt has no mirror of Debian"
    echo "newer servers: fetching ${2//,/ } of Debian $1 into $below/$1"
    unshare --mount --pid --ipc --fork --kill-child --mount-proc \
        debootstrap --variant=minbase --include="$2" "$1" "$partial" "$mirror" \
        /usr/share/debootstrap/scripts/sid >"$below/$1.log" 2>&1 ||
        fail "debootstrap failed: $(tail -n 1 "$below/$1.log") (all of it: $below/$1.log)"
    printf '127.0.0.1 localhost\n' >"$partial/etc/hosts" # the name of each private node of RabbitMQ ends so
    check "$partial" "$2" >"$partial/.versions" 2>&1 || fail "not all of it runs: $(tail -n 1 "$partial/.versions")"
    rm -rf "$partial"/var/cache/apt/archives/*.deb "$partial"/usr/share/{doc,man,locale}
    echo "$2" >"$partial/.packages"
    rm -rf --one-file-system "${below:?}/$1"
    mv "$partial" "$below/$1"
    trap - EXIT INT TERM HUP
}

[ "$#" -gt 0 ] || set -- trixie
for suite in "$@"; do
    packages=$(packages_of "$suite")
    if [ "$(cat "$below/$suite/.packages" 2>/dev/null)" != "$packages" ]; then
        [ "$(id -u)" -eq 0 ] || fail "debootstrap needs root; $below/$suite is not there"
        mkdir -p "$below"
        fetch "$suite" "$packages"
    fi
    sed "s/^/newer servers: $suite: /" "$below/$suite/.versions"
done
