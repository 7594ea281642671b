#!/usr/bin/env bash
# Run the unit, contract and simulation tests on each Python that the classifiers of pyproject.toml name, apart from the
# one of .venv, which runs all tests. Without --all: the newest that this machine has, as .venv has the oldest mostly, and
# what another Python can change: the syntax, the standard library, the C clients; so of the contracts, which repeat their
# SQL on each server, little.
# With --all: all of them, and the other Pythons too, from newer suites of Debian in a folder (root, debootstrap, about a
# minute each); one that cannot be had is a failure.
# With --prepare: no test; what is there afterwards need not be made by the run without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
below=.pythons
suites=(trixie forky) # from the oldest

fail() {
    echo "pythons: $*" >&2
    exit 1
}

is_version() { # program, 3.x: whether it runs, and is that version
    [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$2" ]
}

on_this_machine() { # 3.x: prints a program
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python3; do
        if is_version "$candidate" "$1"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

from_debian() { # 3.x: prints a program below the folder of a suite, which is made when it is missing
    local suite folder mirror program
    command -v debootstrap >/dev/null && command -v patchelf >/dev/null ||
        apt-get install --yes --no-install-recommends debootstrap patchelf >"$below/apt.log" 2>&1 ||
        fail "apt-get install debootstrap patchelf failed: $(tail -n 1 "$below/apt.log")"
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/*$') || fail "apt has no mirror of Debian"
    for suite in "${suites[@]}"; do
        folder=$PWD/$below/$suite
        program=$folder/usr/bin/python$1
        if [ ! -x "$program" ]; then
            rm -rf "$folder"
            debootstrap --variant=minbase --include="python$1,python$1-venv" "$suite" "$folder" "$mirror" \
                /usr/share/debootstrap/scripts/sid >"$below/$suite.log" 2>&1 || continue
            # its own loader and libraries, so that it runs beside this machine's servers
            patchelf --set-interpreter "$folder/usr/lib64/ld-linux-x86-64.so.2" --force-rpath \
                --set-rpath "$folder/usr/lib/x86_64-linux-gnu" "$program"
        fi
        if is_version "$program" "$1"; then
            echo "$program"
            return
        fi
    done
    return 1
}

environment() { # 3.x, program: makes .pythons/3.x
    local folder=$below/$1 wheels
    [ "$folder/.installed" -nt pyproject.toml ] && return
    echo "pythons: installing workq with all extras and tools into $folder"
    rm -rf "$folder"
    "$2" -m venv --without-pip "$folder"
    "$folder/bin/python" -m ensurepip --default-pip >/dev/null 2>&1 || {
        wheels=("$(dirname "$2")"/../share/python-wheels/pip-*.whl) # Debian's ensurepip looks below /usr only
        "$folder/bin/python" "${wheels[0]}/pip" install --quiet --disable-pip-version-check "${wheels[0]}"
    }
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
    touch "$folder/.installed"
}

mkdir -p "$below"
chosen=()
if [ "${1:-}" != --all ]; then
    # what looks at texts, at plans of SQL and at the tests themselves; each destination on a server of its own
    away=(unit/test_{imports,typing,measures,zygote,traces}.py contract/test_{migrations,sql_files,ledger_plans,kinds_contract}.py)
    # models, and bugs on purpose; what repeats one world with other seeds
    away+=(simulation/test_{absence_model,mark_model,mover_model,position_model,positions,owners,small_worlds}.py)
    away+=(simulation/test_{contracts,the_simulation,without_broker,seeds_2,seeds_3,seeds_4,seeds_5}.py)
    # the same contract on another store
    again=(TestPostgreSQL TestMariaDB InPostgreSQL InMariaDB RabbitMQLevels RabbitMQClassic RabbitMQQuorum RedisCluster)
    again+=(TestKafka TestRabbitMQIn longer_sequences_of_operations)
    again+=("(test_seeds_1 and not [1])") # one is enough to tell that a world runs
    # of the ledger's contract: threads, connections of others, and what the driver of SQLite makes of texts and times
    again+=("(test_ledger_contract and not (at_once or transaction or text or characters or thread or clock))")
    chosen=("${away[@]/#/--ignore=tests/}")
    # and some of each other client library
    chosen+=(-k "not ($(printf '%s or ' "${again[@]}")False) or granted_to_one_of_eight_workers or records_become_messages")
fi
told=()
missing=()
versions=$(sed -n 's/.*Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml | sort --version-sort --reverse)
for version in $versions; do
    is_version .venv/bin/python "$version" && continue
    [ "${1:-}" = --all ] || [ "${#told[@]}" -eq 0 ] || break
    if ! program=$(on_this_machine "$version") && ! { [ "${1:-}" = --all ] && program=$(from_debian "$version"); }; then
        missing+=("$version")
        continue
    fi
    environment "$version" "$program"
    env -u PYTHONDONTWRITEBYTECODE "$below/$version/bin/python" -m compileall -q workq # once for all processes
    if [ "${1:-}" = --prepare ]; then
        told+=("")
        continue
    fi
    echo "pythons: $("$program" -V), unit, contract and simulation tests"
    # they compute, and hardly wait: more processes would import and collect in vain
    "$below/$version/bin/python" -m pytest --require=all --numprocesses=2 --dist=worksteal -q \
        "${chosen[@]}" tests/unit tests/contract tests/simulation | tee "$below/$version.log"
    told+=("$("$program" -V): $(tail -n 1 "$below/$version.log")")
done
[ "${1:-}" != --prepare ] || exit 0
[ "${#told[@]}" -eq 0 ] || printf 'pythons: %s\n' "${told[@]}"
if [ "${#missing[@]}" -gt 0 ]; then
    [ "${1:-}" != --all ] || fail "not to be had: Python ${missing[*]} (see $below/*.log)"
    echo "pythons: not on this machine: Python ${missing[*]} (make pythons fetches them, and runs all)"
fi
