"""Backups of a server: ``nodus admin backup`` makes one while the server runs, ``nodus admin restore`` puts it back.

A backup is a directory: ``backup.json`` says what belongs to it and is written last, in one step, so that a run that
was killed leaves the backup of before, whole. Blobs never change; a later backup into the same directory copies the new
ones only.
"""

from nodus.server.backup.making import Made, make
from nodus.server.backup.manifest import BackupRefused
from nodus.server.backup.restoring import Restored, restore

__all__ = ["BackupRefused", "Made", "Restored", "make", "restore"]
