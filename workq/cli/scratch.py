"""Removing what a run in a scratch namespace has left."""

from __future__ import annotations

from workq.cli import exits
from workq.cli.session import Session


def remove_namespace(session: Session, name: str) -> int:
    """Remove tables, queues and keys of one run that was killed, or was asked to keep them; answers the exit status."""
    from workq.app import WorkQueue
    from workq.lab.namespace import Namespace, settings_for

    settings = session.settings()
    namespace = Namespace(settings_for(settings, name, settings.times), WorkQueue())
    try:
        left = namespace.remove()
    finally:
        namespace.close()
    for one in left:
        session.warn(f"not removed: {one}")
    return exits.FAILED if left else exits.DONE
