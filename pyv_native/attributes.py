"""Where attributes of Python objects lie, for native code that looks at them too often for the interface of CPython.

A class says by `__slots__` which of its attributes have a place of their own in each object. CPython keeps the offset
of the place in the descriptor of the class (`PyMemberDescrObject`, `PyMemberDef`); it has been the same since 3.8.
"""

import ctypes
from types import MemberDescriptorType

_OBJECT = 16
"""`Py_T_OBJECT_EX`: the kind of member that a slot is."""
_MEMBER = 5 * ctypes.sizeof(ctypes.c_void_p)
"""Where a descriptor has its member: behind its own head, its class and two names."""


class _Member(ctypes.Structure):
    """`PyMemberDef`."""

    _fields_ = (("name", ctypes.c_char_p), ("kind", ctypes.c_int), ("offset", ctypes.c_ssize_t))


def slot_of(owner: object, name: str) -> int:
    """The address of the pointer to an attribute of an object; 0 where it has no such place: it is a property, or it
    lies in the object's dictionary."""
    descriptor = getattr(type(owner), name, None)
    if not isinstance(descriptor, MemberDescriptorType):
        return 0
    member = ctypes.POINTER(_Member).from_address(id(descriptor) + _MEMBER).contents
    if member.kind != _OBJECT or member.name != name.encode():
        return 0
    address = id(owner) + member.offset
    held = ctypes.c_void_p.from_address(address).value
    return address if held == id(getattr(owner, name)) else 0
