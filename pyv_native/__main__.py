"""Prints the LLVM IR of a function of the native subset and of all that it calls."""

import argparse
import sys
from pkgutil import resolve_name
from types import FunctionType

from pyv_native.arena import is_callback
from pyv_native.errors import NativeError
from pyv_native.module import function_of, module_context, module_text
from pyv_native.records import Scalar


def main(arguments: list[str] | None = None) -> int:
    """Print the IR; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pyv_native", description=__doc__)
    parser.add_argument("module", help="such as npu_device.units.stepper")
    parser.add_argument("function", help="such as next_cycle")
    parser.add_argument("--checked", action="store_true", help="the checked build")
    options = parser.parse_args(arguments)
    try:
        function = resolve_name(f"{options.module}:{options.function}")
    except (ImportError, AttributeError) as error:
        parser.error(str(error))
    if not isinstance(function, FunctionType):
        parser.error(f"{options.module}.{options.function} is no function")
    try:
        parameter = next(iter(function_of(function).parameters.values()), None)
        root = parameter.record if isinstance(parameter, Scalar) else None
        callbacks = [value for value in vars(sys.modules[function.__module__]).values() if is_callback(value)]
        links = {declaration: slot for slot, declaration in enumerate(callbacks)}
        sys.stdout.write(module_text([function], module_context([function], root, {}, links, options.checked)))
    except NativeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
