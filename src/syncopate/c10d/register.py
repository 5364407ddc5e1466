"""Register: makes the backend known to torch.

``init_process_group`` takes ``"syncopate"`` or ``"cpu:syncopate"`` then. It is loaded beside torch,
and loads nothing else until a group is made.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from syncopate.ranks import BACKEND


def register_backend() -> str:
    """Make the backend known to torch, and return its name.

    ``import syncopate`` does it, or the import of torch that follows. It may be called again, such
    as in a process that was started without either.

    Example:
        >>> import torch.distributed as dist, syncopate  # doctest: +SKIP
        >>> dist.init_process_group(syncopate.register_backend())  # doctest: +SKIP
    """
    if dist.is_available() and BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _made, extended_api=True, devices=["cpu"])
    return BACKEND


def _made(options: Any, given: Any) -> Any:
    from syncopate.c10d.group import made  # noqa: PLC0415 - see the module

    return made(options, given)
