"""What Linux offers to keep processes apart. Elsewhere these do nothing; the judge's watchdog
stands in for them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522

HERE = sys.platform == "linux"


def adopt_orphans(yes: bool = True) -> None:
    """Whatever our descendants leave behind becomes our child, even if it left its session."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def hide_memory() -> None:
    """No process of the same user may trace this one, or open its memory and its files."""
    _prctl(_PR_SET_DUMPABLE, 0)


def die_with_parent() -> None:
    """Be killed when the parent ends. Changing the user resets it: call it afterwards."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_powers() -> None:
    """Give up root's powers for good: no program that is run later brings them back."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if HERE and os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


def data_bytes() -> int:
    """What this process has of the memory that ``RLIMIT_DATA`` counts."""
    if not HERE:
        return 0
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _prctl(option: int, value: int) -> None:
    if HERE:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
