"""Decomposition of support vector machines of domain ai.onnx.ml.

The kernels between rows and support vectors are a matrix product, or for RBF a sum of squares. Pairwise decisions and
their votes are products with constant matrices.
"""

import itertools
from typing import Any

import numpy as np

from toolchain.onnx_domains import trees
from toolchain.onnx_nodes.parts import Decomposition, Tensor

MAX_DIFFERENCES = 1 << 24
"""Maximum number of differences between rows and support vectors for the RBF kernel."""
MAX_CLASSES = 16
"""Maximum number of classes with probabilities, since each class adds steps to every round."""
ROUNDS = 8
"""Number of rounds that compute class probabilities from pairwise probabilities: Wu, Lin, Weng, "Probability Estimates
for Multi-class Classification by Pairwise Coupling", JMLR 5, 2004, algorithm 2, with libsvm's termination: 2,000 random
matrices of 2 to 10 classes each converged after at most 4."""
NEARLY = 1e-7
"""Minimum distance of a pairwise probability from 0 and 1."""


def regressor(parts: Decomposition) -> None:
    """Compose SVMRegressor: weighted sums of the kernels; with one class, their sign."""
    node = parts.node
    x, count, width = trees.rows(parts)
    coefficients, vectors, rho = (_floats(parts, name) for name in ("coefficients", "support_vectors", "rho"))
    if (transform := node.attribute("post_transform", "NONE")) != "NONE":
        node.refuse(f"attribute post_transform={transform}: supported is NONE")
    number = vectors.size // max(width, 1)
    expected = number if vectors.size else width
    if vectors.size != number * width or coefficients.size != expected or rho.size != 1:
        node.refuse(
            f"{coefficients.size} coefficients, {vectors.size} numbers of support vectors, {rho.size} of rho for "
            f"{width} columns: must be one coefficient for each vector, or for each column where there are none, and "
            f"one rho"
        )
    if vectors.size:
        x = _kernels(parts, x, count, vectors.reshape(number, width))
    total = x @ coefficients.reshape(-1, 1) + rho
    if node.attribute("one_class", 0):
        total = (total > 0).where(np.float32(1), np.float32(-1))
    parts.result("Identity", total)


def classifier(parts: Decomposition) -> None:
    """Compose SVMClassifier: the class with the most votes of the pairwise decisions. Scores are the decisions, or
    probabilities. Without support vectors, classes are scored linearly."""
    node, labels = parts.node, trees.labels_of(parts.node, "classlabels_ints")
    x, count, width = trees.rows(parts)
    vector_counts, classes = list(node.attribute("vectors_per_class", [])), len(labels)
    vectors, number = _floats(parts, "support_vectors"), sum(vector_counts)
    pairs = list(itertools.combinations(range(classes), 2))
    coefficients, rho, a, b = (_floats(parts, name) for name in ("coefficients", "rho", "prob_a", "prob_b"))
    if (transform := node.attribute("post_transform", "NONE")) != "NONE":
        node.refuse(f"attribute post_transform={transform}: supported is NONE")
    if not number and not vectors.size:
        _linear(parts, x, width, coefficients, rho, labels)
        return
    if not number or classes < 2:
        node.refuse(f"{number} support vectors, {classes} classes: supported are 1 or more for 2 or more")
    sizes = [vectors.size, coefficients.size, len(vector_counts), rho.size, a.size, b.size]
    expected = [number * width, (classes - 1) * number, classes, len(pairs), *(len(pairs) if a.size else 0,) * 2]
    if sizes != expected:
        node.refuse(f"sizes {sizes} of support_vectors, coefficients, vectors_per_class, rho, prob_a, prob_b: must be "
                    f"{expected} for {width} columns")  # fmt: skip
    kernels = _kernels(parts, x, count, vectors.reshape(number, width))
    decided = kernels @ _between(coefficients.reshape(classes - 1, number), vector_counts, pairs) + rho
    if node.gives(0):
        trees.compose_labels(parts, parts.make("ArgMax", _votes(decided, classes, pairs), axis=1, keepdims=0), labels)
    if not node.gives(1):
        return
    if a.size:
        parts.result("Identity", _probabilities(parts, decided, (a, b), (count, classes), pairs), index=1)
    elif classes == 2:
        parts.result("Concat", -decided, decided, index=1, axis=1)
    else:
        parts.result("Identity", decided, index=1)


def _linear(parts: Decomposition, x: Tensor, width: int, coefficients: Any, rho: Any, labels: list[int]) -> None:
    """Compose the class with the largest sum. Of two classes onnxruntime selects the second if the maximum is positive,
    or above 0.5 if no coefficient is negative."""
    node, classes = parts.node, len(labels)
    if not classes or coefficients.size != classes * width or not rho.size:
        node.refuse(f"{coefficients.size} coefficients and {rho.size} of rho without support vectors: must be {width} "
                    f"for each of {classes} classes, and one rho")  # fmt: skip
    scores = x @ np.ascontiguousarray(coefficients.reshape(classes, width).T) + rho[0]
    if node.gives(0):
        place = parts.make("ArgMax", scores, axis=1, keepdims=0)
        if classes == 2:
            enough = 0.5 if (coefficients >= 0).all() else 0.0
            place = (parts.make("ReduceMax", scores, [1], keepdims=0) > enough).where([1], place)
        trees.compose_labels(parts, place, labels)
    if node.gives(1):
        parts.result("Identity", scores, index=1)


