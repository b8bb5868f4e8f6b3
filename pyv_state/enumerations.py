"""Enumerations whose classes are made in a fraction of the time.

The standard library does much for each class and each member that ours do not use: a twentieth of every start. Those of
modules that each run imports are made by the ones here, whose members are found by name, by value and in order. Flags,
aliases and `_missing_` are in the standard library alone. Type checkers see the standard classes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enum import Enum as Enum
    from enum import IntEnum as IntEnum
    from enum import StrEnum as StrEnum
    from enum import auto as auto
    from enum import unique as unique
else:

    class auto:  # noqa: N801 - the standard name
        """In place of a value: one more than the value before, from 1 on."""

    def unique(cls):
        """As `enum.unique`; values here are so anyway."""
        return cls

    class _Maker(type):
        """Makes the class of a statement `class Name(Enum)`, and is what is done with the class."""

        def __new__(cls, name, bases, namespace):
            values, rest, last = {}, {}, 0
            for key, value in namespace.items():
                if key[0] == "_" or hasattr(value, "__get__"):
                    rest[key] = value
                else:
                    values[key] = last = last + 1 if value is auto or isinstance(value, auto) else value
            made = type.__new__(cls, name, bases, rest)
            named, valued = {}, {}
            for key, value in values.items():
                member = made._of(made, value)
                member.__dict__.update(name=key, value=value)
                type.__setattr__(made, key, member)
                named[key] = member
                if valued.setdefault(value, member) is not member:
                    raise ValueError(f"{name}.{key}: {valued[value]!r} has the value already")
            type.__setattr__(made, "__members__", named)
            type.__setattr__(made, "_valued", valued)
            return made

        def __call__(cls, value):
            try:
                return cls._valued[value]
            except (KeyError, TypeError):
                if isinstance(value, cls):
                    return value
                raise ValueError(f"{value!r} is not a valid {cls.__qualname__}") from None

        def __getitem__(cls, name):
            return cls.__members__[name]

        def __iter__(cls):
            return iter(cls.__members__.values())

        def __reversed__(cls):
            return reversed(cls.__members__.values())

        def __len__(cls):
            return len(cls.__members__)

        def __bool__(cls):
            return True

        def __contains__(cls, value):
            return isinstance(value, cls) or value in cls._valued

        def __setattr__(cls, name, value):
            raise AttributeError(f"cannot set {name!r} of {cls.__name__}: its members stay")

        __delattr__ = __setattr__

        def __repr__(cls):
            return f"<enum {cls.__name__!r}>"

    class Enum(metaclass=_Maker):
        """As `enum.Enum`."""

        _of = staticmethod(lambda kind, value: object.__new__(kind))

        def __setattr__(self, name, value):
            raise AttributeError(f"cannot set {name!r} of {self!r}")

        def __repr__(self):
            return f"<{type(self).__name__}.{self.name}: {self.value!r}>"

        def __str__(self):
            return f"{type(self).__name__}.{self.name}"

        def __reduce_ex__(self, protocol):
            return type(self), (self.value,)

        def __copy__(self):
            return self

        def __deepcopy__(self, memo):
            return self

    class IntEnum(int, Enum):
        """As `enum.IntEnum`."""

        _of = int.__new__
        __repr__ = Enum.__repr__
        __str__ = int.__repr__

    class StrEnum(str, Enum):
        """As `enum.StrEnum`; `auto` is not for it."""

        _of = str.__new__
        __repr__ = Enum.__repr__
        __str__ = str.__str__
