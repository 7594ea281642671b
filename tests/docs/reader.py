"""Executes the Python blocks of one page in one namespace, as a reader would who types them into one session.

Reads a JSON object a line from standard input, and answers with one on standard output. A process of its own, so that
modules, connections and the working folder belong to the page alone.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    answers = sys.stdout
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(asked["environ"])
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            trouble = _session(asked, namespace) if asked["is_session"] else _code(asked, namespace)
        answers.write(json.dumps({"trouble": trouble, "out": told.getvalue()}) + "\n")
        answers.flush()


def _code(asked: dict[str, Any], namespace: dict[str, Any]) -> str:
    try:
        exec(compile(asked["text"], asked["place"], "exec"), namespace)  # noqa: S102 - it is what this is for
    except Exception:
        return traceback.format_exc()
    return ""


def _session(asked: dict[str, Any], namespace: dict[str, Any]) -> str:
    test = doctest.DocTestParser().get_doctest(asked["text"] + "\n", namespace, asked["place"], asked["place"], 0)
    test.globs = namespace  # not a copy: what one block defines, the next one uses
    told = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=told.write, clear_globs=False)
    return told.getvalue() if runner.failures else ""


if __name__ == "__main__":
    main()
