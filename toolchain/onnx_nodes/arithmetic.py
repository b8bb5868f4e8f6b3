"""Decompositions of elementwise operators, reductions and sums."""

import itertools
import math

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition
from toolchain.onnx_nodes.view import NodeView


def open_limits(node: NodeView) -> bool:
    """Check whether a limit of Clip is known only at run time."""
    return any(node.has(index) and node.constant(index) is None for index in (1, 2))


SIXTHS = {"alpha": 1 / 6, "beta": 0.5}
"""Parameters of the device's HardSigmoid."""


def _line(node: NodeView) -> tuple[float, float]:
    """Return (slope, offset) of a HardSigmoid."""
    return node.attribute("alpha", 0.2), node.attribute("beta", 0.5)


def differs_from_sixths(node: NodeView) -> bool:
    """Check whether the slope or offset of a HardSigmoid differs from SIXTHS, after rounding to its input's type.
    Paddle's slope of 0.1666667 differs by two rounding steps, which is visible for nearly closed gates."""
    alpha, beta = _line(node)
    return bool(beta != SIXTHS["beta"] or np.array(6 * alpha, node.numpy_type(0)) != 1)


def hard_sigmoid(parts: Decomposition) -> None:
    """Compose max(0, min(1, alpha x + beta)). If beta is that of SIXTHS, the device's HardSigmoid of 6 alpha x is used:
    passes fold the factor into the weights of a preceding product, and any remainder follows its sum."""
    alpha, beta = _line(parts.node)
    if beta == SIXTHS["beta"]:
        scaled = parts.make("Mul", parts.input(0), parts.number(6 * alpha))
        parts.result("HardSigmoid", scaled, alpha=SIXTHS["alpha"], beta=beta)
        return
    line = parts.make("Add", parts.make("Mul", parts.input(0), parts.number(alpha)), parts.number(beta))
    parts.result("Clip", line, parts.number(0), parts.number(1))


def has_factor(node: NodeView) -> bool:
    """Check whether a Swish has a factor alpha."""
    return bool(node.attribute("alpha", 1.0) != 1)


def swish_factors(parts: Decomposition, x: str, alpha: float) -> tuple[str, str]:
    """Return x and Sigmoid(alpha x)."""
    return x, parts.make("Sigmoid", parts.make("Mul", x, parts.number(alpha)))


def swish(parts: Decomposition) -> None:
    parts.result("Mul", *swish_factors(parts, parts.input(0), parts.node.attribute("alpha", 1.0)))


def clip(parts: Decomposition) -> None:
    """Compose Clip with computed limits; the upper limit has priority."""
    x = parts.input(0)
    if parts.node.has(1):
        x = parts.make("Max", x, parts.input(1))
    if parts.node.has(2):
        x = parts.make("Min", x, parts.input(2))
    parts.result("Identity", x)


def sign(parts: Decomposition) -> None:
    """Compose Sign; 0 and NaN are unchanged."""
    x, zero = parts.input(0), parts.number(0)
    above, below = (parts.make(name, x, zero) for name in ("Greater", "Less"))
    if np.dtype(parts.kind).kind != "f":
        parts.result("Sub", *(parts.cast(flag, parts.kind) for flag in (above, below)))
        return
    lower = parts.make("Where", below, parts.number(-1), x)
    parts.result("Where", above, parts.number(1), lower)


def is_nan(parts: Decomposition) -> None:
    parts.result("Not", parts.make("Equal", parts.input(0), parts.input(0)))


def is_infinite(parts: Decomposition) -> None:
    node, x = parts.node, parts.input(0)
    checks = [
        parts.make("Equal", x, parts.number(value))
        for name, value in (("detect_positive", math.inf), ("detect_negative", -math.inf))
        if node.attribute(name, 1)
    ]
    if not checks:
        node.refuse("detect_negative=0 and detect_positive=0: one of them must be 1")
    parts.result("Or", checks[0], checks[-1])


def xor(parts: Decomposition) -> None:
    parts.result("Not", parts.make("Equal", parts.input(0), parts.input(1)))


