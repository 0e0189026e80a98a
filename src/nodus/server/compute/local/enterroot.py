"""Changes into a root file system of a stranger's and runs one of its programs there, without privileges.

It runs inside a sandbox, on the host's Python, before anything of the stranger's does: none of its libraries, loaders
or settings are looked at until its directory is the root and no privilege is left. Standard library only, run as a
file::

    python -I -S enterroot.py PLAN.json

The plan is ``{"root", "cwd", "uid", "drop", "env", "argv", "processes"}``: ``drop`` says whether this is root, which
has to become ``uid``; ``processes`` is a limit, or null.
"""

import ctypes
import errno
import json
import os
import resource
import sys

NOT_FOUND, NOT_STARTED = 127, 126  # as a shell's
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_LAST_CAPABILITY = 63
_CAPABILITY_VERSION_3 = 0x20080522


def main(plan_path: str) -> int:
    """Do it; returns only where that failed, with the exit code."""
    with open(plan_path, "rb") as file:
        plan = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)  # loaded while the root is the host's
    os.chroot(plan["root"])
    os.chdir("/")
    uid = plan["uid"]
    if plan["drop"]:
        for capability in range(_LAST_CAPABILITY + 1):
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # one that the kernel doesn't know is none to drop
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _give_up_capabilities(libc)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if plan["processes"] is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (plan["processes"], plan["processes"]))
    try:
        os.chdir(plan["cwd"])
    except OSError:
        pass  # an image's working directory need not be there
    return _execute(plan["argv"], plan["env"])


def _give_up_capabilities(libc: ctypes.CDLL) -> None:
    """Empty every set of this process, whatever it was given; the program can't have any."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _execute(argv: list[str], env: dict[str, str]) -> int:
    error = None
    for directory in env["PATH"].split(":") if "/" not in argv[0] else [""]:
        try:
            os.execve(os.path.join(directory, argv[0]) if directory else argv[0], argv, env)
        except OSError as failure:
            if error is None or failure.errno not in (errno.ENOENT, errno.ENOTDIR):
                error = failure
    found = error.strerror if error is not None else "no PATH"
    print(f"{argv[0]}: {found}", file=sys.stderr)  # noqa: T201 - the log of the sandbox
    return NOT_FOUND if error is None or error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_STARTED


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
