#!/usr/bin/env bash
# Run a command with a temporary folder of its own in memory, if this machine has room for one; else as it would run
# anyhow, and so does a caller who has chosen a folder (TMPDIR).
# The tests' ledgers and servers write through to the disk at each commit, as in production: 6 ms on a common disk, and
# ten times the processor time. Only a machine that loses power would tell the difference. A process that is killed has
# lost nothing of what it had written, wherever that is.
# The folder goes when the command has ended, however it did.
set -euo pipefail
room=/dev/shm
needs_mib=6000 # several times what the tests that run at once have used

has_room() {
    [ "$(stat --file-system --format %T "$room" 2>/dev/null)" = tmpfs ] && [ -w "$room" ] || return 1
    [ "$(df --output=avail --block-size=1M "$room" | tail -n 1)" -ge "$needs_mib" ] || return 1
    [ "$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)" -ge "$needs_mib" ]
}

runs_programs() { # folder: whether a program in it may be started
    printf '#!/bin/sh\n' >"$1/program" && chmod +x "$1/program" && "$1/program" 2>/dev/null && rm "$1/program"
}

if [ -n "${TMPDIR:-}" ] || ! has_room; then
    exec "$@"
fi
folder=$(mktemp -d "$room/workq-XXXXXX")
chmod 1777 "$folder" # as /tmp: servers run as users of their own
if ! runs_programs "$folder"; then
    rm -rf "$folder"
    exec "$@"
fi
exec 3> >(
    trap '' HUP INT TERM
    cat >/dev/null # until nobody has the other end any more
    rm -rf "$folder"
)
TMPDIR=$folder exec "$@"
