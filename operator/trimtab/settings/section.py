"""What every section of the settings is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from trimtab_policy.inputs import durations


def _seconds(value: Any) -> Any:
    return durations.seconds(value) if isinstance(value, str) else value


Written = Annotated[str, StringConstraints(pattern=durations.PATTERN)]
Seconds = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(
        _seconds,
        json_schema_input_type=Annotated[float, Field(gt=0)]
        | Annotated[str, StringConstraints(pattern=durations.PATTERN)],
    ),
]
"""More than none: a number of seconds, or a text with units, such as `5m`."""
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A part of the tree: immutable, no unknown keys, documented by its field docstrings."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class TlsSettings(Section):
    """Certificate of a port, as PEM files. They are read again when they change."""

    certificate: Path | None = None
    """Certificate of the server, with those between it and its authority; without one the port speaks plain HTTP."""
    key: Path | None = None
    """Its private key."""

    def model_post_init(self, _: Any, /) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together; give both, or neither for plain HTTP")


class MutualTlsSettings(TlsSettings):
    """Certificate of a port, and the authority of those who may ask there. Files are read again when they change."""

    client_ca: Path | None = None
    """Authority (PEM) of clients: over TLS, only those with a certificate of it get an answer. Needs no right in the
    cluster to ask about anybody, so agents know it, too."""

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca: clients can only be checked over TLS; give certificate and key")
