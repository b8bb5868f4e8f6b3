"""Decomposition of operators of domain ai.onnx.ml, which exporters of scikit-learn and of boosted trees write.

Source: https://onnx.ai/onnx/operators/#ai-onnx-ml. Numbers are FP32. The device has no strings: a string label becomes
its index among the labels of its node, and ZipMap returns its input tensor instead of dictionaries.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from toolchain.onnx_domains import trees, vectors
from toolchain.onnx_nodes.parts import Composition, Decomposition

DOMAIN = "ai.onnx.ml"


def _floats(parts: Decomposition) -> str:
    """Return the first input in FP32."""
    return parts.input(0) if parts.kind == np.float32 else parts.cast(parts.input(0), np.float32)


def _constants(parts: Decomposition, values: Any) -> str:
    return parts.constant(np.array(values, np.float32))


# -- products ----------------------------------------------------------------------------------------------------------


def _linear(parts: Decomposition, targets: int) -> str:
    """Return rows times coefficients, plus intercepts."""
    node = parts.node
    coefficients = np.array(node.attribute("coefficients", []), np.float32)
    x, width = _floats(parts), node.shape(0)[-1]
    if len(node.shape(0)) == 1:
        x = parts.reshaped(x, 1, width)
    if coefficients.size != targets * width:
        node.refuse(f"{coefficients.size} coefficients: must be {targets} x {width}, one for each column of the input")
    product = parts.make("MatMul", x, parts.constant(np.ascontiguousarray(coefficients.reshape(targets, width).T)))
    intercepts = node.attribute("intercepts", [])
    return parts.make("Add", product, _constants(parts, intercepts)) if np.any(intercepts) else product


def linear_regressor(parts: Decomposition) -> None:
    scores = _linear(parts, int(parts.node.attribute("targets", 1)))
    parts.result("Identity", trees.transform_scores(parts, scores))


def linear_classifier(parts: Decomposition) -> None:
    node = parts.node
    labels = trees.labels_of(node, "classlabels_ints")
    width = node.shape(0)[-1]
    count = len(node.attribute("coefficients", [])) // max(width, 1)
    scores = _linear(parts, count)
    if count == 1 and len(labels) == 2:
        trees.compose_binary_linear(parts, scores, labels)
        return
    if count != len(labels) or count < 2:
        node.refuse(f"{count} rows of coefficients for {len(labels)} labels: supported are as many, or one for two")
    if node.gives(0):
        trees.compose_labels(parts, parts.make("ArgMax", scores, axis=1, keepdims=0), labels)
    if node.gives(1):
        parts.result("Identity", trees.transform_scores(parts, scores), index=1)


# -- features ----------------------------------------------------------------------------------------------------------


def scaler(parts: Decomposition) -> None:
    x = _floats(parts)
    offset, scale = (parts.node.attribute(name, []) for name in ("offset", "scale"))
    if np.any(offset):
        x = parts.make("Sub", x, _constants(parts, offset))
    parts.result("Mul", x, _constants(parts, scale if len(scale) else 1))


def normalizer(parts: Decomposition) -> None:
    """Compose Normalizer: rows divided by their maximum, L1 norm or L2 norm; a row of zeros stays zero."""
    norm, x = parts.node.attribute("norm", "MAX"), _floats(parts)
    if norm not in ("MAX", "L1", "L2"):
        parts.node.refuse(f"attribute norm={norm}: supported are MAX, L1, L2")
    sizes = {"MAX": lambda: x, "L1": lambda: parts.make("Abs", x), "L2": lambda: parts.make("Mul", x, x)}[norm]()
    total = parts.make("ReduceMax" if norm == "MAX" else "ReduceSum", sizes, parts.integers(-1), keepdims=1)
    if norm == "L2":
        total = parts.make("Sqrt", total)
    is_zero = parts.make("Equal", total, _constants(parts, 0))
    parts.result("Div", x, parts.make("Where", is_zero, _constants(parts, 1), total))


def features(parts: Decomposition) -> None:
    """Compose ArrayFeatureExtractor: selection of columns by index."""
    node, shape = parts.node, parts.node.shape(0)
    count = int(np.prod(node.shape(1)))
    columns = parts.make("Gather", parts.input(0), parts.reshaped(parts.input(1), count), axis=len(shape) - 1)
    shape_out = [1, count] if len(shape) == 1 else [*shape[:-1], count]
    parts.result("Reshape", columns, parts.integers(*shape_out))


def joined(parts: Decomposition) -> None:
    """Compose FeatureVectorizer: columns of all inputs, side by side."""
    matrices = []
    for index in range(len(parts.node.proto.input)):
        name, shape = parts.input(index), parts.node.shape(index)
        if parts.node.numpy_type(index) != np.float32:
            name = parts.cast(name, np.float32)
        matrices.append(parts.reshaped(name, shape[0], -1) if len(shape) != 2 else name)
    parts.result("Identity", parts.joined(matrices, 1))


def imputer(parts: Decomposition) -> None:
    node, x = parts.node, parts.input(0)
    floats = parts.kind.kind == "f"
    kind = "floats" if floats else "int64s"
    values = node.attribute(f"imputed_value_{kind}")
    if not values:
        node.refuse(f"attribute imputed_value_{kind} is needed for an input of {node.info(0).type}")
    replaced = node.attribute("replaced_value_float" if floats else "replaced_value_int64", 0)
    missing = parts.make("IsNaN", x) if np.isnan(replaced) else parts.make("Equal", x, parts.number(replaced))
    parts.result("Where", missing, parts.constant(np.array(values, parts.kind)), x)


def binarizer(parts: Decomposition) -> None:
    threshold = parts.number(parts.node.attribute("threshold", 0.0))
    parts.result("CastLike", parts.make("Greater", parts.input(0), threshold), parts.input(0))


def _keyed(parts: Decomposition, keys: Sequence[float]) -> str:
    """Compare each element of the input with all keys, along a new last dimension."""
    wide = parts.reshaped(parts.input(0), *parts.node.shape(0), 1)
    return parts.make("Equal", wide, parts.constant(np.array(keys, parts.kind)))


def label_encoder(parts: Decomposition) -> None:
    """Compose LabelEncoder: the value of the equal key, or the default."""
    node = parts.node
    attributes = {name: node.attribute(name) for name in LABELS if node.attribute(name) is not None}
    text = [name for name in attributes if "string" in name and name != "default_string"]
    if text or not any(name.startswith("keys") for name in attributes):
        node.refuse(f"{' and '.join(text) or 'keys'}: supported are numbers, the device has no text")
    kind = np.dtype(np.int64 if "values_int64s" in attributes else np.float32)
    keys = attributes.get("keys_int64s") or attributes.get("keys_floats") or []
    values = attributes.get("values_int64s") or attributes.get("values_floats") or []
    default = attributes.get("default_int64", -1) if kind.kind == "i" else attributes.get("default_float", -0.0)
    matches = parts.cast(_keyed(parts, keys), np.float32)
    other = parts.constant(np.full((*node.shape(0), 1), 0.5, np.float32))
    place = parts.make("ArgMax", parts.make("Concat", matches, other, axis=-1), axis=-1, keepdims=0)
    parts.result("Gather", parts.constant(np.array([*values, default], kind)), place, axis=0)


def one_hot_encoder(parts: Decomposition) -> None:
    categories = parts.node.attribute("cats_int64s")
    if not categories:
        parts.node.refuse("attribute cats_strings: supported is cats_int64s, the device has no text")
    parts.result("Cast", _keyed(parts, categories), to=1)


def zip_map(parts: Decomposition) -> None:
    parts.result("Identity", parts.input(0))


LABELS = (
    "default_float", "default_int64", "default_string", "keys_floats", "keys_int64s", "keys_strings", "values_floats",
    "values_int64s", "values_strings",
)  # fmt: skip
_LABELLED = ("classlabels_ints", "classlabels_strings", "coefficients", "intercepts", "multi_class", "post_transform")
_IMPUTED = ("imputed_value_floats", "imputed_value_int64s", "replaced_value_float", "replaced_value_int64")
_WALK = "Gather, Less, Where for each level"

CLASSICAL: dict[str, Composition] = {
    "ArrayFeatureExtractor": Composition("Gather", features),
    "Binarizer": Composition("Greater, Cast", binarizer, ("threshold",)),
    "FeatureVectorizer": Composition("Concat", joined, ("inputdimensions",)),
    "Imputer": Composition("IsNaN, Where", imputer, _IMPUTED),
    "LabelEncoder": Composition("Equal, ArgMax, Gather; numbers only", label_encoder, LABELS),
    "LinearClassifier": Composition("MatMul, Add, ArgMax", linear_classifier, _LABELLED),
    "LinearRegressor": Composition(
        "MatMul, Add", linear_regressor, ("coefficients", "intercepts", "post_transform", "targets")
    ),
    "Normalizer": Composition("Reduce, Div", normalizer, ("norm",)),
    "OneHotEncoder": Composition(
        "Equal, Cast; numbers only", one_hot_encoder, ("cats_int64s", "cats_strings", "zeros")
    ),
    "Scaler": Composition("Sub, Mul", scaler, ("offset", "scale")),
    "SVMClassifier": Composition(
        "MatMul; RBF: Sub, ReduceSum, Exp; probabilities: Mul, Div, ReduceSum for each round",
        vectors.classifier,
        vectors.CLASSIFIER,
    ),
    "SVMRegressor": Composition("MatMul; RBF: Sub, ReduceSum, Exp", vectors.regressor, vectors.REGRESSOR),
    "TreeEnsemble": Composition(f"{_WALK}, ReduceSum", trees.ensemble, trees.ENSEMBLE),
    "TreeEnsembleClassifier": Composition(f"{_WALK}, ReduceSum, ArgMax", trees.classifier, trees.CLASSIFIER),
    "TreeEnsembleRegressor": Composition(f"{_WALK}, ReduceSum", trees.regressor, trees.REGRESSOR),
    "ZipMap": Composition("the tensor itself", zip_map, ("classlabels_int64s", "classlabels_strings")),
}
"""Operator -> its decomposition."""
