"""Becomes another program, after what must happen between fork and exec. Run as a script; loads nothing else.

    python -I -S _exec.py '{"parent": PID, "binds": [[SOURCE, TARGET], …]}' PROGRAM [ARGUMENT…]

Python's own hook for this, `preexec_fn`, can deadlock in a program that has threads.
"""

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


def _checked(result: int, doing: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        sys.exit(f"{doing}: {os.strerror(error)}")


def _main(order: str, *command: str) -> None:
    options = json.loads(order)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        # Nothing outlives the parent, however it ends. The signal stays set across exec.
        _checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        if os.getppid() != options["parent"]:
            sys.exit("the parent has ended")
        if options["binds"]:
            _checked(libc.unshare(_CLONE_NEWNS), "a mount namespace of its own")
            _checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")
        for source, target in options["binds"]:
            doing = f"mounting {source} on {target}"
            _checked(libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None), doing)
    os.execv(command[0], command)  # noqa: S606


_main(*sys.argv[1:])