def by_divisor(node: NodeView) -> bool:
    """Check whether the result of a Mod has the sign of the divisor."""
    return not node.attribute("fmod", 0)


def modulo(parts: Decomposition) -> None:
    """Compose Mod with the sign of the divisor: it is added to a remainder of opposite sign."""
    a, b, zero = parts.input(0), parts.input(1), parts.number(0)
    if np.dtype(parts.kind).kind == "f":
        parts.node.refuse("attribute fmod=0 with floats: supported is 1")
    remainder = parts.make("Mod", a, b, fmod=1)
    signs = (parts.make("Less", operand, zero) for operand in (remainder, b))
    differs = parts.make("Not", parts.make("Equal", *signs))
    wrong = parts.make("And", differs, parts.make("Not", parts.make("Equal", remainder, zero)))
    parts.result("Where", wrong, parts.make("Add", remainder, b), remainder)


_EXPONENT = 64
"""Maximum exponent of an integer power: higher powers of bases other than -1, 0 and 1 exceed 64 bits."""
_PRODUCTS = 1 << 24
"""Maximum number of multiplications of an integer matrix product, which no engine supports."""


def integer_power(parts: Decomposition) -> None:
    """Compose powers of integers with constant exponents, by repeated squaring."""
    node = parts.node
    values = np.asarray(node.needed(1, "the exponent of an integer"))
    exponents = values.astype(np.int64)
    if (exponents != values).any() or exponents.min(initial=0) < 0 or exponents.max(initial=0) > _EXPONENT:
        node.refuse(f"exponents of integers must be whole numbers of 0..{_EXPONENT}; cast the base to a float")
    power, unit, total = parts.input(0), parts.number(1), ""
    for bit in range(max(1, int(exponents.max(initial=0)).bit_length())):
        if bit:
            power = parts.make("Mul", power, power)
        bits = (exponents >> bit & 1).astype(np.bool_)
        factor = power if bits.all() else parts.make("Where", parts.constant(bits), power, unit)
        if bit and not bits.any():
            continue
        total = parts.make("Mul", total, factor) if total else factor
    parts.reshaped_result(total)


def compose_integer_product(parts: Decomposition) -> None:
    """Compose a product of integer matrices from elementwise products and their sums."""
    node = parts.node
    (*lead_a, m, k), (*lead_b, _, n) = (
        shape if len(shape) > 1 else (1, *shape) if index == 0 else (*shape, 1)
        for index, shape in enumerate((node.shape(0), node.shape(1)))
    )
    lead = np.broadcast_shapes(tuple(lead_a), tuple(lead_b))
    count = math.prod((*lead, m, k, n))
    if count > _PRODUCTS:
        node.refuse(
            f"{count} products of {node.info(0).type}: at most {_PRODUCTS}; use MatMulInteger of bytes or floats"
        )
    a = parts.reshaped(parts.input(0), *lead_a, m, k, 1)
    b = parts.reshaped(parts.input(1), *lead_b, 1, k, n)
    products = parts.make("Mul", a, b)
    parts.reshaped_result(parts.make("ReduceSum", products, parts.integers(len(lead) + 1), keepdims=0))


