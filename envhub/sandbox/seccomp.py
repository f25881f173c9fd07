"""The system-call filter of a candidate process, as a classic BPF program in bytes."""

import functools
import platform
import struct

from envhub.errors import EnvironmentFault

_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
_AF_UNIX, _SOCK_STREAM = 1, 1

# name: (x86_64, aarch64)
_DENIED = {
    "socket": (41, 198),
    "bind": (49, 200),  # names in the network's namespace, which others see
    "sendmsg": (46, 211),  # would hand descriptors to the parent
    "sendmmsg": (307, 269),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
_SIGNALS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
_SOCKETPAIR, _CLONE, _CLONE3, _PRLIMIT64 = (53, 199), (56, 220), (435, 435), (302, 261)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def supported() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() in _MACHINES


@functools.cache
def build_filter(*, signals: bool, machine: str | None = None) -> bytes:
    """The filter for `machine` (this one when not given); `signals` allows sending signals.

    Denied calls fail with EPERM. Raises `EnvironmentFault` for a machine whose call numbers are not known.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise EnvironmentFault(f"the process sandbox knows no system-call filter for {machine!r}")
    column, arch = _MACHINES[machine]
    denied = {**_DENIED, **({} if signals else _SIGNALS)}
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":  # the x32 calls have numbers of their own
        program += [(_JUMP_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _EPERM)]
    for numbers in denied.values():
        program += [(_JUMP_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _EPERM)]
    program += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ENOSYS)]
    program += [
        (_JUMP_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _ARGUMENTS),
        (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 0, 4, _PRLIMIT64[column]),
        (_LOAD, 0, 0, _ARGUMENTS),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    # an anonymous stream pair reaches nobody else, and asyncio needs one
    program += [
        (_JUMP_EQUAL, 0, 7, _SOCKETPAIR[column]),
        (_LOAD, 0, 0, _ARGUMENTS),
        (_JUMP_EQUAL, 0, 3, _AF_UNIX),
        (_LOAD, 0, 0, _ARGUMENTS + 8),
        (_AND, 0, 0, 0xF),
        (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