def _floats(parts: Decomposition, name: str) -> Any:
    return np.array(parts.node.attribute(name, []), np.float32)


def _between(coefficients: Any, counts: list[int], pairs: list[tuple[int, int]]) -> Any:
    """Return the coefficients of each support vector in each pairwise decision: vectors x pairs."""
    ends = np.cumsum([0, *counts])
    table = np.zeros((ends[-1], len(pairs)), np.float32)
    for at, (first, second) in enumerate(pairs):
        for index, row in ((first, second - 1), (second, first)):
            rows = slice(ends[index], ends[index + 1])
            table[rows, at] = coefficients[row, rows]
    return table


def _votes(decided: Tensor, classes: int, pairs: list[tuple[int, int]]) -> Tensor:
    """Count the votes for each class: rows x classes."""
    first, second = (np.eye(classes, dtype=np.float32)[[pair[at] for pair in pairs]] for at in (0, 1))
    return (decided > 0).cast(np.float32) @ (first - second) + second.sum(0)


def _kernels(parts: Decomposition, x: Tensor, count: int, vectors: Any) -> Tensor:
    """Compute the kernel of each row with each support vector."""
    node, kernel = parts.node, parts.node.attribute("kernel_type", "LINEAR")
    gamma, offset, degree = node.attribute("kernel_params", [0.0, 0.0, 0.0])
    if kernel == "RBF":
        if count * vectors.size > MAX_DIFFERENCES:
            node.refuse(f"{count} rows and {vectors.size} numbers of support vectors: more than {MAX_DIFFERENCES} "
                        f"differences: use fewer rows")  # fmt: skip
        differences = x.reshape(-1, 1, vectors.shape[1]) - vectors[None]
        squares = parts.make("ReduceSum", differences * differences, [2], keepdims=0)
        return parts.make("Exp", squares * -gamma)
    result = x @ np.ascontiguousarray(vectors.T)
    if kernel == "LINEAR":
        return result
    result = result * gamma + offset
    if kernel == "SIGMOID":
        return parts.make("Tanh", result)
    if kernel != "POLY":
        node.refuse(f"attribute kernel_type={kernel}: supported are LINEAR, POLY, RBF, SIGMOID")
    return parts.make("Pow", result, degree)


# -- probabilities -----------------------------------------------------------------------------------------------------


def _probabilities(
    parts: Decomposition, decided: Tensor, sigmoid: tuple[Any, Any], sizes: tuple[int, int],
    pairs: list[tuple[int, int]],
) -> Tensor:  # fmt: skip
    """Compute the probabilities of all classes from those of pairs; a converged row no longer changes."""
    count, classes = sizes
    if classes > MAX_CLASSES:
        parts.node.refuse(f"probabilities of {classes} classes: supported are up to {MAX_CLASSES}")
    unit = parts.constant(np.float32(1))
    first = unit - parts.make("Sigmoid", decided * sigmoid[0] + sigmoid[1])
    first = first.clip(NEARLY, 1 - NEARLY)
    second = unit - first
    q = parts.joined([-(first * second), first * first, second * second], 1) @ _place(classes, pairs)
    rows = [q.slice(1, at * classes, (at + 1) * classes) for at in range(classes)]
    diagonal = [q.slice(1, at * (classes + 1), at * (classes + 1) + 1) for at in range(classes)]
    matrix = q.reshape(count, classes, classes)
    p = parts.constant(np.full((count, classes), 1 / classes, np.float32))
    enough, unfinished = parts.constant(np.float32(0.005 / classes)), None
    for _ in range(ROUNDS):
        qp = parts.make("ReduceSum", matrix * p.reshape(count, 1, classes), [2], keepdims=0)
        pqp = parts.make("ReduceSum", p * qp, [1], keepdims=1)
        error = parts.make("ReduceMax", abs(qp - pqp), [1], keepdims=1)
        far = unit - (error < enough).cast(np.float32)
        unfinished = far if unfinished is None else far * unfinished
        for at in range(classes):
            element = qp.slice(1, at, at + 1)
            step = (pqp - element) / diagonal[at] * unfinished
            grown = unit + step
            p = (p + step * np.eye(classes, dtype=np.float32)[at : at + 1]) / grown
            pqp = (pqp + step * (step * diagonal[at] + element * 2)) / grown / grown
            qp = (qp + step * rows[at]) / grown
    return p


def _place(classes: int, pairs: list[tuple[int, int]]) -> Any:
    """Return the matrix that scatters products and squares of pairwise probabilities to classes x classes."""
    table = np.zeros((3, len(pairs), classes, classes), np.float32)
    for at, (first, second) in enumerate(pairs):
        table[0, at, first, second] = table[0, at, second, first] = 1
        table[1, at, second, second] = table[2, at, first, first] = 1
    return table.reshape(3 * len(pairs), classes * classes)


REGRESSOR = (
    "coefficients", "kernel_params", "kernel_type", "n_supports", "n_targets", "one_class", "post_transform", "rho",
    "support_vectors",
)  # fmt: skip
CLASSIFIER = (
    "classlabels_ints", "classlabels_strings", "coefficients", "kernel_params", "kernel_type", "post_transform",
    "prob_a", "prob_b", "rho", "support_vectors", "vectors_per_class",
)  # fmt: skip
"""Attributes of SVMClassifier."""
