"""Artefacts: loading and saving every JSON file that Syncopate writes.

Each file is one JSON object that opens with its ``kind`` and ``schema_version``. Decoding is
strict: an unknown field, a missing one, one that stands twice, a wrong type, a value that breaks
its rule, a truncated file, another kind or a newer version is refused with path, field and reason,
never half-read. Timelines are read in pieces: of a field that stands twice in one the last counts.
Writing is atomic: a reader sees the old file or the new one (:mod:`syncopate.output`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from syncopate.artifacts.faults import at_fault, not_json, twice
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.output import write_output
from syncopate.reading import as_utf8, read_whole

TOO_DEEP = "arrays or objects stand inside each other deeper than any file of this kind needs"
"""Why a document is refused that would exhaust the stack."""

A = TypeVar("A", bound="Artifact")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of an artefact: frozen, keyword-only, and strict when decoded."""


class Artifact(Record, frozen=True, kw_only=True):
    """A top-level artefact. Subclasses set ``KIND`` and ``SCHEMA_VERSION``.

    Where files of earlier versions are decoded alike, ``OLDEST_VERSION`` is the first of these.
    """

    KIND: ClassVar[str] = ""
    SCHEMA_VERSION: ClassVar[int] = 1
    OLDEST_VERSION: ClassVar[int | None] = None

    def to_json(self) -> bytes:
        """Encode as UTF-8 JSON, ``kind`` and ``schema_version`` first."""
        return self._encoded(msgspec.to_builtins(self))

    def _encoded(self, body: dict[str, Any]) -> bytes:
        """Return fields as the text of a file of this kind."""
        header = {"kind": self.KIND, "schema_version": self.SCHEMA_VERSION}
        return msgspec.json.format(msgspec.json.encode(header | body), indent=1) + b"\n"

    @classmethod
    def from_json(cls: type[A], data: bytes | str, source: object = "<memory>") -> A:
        """Decode strictly.

        Args:
            data: the JSON text.
            source: what to call the text in errors, usually its path.

        Raises:
            ArtifactError: not valid JSON, another kind, another version, or a field at fault.
        """
        data = as_utf8(data) if isinstance(data, bytes) else data
        try:
            raw = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise ArtifactError(source, *not_json(data, str(error))) from None
        except UnicodeDecodeError as error:
            raise ArtifactError(source, f"not valid UTF-8: {error}") from None
        except RecursionError:
            raise ArtifactError(source, TOO_DEEP) from None
        if not isinstance(raw, dict):
            raise ArtifactError(source, f"expected a JSON object, found {type(raw).__name__}", "$")
        if (fault := twice(data, raw)) is not None:
            raise ArtifactError(source, *fault)
        kind = raw.pop("kind", None)
        if kind != cls.KIND:
            raise ArtifactError(
                source, f"expected a {cls.KIND!r} artefact, found {kind!r}", "$.kind"
            )
        version = raw.pop("schema_version", None)
        oldest = cls.SCHEMA_VERSION if cls.OLDEST_VERSION is None else cls.OLDEST_VERSION
        if type(version) is not int or not oldest <= version <= cls.SCHEMA_VERSION:
            raise ArtifactError(source, _version_reason(version, cls), "$.schema_version")
        try:
            return msgspec.convert(raw, cls, strict=True)
        except msgspec.ValidationError as error:
            reason, field = at_fault(raw, error)
            raise ArtifactError(source, reason, field) from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as :func:`~syncopate.output.write_output` does; return the path.

        Raises:
            ArtifactError: the path cannot be written.
        """
        return write_output(path, self.to_json())

    @classmethod
    def load(cls: type[A], path: str | os.PathLike[str]) -> A:
        """Read and decode strictly.

        Raises:
            ArtifactError: the file is missing, unreadable, damaged, newer, or of another kind.
        """
        try:
            data = read_whole(path)
        except OSError as error:
            reason = error.strerror or error
            raise ArtifactError(path, f"cannot read this {cls.KIND} file: {reason}") from None
        return cls.from_json(data, source=path)


def require(*given: tuple[type[Artifact], object]) -> None:
    """Refuse what is no artefact of its kind, such as the path of a file.

    Raises:
        InvalidValueError: one is not.
    """
    for kind, value in given:
        if not isinstance(value, kind):
            name = kind.__name__
            raise InvalidValueError(kind.KIND, value, f"a {name}; {name}.load(path) reads one")


def _version_reason(version: object, cls: type[Artifact]) -> str:
    if version is None:
        return f"missing; expected {cls.SCHEMA_VERSION}"
    if isinstance(version, int) and version > cls.SCHEMA_VERSION:
        return (
            f"version {version} is newer than this Syncopate reads ({cls.SCHEMA_VERSION}); "
            "upgrade Syncopate"
        )
    return f"version {version!r} is not readable; expected {cls.SCHEMA_VERSION}"
