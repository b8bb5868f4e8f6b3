"""Frozen dataclasses whose methods are written once.

The standard decorator writes and compiles the text of six methods for each class, half a millisecond of every start.
Those of the configuration and of results are made by the one here: the same fields, `fields`, `replace` and `asdict`
of `dataclasses` work, and type checkers see the standard decorator.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from dataclasses import MISSING, FrozenInstanceError

    def dataclass(*, frozen):
        """As `dataclasses.dataclass(frozen=True)`."""
        assert frozen, "only frozen ones"
        return _made

    def _made(cls):
        cls.__doc__ = cls.__doc__ or cls.__name__  # else `dataclasses` writes one, from the signature
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        cls.__dataclass_params__.frozen = True  # for classes that derive from it
        items = dataclasses.fields(cls)
        cls._given = {item.name: item for item in items if item.init}
        cls._shown = tuple(item.name for item in items if item.repr)
        cls._compared = tuple(item.name for item in items if item.compare)
        for name, method in _METHODS.items():
            setattr(cls, name, method)
        return cls

    def _init(self, *given, **named):
        values, items = self.__dict__, type(self)._given
        if len(given) > len(items):
            raise TypeError(f"{type(self).__name__}() takes {len(items)} values, got {len(given)}")
        for name, value in zip(items, given, strict=False):
            if name in named:
                raise TypeError(f"{type(self).__name__}() got two values for {name!r}")
            named[name] = value
        for name, item in items.items():
            if name in named:
                values[name] = named.pop(name)
            elif item.default is not MISSING:
                values[name] = item.default
            elif item.default_factory is not MISSING:
                values[name] = item.default_factory()
            else:
                raise TypeError(f"{type(self).__name__}() misses a value for {name!r}")
        if named:
            raise TypeError(f"{type(self).__name__}() takes no {next(iter(named))!r}")
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    def _repr(self):
        shown = (f"{name}={getattr(self, name)!r}" for name in self._shown)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _eq(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._compared)

    def _hash(self):
        return hash(tuple(getattr(self, name) for name in self._compared))

    def _setattr(self, name, value):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def _delattr(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    _METHODS = {
        "__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__setattr__": _setattr,
        "__delattr__": _delattr,
    }  # fmt: skip