def softplus(parts: Decomposition) -> None:
    """Compose max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    x, unit = parts.input(0), parts.number(1)
    small = parts.make("Exp", parts.make("Neg", parts.make("Abs", x)))
    parts.result("Add", parts.make("Relu", x), parts.make("Log", parts.make("Add", small, unit)))


def tangent(parts: Decomposition) -> None:
    parts.result("Div", parts.make("Sin", parts.input(0)), parts.make("Cos", parts.input(0)))


def _axes(node: NodeView) -> list[int] | None:
    """Return the axes of a reduction as non-negative numbers; None if nothing is reduced."""
    rank = len(node.shape(0))
    axes = node.needed(1, "axes").reshape(-1) if node.has(1) else np.zeros(0, np.int64)
    if not rank:
        return None
    if not axes.size:
        return None if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in axes)


def _turn(parts: Decomposition) -> str:
    """Return an order-reversing operator that is its own inverse. For integers it is BitwiseNot, since the lowest has
    no negative."""
    return "Neg" if np.dtype(parts.kind).kind == "f" else "BitwiseNot"


def reduce_min(parts: Decomposition) -> None:
    node, attributes, turn = parts.node, parts.node.attributes, _turn(parts)
    axes = [parts.input(1)] if node.has(1) else []
    largest = parts.make("ReduceMax", parts.make(turn, parts.input(0)), *axes, **attributes)
    parts.result(turn, largest)


def arg_min(parts: Decomposition) -> None:
    parts.result("ArgMax", parts.make(_turn(parts), parts.input(0)), **parts.node.attributes)


def reduce_product(parts: Decomposition) -> None:
    """Compose a product by repeatedly multiplying the two halves until one row remains."""
    node, x, axes = parts.node, parts.input(0), _axes(parts.node)
    if axes is None:
        parts.result("Identity", x)
        return
    shape = node.shape(0)
    order = [*(axis for axis in range(len(shape)) if axis not in axes), *axes]
    size = math.prod(shape[axis] for axis in axes)
    x = parts.reshaped(parts.make("Transpose", x, perm=order), math.prod(shape) // size, size)
    while size > 1:
        half = size // 2
        product = parts.make("Mul", parts.sliced(x, 1, 0, half), parts.sliced(x, 1, half, 2 * half))
        x = parts.joined([product, *([parts.sliced(x, 1, size - 1, size)] if size % 2 else [])], 1)
        size = half + size % 2
    parts.reshaped_result(x)


def mean(parts: Decomposition) -> None:
    """Compose the elementwise mean of all inputs."""
    count = len(parts.node.proto.input)
    total = parts.make("Sum", *(parts.input(index) for index in range(count)))
    parts.result("Mul", total, parts.number(1 / count))


def lp_normalization(parts: Decomposition) -> None:
    """Compose LpNormalization: division by the norm along an axis; rows of zeros are unchanged."""
    node, x = parts.node, parts.input(0)
    axis, p = node.axis(len(node.shape(0)), -1), int(node.attribute("p", 2))
    along = parts.integers(axis)
    if p == 2:
        norm = parts.make("Sqrt", parts.make("ReduceSum", parts.make("Mul", x, x), along))
    else:
        norm = parts.make("ReduceSum", parts.make("Abs", x), along)
    is_zero = parts.make("Equal", norm, parts.number(0))
    parts.result("Div", x, parts.make("Where", is_zero, parts.number(1), norm))


def log_sum_exp(parts: Decomposition) -> None:
    """Compose ReduceLogSumExp on differences from the maximum, if that is finite."""
    x, axes = parts.input(0), _axes(parts.node)
    if axes is None:
        parts.result("Identity", x)
        return
    along = parts.integers(*axes)
    largest = parts.make("ReduceMax", x, along)
    finite = parts.make("Less", parts.make("Abs", largest), parts.number(math.inf))
    largest = parts.make("Where", finite, largest, parts.number(0))
    sums = parts.make("ReduceSum", parts.make("Exp", parts.make("Sub", x, largest)), along)
    parts.reshaped_result(parts.make("Add", parts.make("Log", sums), largest))


def log_softmax(parts: Decomposition) -> None:
    node, x = parts.node, parts.input(0)
    along = parts.integers(node.axis(len(node.shape(0)), -1))
    shifted = parts.make("Sub", x, parts.make("ReduceMax", x, along))
    sums = parts.make("ReduceSum", parts.make("Exp", shifted), along)
    parts.result("Sub", shifted, parts.make("Log", sums))


def hardmax(parts: Decomposition) -> None:
    """Compose Hardmax: 1 at the first maximum, else 0."""
    node, shape = parts.node, parts.node.shape(0)
    axis = node.axis(len(shape), -1)
    index = parts.make("ArgMax", parts.input(0), axis=axis)
    places = np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))])
    matches = parts.make("Equal", index, parts.constant(places.astype(np.int64)))
    parts.reshaped_result(parts.cast(matches, parts.kind))


def cumulative_sum(parts: Decomposition) -> None:
    """Compose CumSum by sums of 2, 4, 8, ... neighbours; a product with a triangular matrix would spread infinities."""
    shape = parts.node.shape(0)
    axis = int(parts.node.needed(1, "axis").reshape(-1)[0]) % max(len(shape), 1)
    _double_sums(parts, axis, shape[axis])


def _double_sums(parts: Decomposition, axis: int, size: int) -> None:
    reverse = bool(parts.node.attribute("reverse", 0))
    total, count = parts.input(0), 1
    if parts.node.attribute("exclusive", 0):
        total = _move(parts, total, axis, size, 1, reverse)
    while count < size:
        total = parts.make("Add", total, _move(parts, total, axis, size, count, reverse))
        count *= 2
    parts.result("Identity", total)


def _move(parts: Decomposition, x: str, axis: int, size: int, by: int, reverse: bool) -> str:
    """Shift elements along an axis by `by` indices, backward with `reverse`, and fill with zeros."""
    rank, by = len(parts.node.shape(0)), min(by, size)
    if by == size:
        return parts.make("Expand", parts.number(0), parts.integers(*parts.node.shape(0)))
    pads = [0] * 2 * rank
    pads[axis + (rank if reverse else 0)] = by
    part = parts.sliced(x, axis, by, size) if reverse else parts.sliced(x, axis, 0, size - by)
    return parts.make("Pad", part, parts.integers(*pads))


def einsum(parts: Decomposition) -> None:
    """Compose Einsum by pairwise products. Letters in both operands and in the result become a batch of products."""
    node = parts.node
    equation = str(node.attribute("equation")).replace(" ", "")
    inputs, arrow, right = equation.partition("->")
    terms = inputs.split(",")
    ranks = [len(node.shape(index)) for index in range(len(terms))]
    spare_count = max(
        (rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True) if "..." in term),
        default=0,
    )
    spare = [chr(code) for code in range(0x3B1, 0x3B1 + spare_count)]
    for index, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        if "..." in term:
            spare_rank = rank - len(term.replace("...", ""))
            terms[index] = term.replace("...", "".join(spare[len(spare) - spare_rank :]))
    joined = "".join(terms)
    if not arrow:
        right = "..." + "".join(sorted(symbol for symbol in set(joined) - set(spare) if joined.count(symbol) == 1))
    right = right.replace("...", "".join(spare))
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        for letter, size in zip(term, node.shape(index), strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    names = [_full(parts, index, term, sizes) for index, term in enumerate(terms)]
    for index, name in enumerate(names):
        names[index], terms[index] = _diagonal(parts, name, terms[index], sizes)
    total, term = names[0], terms[0]
    for index in range(1, len(terms)):
        later_letters = set(right).union(*terms[index + 1 :])
        total, term = _contract(parts, (total, term), (names[index], terms[index]), later_letters, sizes)
    total, term = _sum(parts, total, term, set(right))
    if right:
        parts.result("Transpose", total, perm=[term.index(letter) for letter in right])
    else:
        parts.result("Identity", total)


def _full(parts: Decomposition, index: int, term: str, sizes: dict[str, int]) -> str:
    """Return an operand with broadcast dimensions of size 1 expanded."""
    shape = [sizes[letter] for letter in term]
    if list(parts.node.shape(index)) == shape:
        return parts.input(index)
    return parts.make("Expand", parts.input(index), parts.integers(*shape))


def _diagonal(parts: Decomposition, x: str, term: str, sizes: dict[str, int]) -> tuple[str, str]:
    """Extract the diagonal for letters that occur twice in a term: elements with equal indices in both dimensions."""
    while twice := next((letter for letter in term if term.count(letter) > 1), ""):
        first, second = term.index(twice), term.rindex(twice)
        others, size = [at for at in range(len(term)) if at not in (first, second)], sizes[twice]
        square = parts.make("Transpose", x, perm=[*others, first, second])
        flat = parts.reshaped(square, *(sizes[term[at]] for at in others), size * size)
        x = parts.sliced(flat, len(others), 0, size * size, size + 1)
        term = "".join(term[at] for at in others) + twice
    return x, term


def _sum(parts: Decomposition, x: str, term: str, letters: set[str]) -> tuple[str, str]:
    """Sum over the letters not in `letters`."""
    axes = [at for at, letter in enumerate(term) if letter not in letters]
    if not axes:
        return x, term
    sums = parts.make("ReduceSum", x, parts.integers(*axes), keepdims=0)
    return sums, "".join(letter for letter in term if letter in letters)


def _contract(
    parts: Decomposition,
    first: tuple[str, str],
    second: tuple[str, str],
    output_letters: set[str],
    sizes: dict[str, int],
) -> tuple[str, str]:
    """Contract two operands; return the product and its letters."""
    a, left = _sum(parts, *first, output_letters | set(second[1]))
    b, right = _sum(parts, *second, output_letters | set(left))
    common = [letter for letter in left if letter in right]
    batch, inner = (
        [letter for letter in common if letter in output_letters],
        [letter for letter in common if letter not in output_letters],
    )
    rows, columns = (
        [letter for letter in left if letter not in common],
        [letter for letter in right if letter not in common],
    )

    def count(letters: list[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    a = parts.make("Transpose", a, perm=[left.index(letter) for letter in (*batch, *rows, *inner)])
    b = parts.make("Transpose", b, perm=[right.index(letter) for letter in (*batch, *inner, *columns)])
    product = parts.make(
        "MatMul", parts.reshaped(a, count(batch), count(rows), count(inner)),
        parts.reshaped(b, count(batch), count(inner), count(columns)),
    )  # fmt: skip
    term = [*batch, *rows, *columns]
    return parts.reshaped(product, *(sizes[letter] for letter in term)), "".join(term)


MAX_ROWS = 6
"""Maximum number of rows of a determinant: each row doubles the number of products."""


def determinant(parts: Decomposition) -> None:
    """Compose the determinant by expansion along rows, from the last row up: minors of the rows below, for all
    combinations of columns."""
    node, shape = parts.node, parts.node.shape(0)
    size, count = shape[-1], math.prod(shape[:-2])
    if size > MAX_ROWS:
        node.refuse(f"a determinant of {size} rows: supported are up to {MAX_ROWS}")
    table = parts.reshaped(parts.input(0), count, size * size)
    below: dict[tuple[int, ...], str] = {}
    for row in reversed(range(size)):
        minors: dict[tuple[int, ...], str] = {}
        for columns in itertools.combinations(range(size), size - row):
            terms = []
            for place, column in enumerate(columns):
                at = row * size + column
                others = columns[:place] + columns[place + 1 :]
                term = parts.sliced(table, 1, at, at + 1)
                terms.append(parts.make("Mul", term, below[others]) if others else term)
            minors[columns] = terms[0]
            for place, term in enumerate(terms[1:]):
                minors[columns] = parts.make("Add" if place % 2 else "Sub", minors[columns], term)
        below = minors
    parts.reshaped_result(below[tuple(range(size))])


def zeros_differ(node: NodeView) -> bool:
    """Check whether the columns of the second matrix of a MatMulInteger have different zero points."""
    zeros = node.constant(3) if node.has(3) else None
    return zeros is not None and np.unique(zeros).size > 1


def integer_product(parts: Decomposition) -> None:
    """Compose (A - za) (B - zb) as (A - za) (B - z) - s (zb - z), where s are the row sums of A - za and z is one zero
    point for all columns."""
    node, zeros = parts.node, parts.node.needed(3, "zero point")
    common = zeros.reshape(-1)[0]
    column = parts.constant(np.ones((node.shape(1)[-2], 1), zeros.dtype))
    product = parts.make("MatMulInteger", parts.input(0), parts.input(1), parts.input(2), parts.constant(common))
    sums = parts.make("MatMulInteger", parts.input(0), column, parts.input(2))
    zero_differences = parts.constant(zeros.astype(np.int32) - np.int32(common))
    parts.result("Sub", product, parts.make("Mul", sums, zero_differences))
