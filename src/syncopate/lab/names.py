"""Names: what a lab calls its namespaces, so that leftovers can be told from other people's."""

from __future__ import annotations

import re
import secrets

from syncopate.errors import InvalidValueError

_RUN_ID = re.compile(r"[0-9a-f]{6}")
_NAMESPACE = re.compile(r"syn([0-9a-f]{6})(?:h[0-9]+|rack[0-9]+|core)")


def new_run_id() -> str:
    """Return a fresh run id: six hexadecimal digits."""
    return secrets.token_hex(3)


def require_run_id(run_id: str) -> str:
    """Return ``run_id`` when it has the form of one.

    Raises:
        InvalidValueError: it has not.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidValueError(
            "lab", run_id, "six hexadecimal digits, as `syncopate lab show` lists"
        )
    return run_id


def host_namespace(run_id: str, host: int) -> str:
    """Return the namespace of a host."""
    return f"syn{run_id}h{host}"


def rack_namespace(run_id: str, rack: int) -> str:
    """Return the namespace that holds the switch of a rack."""
    return f"syn{run_id}rack{rack}"


def core_namespace(run_id: str) -> str:
    """Return the namespace that holds the switch between racks."""
    return f"syn{run_id}core"


def owner_of(namespace: str) -> str | None:
    """Return the run id of a namespace's lab, or None when no lab made it."""
    match = _NAMESPACE.fullmatch(namespace)
    return match and match[1]
