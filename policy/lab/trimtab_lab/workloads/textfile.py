"""Text files from elsewhere: opened plain or as gzip, and complained about in one line with file and row."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class FileError(ValueError):
    """Something in a file that cannot be used: `FILE:ROW: field: what is wrong, what to do`."""

    def __init__(self, path: str | Path, row: int, field: str, problem: str) -> None:
        super().__init__(path, row, field, problem)  # as they came: exceptions of workers travel by their arguments

    def __str__(self) -> str:
        return "{}:{}: {}: {}".format(*self.args)


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """The file as UTF-8 text, decompressed if its name ends in `.gz`. Raises FileError also while it is read."""
    opener = gzip.open if str(path).casefold().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            yield lines
    except (gzip.BadGzipFile, zlib.error) as error:
        raise FileError(path, 1, "file", f"is no intact gzip ({error}): rename it if it is plain text") from error
    except EOFError as error:
        raise FileError(path, 1, "file", "ends in the middle of its gzip stream: fetch it again") from error
    except UnicodeDecodeError as error:
        raise FileError(path, 1, "file", f"is no UTF-8 text ({error.reason}): a gzip needs a name in .gz") from error
    except csv.Error as error:
        raise FileError(path, 1, "file", f"is no CSV ({error})") from error
    except OSError as error:
        raise FileError(path, 1, "file", f"cannot be read: {error.strerror or error}") from error
