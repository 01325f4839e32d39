"""What the API server's answers mean: a Status becomes an error of `trimtab.errors`, a List page its continue token."""

from __future__ import annotations

import math

import msgspec

from trimtab import errors

BY_STATUS: dict[int, type[errors.ApiError]] = {
    401: errors.Forbidden,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.Overloaded,
    409: errors.Conflict,
    410: errors.Gone,
    429: errors.Overloaded,
}
TEXT_LIMIT = 200
LONGEST_WAIT_SECONDS = 600.0
"""Whoever asks us to stay away for longer is asked again before: it may be no API server that says so."""


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float | None = None


class ApiStatus(msgspec.Struct):
    """metav1.Status, as the API server sends it instead of an object."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None

    def error(self, code: int = 0, retry_after: float | None = None) -> errors.ApiError:
        """The error that this means; `code` is the HTTP status where there is one."""
        code = code or self.code
        if retry_after is None and self.details:
            retry_after = _bounded(self.details.retry_after_seconds)
        message = self.message or self.reason or f"status {code}"
        return _class_of(code, self.reason)(message, status=code, reason=self.reason, retry_after=retry_after)


class _ListMeta(msgspec.Struct, frozen=True):
    continue_: str = msgspec.field(default="", name="continue")


class _ListPage(msgspec.Struct):
    metadata: _ListMeta = _ListMeta()


_STATUS = msgspec.json.Decoder(ApiStatus)
_PAGE = msgspec.json.Decoder(_ListPage)


def error_from(method: str, path: str, code: int, retry_after: str | None, content: bytes) -> errors.ApiError:
    """The error that a non-2xx answer stands for; its message is the Status' own where the body is one."""
    try:
        status = _STATUS.decode(content)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # a load balancer's page, a plain-text 429 of the API server
        text = content[:TEXT_LIMIT].decode(errors="replace").strip()
        status = ApiStatus(message=f"{method} {path} was answered with {code}: {text or 'no reason given'}")
    return status.error(code, _seconds(retry_after))


def status_of(content: bytes) -> ApiStatus:
    """Decode a Status, for instance the object of an ERROR event. Raises msgspec.DecodeError."""
    try:
        return _STATUS.decode(content)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"no Status: {error}") from error


def next_page(content: bytes) -> str:
    """Token for the next page of a list; empty on the last."""
    return _PAGE.decode(content).metadata.continue_


def _class_of(code: int, reason: str) -> type[errors.ApiError]:
    if code == 409 and reason == "AlreadyExists":
        return errors.AlreadyExists
    if known := BY_STATUS.get(code):
        return known
    return errors.Invalid if 400 <= code < 500 else errors.Overloaded


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds; its other form, a date, is not used by API servers and ignored."""
    whole = retry_after and retry_after.isascii() and retry_after.isdigit()  # "²" is a digit, and no number
    return _bounded(float(retry_after)) if retry_after and whole else None


def _bounded(seconds: float | None) -> float | None:
    """What a wait may be; None for what is none."""
    if seconds is None or not math.isfinite(seconds):
        return None if seconds is None or seconds != math.inf else LONGEST_WAIT_SECONDS
    return min(seconds, LONGEST_WAIT_SECONDS) if seconds >= 0 else None
