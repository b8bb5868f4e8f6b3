"""Frozen dataclasses whose methods are written once.

The standard decorator writes and compiles the text of six methods for each class, and its module imports a part of
Python's compiler: a tenth of every start. Those of the configuration, of instructions and of results are made by the
one here: the same fields, and what `dataclasses` does with instances works on them, `asdict` for one. Type checkers
see the standard decorator and functions.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import MISSING as MISSING
    from dataclasses import Field as Field
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import is_dataclass as is_dataclass
    from dataclasses import replace as replace
else:
    from typing import ClassVar

    class MISSING:
        """In place of a default."""

    class Field:
        """What is known about a field; as `dataclasses.Field`."""

        __slots__ = ("compare", "default", "default_factory", "init", "metadata", "name", "repr", "type")

        def __init__(self, default, default_factory, init, repr, compare, metadata):
            self.name = ""
            self.type = None
            self.default = default
            self.default_factory = default_factory
            self.init = init
            self.repr = repr
            self.compare = compare
            self.metadata = metadata

    def field(*, default=MISSING, default_factory=MISSING, init=True, repr=True, compare=True, metadata=None):
        """As `dataclasses.field`."""
        return Field(default, default_factory, init, repr, compare, metadata or {})

    def fields(record):
        """As `dataclasses.fields`, of a class or an instance that was made here."""
        return tuple(record._items.values())

    def is_dataclass(what):
        """Whether a class, or the class of an instance, was made here."""
        return hasattr(what, "_items")

    def replace(record, /, **changes):
        """As `dataclasses.replace`."""
        if "_template" not in type(record).__dict__:
            from dataclasses import replace  # of a class that derives from one made here

            return replace(record, **changes)
        kept = {name: getattr(record, name) for name in record._template if name not in changes}
        return type(record)(**kept, **changes)

    def dataclass(*, frozen):
        """As `dataclasses.dataclass(frozen=True)`."""
        assert frozen, "only frozen ones"
        return _made

    def _made(cls):
        found = {}
        for base in cls.__mro__[:0:-1]:
            found |= base.__dict__.get("_items", {})
        for name, kind in cls.__annotations__.items():
            if kind is not ClassVar and getattr(kind, "__origin__", None) is not ClassVar:
                found[name] = _field_of(cls, name, kind)
        cls._items = found
        items = [item for item in found.values() if item.init]
        cls._template = {item.name: item.default for item in items}
        cls._names = tuple(cls._template)
        missing = [item for item in items if item.default is MISSING]
        cls._factories = [(item.name, item.default_factory) for item in missing if item.default_factory is not MISSING]
        cls._needed = len(missing) - len(cls._factories)
        """How many fields have no default: they come first."""
        cls._finishes = hasattr(cls, "__post_init__")
        cls._shown = tuple(item.name for item in found.values() if item.repr)
        cls._compared = tuple(item.name for item in found.values() if item.compare)
        for name, method in _METHODS.items():
            setattr(cls, name, method)
        return cls

    def _field_of(cls, name, kind):
        """The field of an annotation, whose default is what the class has under its name."""
        item = cls.__dict__.get(name, MISSING)
        if not isinstance(item, Field):
            item = field(default=item)
        elif item.default is MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, item.default)
        item.name, item.type = name, kind
        return item

    class _Standard:
        """An attribute of the classes of `dataclasses`, made when that module asks for it."""

        def __init__(self, name):
            self._name = name

        def __get__(self, instance, owner):
            import dataclasses

            given = []
            for item in owner._items.values():
                kept = {name: getattr(item, name) for name in ("init", "repr", "compare", "metadata")}
                for name in ("default", "default_factory"):
                    if (value := getattr(item, name)) is not MISSING:
                        kept[name] = value
                given.append((item.name, item.type, dataclasses.field(**kept)))
            made = dataclasses.make_dataclass(owner.__name__, given, init=False, repr=False, eq=False, frozen=True)
            for name in _STANDARD:
                setattr(owner, name, getattr(made, name))
            return getattr(owner, self._name)

    _STANDARD = {name: _Standard(name) for name in ("__dataclass_fields__", "__dataclass_params__")}

    def _init(self, *given, **named):
        kind = type(self)
        values, names = self.__dict__, kind._names
        values.update(kind._template)
        if given:
            if len(given) > len(names):
                raise TypeError(f"{kind.__name__}() takes {len(names)} values, got {len(given)}")
            values.update(zip(names, given, strict=False))
        if named:
            if not named.keys() <= kind._template.keys():
                wrong = next(name for name in named if name not in names)
                raise TypeError(f"{kind.__name__}() takes no {wrong!r}")
            if given and not named.keys().isdisjoint(names[: len(given)]):
                twice = next(name for name in names if name in named)
                raise TypeError(f"{kind.__name__}() got two values for {twice!r}")
            values.update(named)
        if len(given) < kind._needed:
            for name in names[len(given) : kind._needed]:
                if values[name] is MISSING:
                    raise TypeError(f"{kind.__name__}() misses a value for {name!r}")
        for name, factory in kind._factories:
            if values[name] is MISSING:
                values[name] = factory()
        if kind._finishes:
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
        _refuse(f"cannot assign to field {name!r}")

    def _delattr(self, name):
        _refuse(f"cannot delete field {name!r}")

    def _refuse(text):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(text)

    _METHODS = {
        "__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__setattr__": _setattr,
        "__delattr__": _delattr, **_STANDARD,
    }  # fmt: skip
