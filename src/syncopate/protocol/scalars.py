"""Scalars: the numbers and names of messages, and their ranges."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Rank = Annotated[int, Meta(ge=0, lt=2**16)]
Key = Annotated[int, Meta(ge=0, lt=2**62)]
Number = Annotated[int, Meta(ge=0, lt=2**62)]
Token = Annotated[str, Meta(max_length=64)]
Address = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
