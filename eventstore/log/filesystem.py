"""Which file system a path is on, and whether SQLite's locks work there.

WAL needs shared memory between all processes that use the file, and locks that every one of them sees. Network file
systems give neither: two hosts would write over each other without an error.

Order     the mount with the longest path that holds the file; of several mounted on one path the last
Not here  systems without `/proc/self/mounts`: there every path is accepted
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from rolloutlog.eventstore.errors import InvalidSettings

MOUNTS_FILE = "/proc/self/mounts"

# fmt: off
NETWORK_TYPES = frozenset((
    "9p", "afs", "auristorfs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "davfs", "davfs2", "gcsfuse",
    "gfs2", "glusterfs", "gpfs", "juicefs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2",
    "s3fs", "smb2", "smb3", "smbfs", "sshfs", "vboxsf", "webdav", "wekafs",
))
FUSE_NETWORK_TYPES = frozenset((
    "alluxio", "beegfs", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "cifs", "curlftpfs", "davfs", "davfs2",
    "gcsfuse", "gdfuse", "glusterfs", "goofys", "google-drive-ocamlfuse", "gvfsd-fuse", "hdfs", "juicefs", "mfs",
    "moosefs", "mount-s3", "mountpoint-s3", "nfs", "quobyte", "rclone", "s3fs", "seaweedfs", "smbnetfs", "sshfs",
    "vmhgfs-fuse", "webdav",
))
# fmt: on


class Mount(NamedTuple):
    """One line of the mount table."""

    path: str
    kind: str


def read_mounts() -> str:
    """The machine's mount table as text, empty where it has none."""
    try:
        return Path(MOUNTS_FILE).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def mount_of(path: str, mounts: str) -> Mount | None:
    """The mount that holds `path` (absolute, links resolved), None when the table names none."""
    best: Mount | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = Mount(_unescape(fields[1]), fields[2])
        inside = path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
        # >= because a later mount on the same path hides the earlier one
        if inside and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def refuse_network_file_system(path: str, mounts: str) -> None:
    """Raise InvalidSettings, naming the file system, when `path` is on one that SQLite can't lock."""
    mount = mount_of(os.path.realpath(path), mounts)
    if mount is None:
        return
    family, _, name = mount.kind.partition(".")
    if mount.kind in NETWORK_TYPES or (family in ("fuse", "fuseblk") and name in FUSE_NETWORK_TYPES):
        raise InvalidSettings(
            f"log file {path}: expected a local file system, got {mount.kind} (mounted on {mount.path}), on which "
            f"SQLite's locks do not hold and records get lost; use a path on a local disk, or a kafka:// log"
        )


def _unescape(text: str) -> str:
    # the table writes space, tab, newline and backslash as octal, e.g. \040
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
