"""Decompositions of elementwise operators, reductions and sums."""

import itertools
import math

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition, Tensor, places_along
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
        scaled = parts.input(0) * (6 * alpha)
        parts.result("HardSigmoid", scaled, alpha=SIXTHS["alpha"], beta=beta)
        return
    line = parts.input(0) * alpha + beta
    parts.result("Clip", line, 0, 1)


def has_factor(node: NodeView) -> bool:
    """Check whether a Swish has a factor alpha."""
    return bool(node.attribute("alpha", 1.0) != 1)


def swish_of(x: Tensor, alpha: float) -> Tensor:
    """Return x Sigmoid(alpha x)."""
    return x * x.parts.make("Sigmoid", x * alpha)


def swish(parts: Decomposition) -> None:
    parts.output(swish_of(parts.input(0), parts.node.attribute("alpha", 1.0)))


def clip(parts: Decomposition) -> None:
    """Compose Clip with computed limits; the upper limit has priority."""
    x = parts.input(0)
    if parts.node.has(1):
        x = x.max(parts.input(1))
    if parts.node.has(2):
        x = x.min(parts.input(2))
    parts.result("Identity", x)


def sign(parts: Decomposition) -> None:
    """Compose Sign; 0 and NaN are unchanged."""
    x, zero = parts.input(0), parts.number(0)
    above, below = (parts.make(name, x, zero) for name in ("Greater", "Less"))
    if np.dtype(parts.kind).kind != "f":
        parts.result("Sub", *(flag.cast(parts.kind) for flag in (above, below)))
        return
    parts.result("Where", above, 1, below.where(-1, x))


def is_nan(parts: Decomposition) -> None:
    parts.result("Not", parts.input(0).equal(parts.input(0)))


def is_infinite(parts: Decomposition) -> None:
    node, x = parts.node, parts.input(0)
    signs = {"detect_positive": math.inf, "detect_negative": -math.inf}
    checks = [x.equal(value) for name, value in signs.items() if node.attribute(name, 1)]
    if not checks:
        node.refuse("detect_negative=0 and detect_positive=0: one of them must be 1")
    parts.result("Or", checks[0], checks[-1])


def xor(parts: Decomposition) -> None:
    parts.result("Not", parts.input(0).equal(parts.input(1)))


def by_divisor(node: NodeView) -> bool:
    """Check whether the result of a Mod has the sign of the divisor."""
    return not node.attribute("fmod", 0)


def modulo(parts: Decomposition) -> None:
    """Compose Mod with the sign of the divisor: it is added to a remainder of opposite sign."""
    a, b, zero = parts.input(0), parts.input(1), parts.number(0)
    if np.dtype(parts.kind).kind == "f":
        parts.node.refuse("attribute fmod=0 with floats: supported is 1")
    remainder = parts.make("Mod", a, b, fmod=1)
    differs = parts.make("Not", (remainder < zero).equal(b < zero))
    wrong = parts.make("And", differs, parts.make("Not", remainder.equal(zero)))
    parts.result("Where", wrong, remainder + b, remainder)


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
    power, unit, total = parts.input(0), parts.number(1), None
    for bit in range(max(1, int(exponents.max(initial=0)).bit_length())):
        if bit:
            power = power * power
        bits = (exponents >> bit & 1).astype(np.bool_)
        factor = power if bits.all() else parts.make("Where", bits, power, unit)
        if bit and not bits.any():
            continue
        total = factor if total is None else total * factor
    assert total is not None
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
    products = parts.input(0).reshape(*lead_a, m, k, 1) * parts.input(1).reshape(*lead_b, 1, k, n)
    parts.reshaped_result(parts.make("ReduceSum", products, [len(lead) + 1], keepdims=0))


