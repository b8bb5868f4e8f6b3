"""Named tuples whose methods are written once.

The standard library compiles the text of a method for each class, and checks each annotation: a twentieth of every
start. Those of modules that each run imports are made by the one here: tuples with the same attributes. Type checkers
see the standard one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter

    _FEW = 100

    class _Maker(type):
        """Makes the class of a statement `class Name(NamedTuple)`."""

        def __new__(cls, name, bases, namespace):
            if bases != (_MARK,):
                raise TypeError(f"{name}: a named tuple has no other bases: derive from it")
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace[field] for field in fields if field in namespace}
            needed = fields[: len(fields) - len(defaults)]
            if not defaults.keys().isdisjoint(needed):
                raise TypeError(f"{name}: a field without a default follows one with a default")
            for place, field in enumerate(fields):
                namespace[field] = _tuplegetter(place, f"Alias for field number {place}")

            def first(cls, *given, **named):
                """Until there are many instances, or one needs names: most classes have few in a run, and compiling
                one's own function takes as long as making a hundred of them this way."""
                nonlocal left
                left -= 1
                if left > 0 and not named:
                    short = count - len(given)
                    if not short:
                        return make(cls, given)
                    if 0 < short <= len(last):
                        return make(cls, given + last[len(last) - short :])
                made.__new__ = staticmethod(_maker_of(name, fields, defaults))
                return made.__new__(cls, *given, **named)

            left, count, last, make = _FEW, len(fields), tuple(defaults.values()), tuple.__new__
            own = {"_fields": fields, "__match_args__": fields, "_field_defaults": defaults, "__new__": first}
            made = type(name, (tuple,), _METHODS | own | namespace)
            return made

    class _NamedTuple:
        """As `typing.NamedTuple`, in the form of a class statement."""

        def __mro_entries__(self, bases):
            return (_MARK,)

    def _maker_of(name, fields, defaults):
        """The function that makes instances; positions and names are those of the fields."""
        given = "".join(f"{field}, " for field in fields)
        text = f"lambda _cls, {given}: _tuple_new(_cls, ({given}))"
        made = eval(text, {"_tuple_new": tuple.__new__, "__builtins__": {}})
        made.__name__, made.__qualname__ = "__new__", f"{name}.__new__"
        made.__defaults__ = tuple(defaults.values())
        return made

    def _make(cls, values):
        """A new one of the values in their order."""
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, /, **changes):
        """A new one, with other values for these fields."""
        made = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise ValueError(f"Got unexpected field names: {list(changes)!r}")
        return made

    def _asdict(self):
        """Field -> value."""
        return dict(zip(self._fields, self, strict=True))

    def _repr(self):
        shown = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({shown})"

    def _getnewargs(self):
        """For copies and pickles."""
        return tuple(self)

    _METHODS = {
        "__slots__": (), "_make": classmethod(_make), "_replace": _replace, "_asdict": _asdict, "__repr__": _repr,
        "__getnewargs__": _getnewargs,
    }  # fmt: skip
    _MARK = type.__new__(_Maker, "NamedTuple", (), {})
    NamedTuple = _NamedTuple()
