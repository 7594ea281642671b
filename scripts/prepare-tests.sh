#!/usr/bin/env bash
# What `make test` needs before the first test, on all cores at once: none of it uses more than one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
.venv/bin/python -m tests.java_starts &
java=$!
scripts/pythons.sh --prepare &
others=$!
# where Python writes no bytecode by itself, each of some thousand processes would compile in vain
.venv/bin/python -m compileall -q workq tests
# pytest writes down how it reads each test, once for all its processes
env -u PYTHONDONTWRITEBYTECODE .venv/bin/pytest --collect-only -q >/dev/null || :
wait "$java"
wait "$others"