def softplus(parts: Decomposition) -> None:
    """Compose max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    x = parts.input(0)
    small = parts.make("Exp", -abs(x))
    parts.result("Add", parts.make("Relu", x), parts.make("Log", small + 1))


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


def _reversal(parts: Decomposition) -> str:
    """Return an order-reversing operator that is its own inverse. For integers it is BitwiseNot, since the lowest has
    no negative."""
    return "Neg" if np.dtype(parts.kind).kind == "f" else "BitwiseNot"


def reduce_min(parts: Decomposition) -> None:
    node, attributes, reversal = parts.node, parts.node.attributes, _reversal(parts)
    axes = [parts.input(1)] if node.has(1) else []
    parts.result(reversal, parts.make("ReduceMax", parts.make(reversal, parts.input(0)), *axes, **attributes))


def arg_min(parts: Decomposition) -> None:
    parts.result("ArgMax", parts.make(_reversal(parts), parts.input(0)), **parts.node.attributes)


def reduce_product(parts: Decomposition) -> None:
    """Compose a product by repeatedly multiplying the two halves until one row remains."""
    node, x, axes = parts.node, parts.input(0), _axes(parts.node)
    if axes is None:
        parts.result("Identity", x)
        return
    shape = node.shape(0)
    order = [*(axis for axis in range(len(shape)) if axis not in axes), *axes]
    size = math.prod(shape[axis] for axis in axes)
    x = x.transpose(*order).reshape(math.prod(shape) // size, size)
    while size > 1:
        half = size // 2
        product = x.slice(1, 0, half) * x.slice(1, half, 2 * half)
        x = parts.joined([product, *([x.slice(1, size - 1, size)] if size % 2 else [])], 1)
        size = half + size % 2
    parts.reshaped_result(x)


def mean(parts: Decomposition) -> None:
    """Compose the elementwise mean of all inputs."""
    count = len(parts.node.proto.input)
    total = parts.make("Sum", *(parts.input(index) for index in range(count)))
    parts.result("Mul", total, 1 / count)


def lp_normalization(parts: Decomposition) -> None:
    """Compose LpNormalization: division by the norm along an axis; rows of zeros are unchanged."""
    node, x = parts.node, parts.input(0)
    along = [node.axis(len(node.shape(0)), -1)]
    if int(node.attribute("p", 2)) == 2:
        norm = parts.make("Sqrt", parts.make("ReduceSum", x * x, along))
    else:
        norm = parts.make("ReduceSum", abs(x), along)
    parts.result("Div", x, norm.equal(0).where(1, norm))


def log_sum_exp(parts: Decomposition) -> None:
    """Compose ReduceLogSumExp on differences from the maximum, if that is finite."""
    x, axes = parts.input(0), _axes(parts.node)
    if axes is None:
        parts.result("Identity", x)
        return
    largest = parts.make("ReduceMax", x, axes)
    largest = (abs(largest) < math.inf).where(largest, 0)
    sums = parts.make("ReduceSum", parts.make("Exp", x - largest), axes)
    parts.reshaped_result(parts.make("Log", sums) + largest)


def log_softmax(parts: Decomposition) -> None:
    node, x = parts.node, parts.input(0)
    along = [node.axis(len(node.shape(0)), -1)]
    shifted = x - parts.make("ReduceMax", x, along)
    sums = parts.make("ReduceSum", parts.make("Exp", shifted), along)
    parts.result("Sub", shifted, parts.make("Log", sums))


def hardmax(parts: Decomposition) -> None:
    """Compose Hardmax: 1 at the first maximum, else 0."""
    node, shape = parts.node, parts.node.shape(0)
    axis = node.axis(len(shape), -1)
    index = parts.make("ArgMax", parts.input(0), axis=axis)
    parts.reshaped_result(index.equal(places_along(axis, shape)).cast(parts.kind))


def cumulative_sum(parts: Decomposition) -> None:
    """Compose CumSum by sums of 2, 4, 8, ... neighbours; a product with a triangular matrix would spread infinities."""
    shape = parts.node.shape(0)
    axis = parts.node.number(1, "axis") % max(len(shape), 1)
    size, total, count = shape[axis], parts.input(0), 1
    if parts.node.attribute("exclusive", 0):
        total = _shift(total, axis, shape, 1)
    while count < size:
        total = total + _shift(total, axis, shape, count)
        count *= 2
    parts.result("Identity", total)


def _shift(x: Tensor, axis: int, shape: tuple[int, ...], by: int) -> Tensor:
    """Shift elements along an axis by `by` indices, backward with attribute reverse, and fill with zeros."""
    size, pads, reverse = shape[axis], [0] * 2 * len(shape), x.parts.node.attribute("reverse", 0)
    if by >= size:
        return x.parts.make("Expand", 0, shape)
    pads[axis + (len(shape) if reverse else 0)] = by
    return x.parts.make("Pad", x.slice(axis, by, size) if reverse else x.slice(axis, 0, size - by), pads)


def einsum(parts: Decomposition) -> None:
    """Compose Einsum by pairwise products. Letters in both operands and in the result become a batch of products."""
    node = parts.node
    inputs, arrow, right = str(node.attribute("equation")).replace(" ", "").partition("->")
    terms = inputs.split(",")
    shapes = [node.shape(index) for index in range(len(terms))]
    spares = [len(shape) - len(term.replace("...", "")) if "..." in term else 0
              for term, shape in zip(terms, shapes, strict=True)]  # fmt: skip
    spare = "".join(chr(0x3B1 + index) for index in range(max(spares)))
    terms = [term.replace("...", spare[len(spare) - count :]) for term, count in zip(terms, spares, strict=True)]
    if not arrow:
        joined = "".join(terms)
        right = "..." + "".join(sorted(symbol for symbol in set(joined) - set(spare) if joined.count(symbol) == 1))
    right = right.replace("...", spare)
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    tensors = [_full(parts, index, [sizes[letter] for letter in term]) for index, term in enumerate(terms)]
    operands = [_diagonal(x, term, sizes) for x, term in zip(tensors, terms, strict=True)]
    total, term = operands[0]
    for index, operand in enumerate(operands[1:], 1):
        later_letters = set(right).union(*(letters for _, letters in operands[index + 1 :]))
        total, term = _contract((total, term), operand, later_letters, sizes)
    total, term = _sum(total, term, set(right))
    if right:
        parts.result("Transpose", total, perm=[term.index(letter) for letter in right])
    else:
        parts.result("Identity", total)


def _full(parts: Decomposition, index: int, shape: list[int]) -> Tensor:
    """Return an operand with broadcast dimensions of size 1 expanded."""
    x = parts.input(index)
    return x if list(parts.node.shape(index)) == shape else parts.make("Expand", x, shape)


def _diagonal(x: Tensor, term: str, sizes: dict[str, int]) -> tuple[Tensor, str]:
    """Extract the diagonal for letters that occur twice in a term: elements with equal indices in both dimensions."""
    while twice := next((letter for letter in term if term.count(letter) > 1), ""):
        first, second = term.index(twice), term.rindex(twice)
        others, size = [at for at in range(len(term)) if at not in (first, second)], sizes[twice]
        flat = x.transpose(*others, first, second).reshape(*(sizes[term[at]] for at in others), size * size)
        x = flat.slice(len(others), 0, size * size, size + 1)
        term = "".join(term[at] for at in others) + twice
    return x, term


def _sum(x: Tensor, term: str, letters: set[str]) -> tuple[Tensor, str]:
    """Sum over the letters not in `letters`."""
    axes = [at for at, letter in enumerate(term) if letter not in letters]
    if not axes:
        return x, term
    sums = x.parts.make("ReduceSum", x, axes, keepdims=0)
    return sums, "".join(letter for letter in term if letter in letters)


def _contract(
    first: tuple[Tensor, str], second: tuple[Tensor, str], output_letters: set[str], sizes: dict[str, int]
) -> tuple[Tensor, str]:
    """Contract two operands; return the product and its letters."""
    a, left = _sum(*first, output_letters | set(second[1]))
    b, right = _sum(*second, output_letters | set(left))
    batch = [letter for letter in left if letter in right and letter in output_letters]
    inner = [letter for letter in left if letter in right and letter not in output_letters]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]

    def count(letters: list[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    a = a.transpose(*[left.index(letter) for letter in (*batch, *rows, *inner)])
    b = b.transpose(*[right.index(letter) for letter in (*batch, *inner, *columns)])
    a = a.reshape(count(batch), count(rows), count(inner))
    term = [*batch, *rows, *columns]
    product = a @ b.reshape(count(batch), count(inner), count(columns))
    return product.reshape(*(sizes[letter] for letter in term)), "".join(term)


MAX_ROWS = 6
"""Maximum number of rows of a determinant: each row doubles the number of products."""


def determinant(parts: Decomposition) -> None:
    """Compose the determinant by expansion along rows, from the last row up: minors of the rows below, for all
    combinations of columns."""
    node, shape = parts.node, parts.node.shape(0)
    size, count = shape[-1], math.prod(shape[:-2])
    if size > MAX_ROWS:
        node.refuse(f"a determinant of {size} rows: supported are up to {MAX_ROWS}")
    table = parts.input(0).reshape(count, size * size)
    below: dict[tuple[int, ...], Tensor] = {}
    for row in reversed(range(size)):
        minors: dict[tuple[int, ...], Tensor] = {}
        for columns in itertools.combinations(range(size), size - row):
            terms = []
            for place, column in enumerate(columns):
                at = row * size + column
                others = columns[:place] + columns[place + 1 :]
                term = table.slice(1, at, at + 1)
                terms.append(term * below[others] if others else term)
            minors[columns] = terms[0]
            for place, term in enumerate(terms[1:]):
                minors[columns] = minors[columns] + term if place % 2 else minors[columns] - term
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
    column = np.ones((node.shape(1)[-2], 1), zeros.dtype)
    product = parts.make("MatMulInteger", parts.input(0), parts.input(1), parts.input(2), common)
    sums = parts.make("MatMulInteger", parts.input(0), column, parts.input(2))
    parts.result("Sub", product, sums * (zeros.astype(np.int32) - np.int32(common)))
