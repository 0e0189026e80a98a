"""Reading tar archives of strangers: the library takes some of their headers into memory whole, whatever their size."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from pathlib import Path

HEADER_LIMIT_BYTES = 1 << 20
"""Of a long name or of a member's further attributes; a path has at most 4096."""
BROKEN: tuple[type[Exception], ...] = (
    tarfile.TarError, EOFError, ValueError, KeyError, ArithmeticError, OSError, zlib.error, lzma.LZMAError,
)  # fmt: skip
"""What reading and extracting raise for archives that are broken, or say what can't be."""
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class ArchiveRefused(tarfile.TarError):
    """An archive is sound, and not read all the same."""


class BoundedTarInfo(tarfile.TarInfo):
    """A member whose headers are bounded. Sparse files are refused: their maps have no bound."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > HEADER_LIMIT_BYTES:
            raise ArchiveRefused(f"it has a header of {self.size} bytes; at most {HEADER_LIMIT_BYTES} are read")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse()
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]

    def _proc_gnusparse_00(self, *given: object) -> None:
        raise _sparse()

    def _proc_gnusparse_01(self, *given: object) -> None:
        raise _sparse()

    def _proc_gnusparse_10(self, *given: object) -> None:
        raise _sparse()


def _sparse() -> ArchiveRefused:
    return ArchiveRefused("it holds a sparse file; pack it without (GNU tar: not with --sparse)")


def open_tar(path: Path) -> tarfile.TarFile:
    """Open an archive, compressed or not, for reading; its members' headers take little memory.

    Raises:
        tarfile.TarError: It is none; at a member, that its headers are too large, or that it is a sparse file.
        OSError: It can't be read.
    """
    return tarfile.open(path, "r:*", tarinfo=BoundedTarInfo)
