"""Decomposition of operators of domain ai.onnx.ml, which exporters of scikit-learn and of boosted trees write.

Source: https://onnx.ai/onnx/operators/#ai-onnx-ml. Numbers are FP32. The device has no strings: a string label becomes
its index among the labels of its node, and ZipMap returns its input tensor instead of dictionaries.
"""

from collections.abc import Sequence

import numpy as np

from toolchain.onnx_domains import trees, vectors
from toolchain.onnx_nodes.parts import Composition, Decomposition, Tensor

DOMAIN = "ai.onnx.ml"


# -- products ----------------------------------------------------------------------------------------------------------


def _linear(parts: Decomposition, targets: int) -> Tensor:
    """Return rows times coefficients, plus intercepts."""
    node = parts.node
    coefficients = np.array(node.attribute("coefficients", []), np.float32)
    x, width = parts.input(0).float32(), node.shape(0)[-1]
    if len(node.shape(0)) == 1:
        x = x.reshape(1, width)
    if coefficients.size != targets * width:
        node.refuse(f"{coefficients.size} coefficients: must be {targets} x {width}, one for each column of the input")
    product = x @ np.ascontiguousarray(coefficients.reshape(targets, width).T)
    intercepts = node.attribute("intercepts", [])
    return product + np.array(intercepts, np.float32) if np.any(intercepts) else product


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
    x = parts.input(0).float32()
    offset, scale = (np.array(parts.node.attribute(name, []), np.float32) for name in ("offset", "scale"))
    if offset.any():
        x = x - offset
    parts.output(x * (scale if scale.size else 1))


def normalizer(parts: Decomposition) -> None:
    """Compose Normalizer: rows divided by their maximum, L1 norm or L2 norm; a row of zeros stays zero."""
    norm, x = parts.node.attribute("norm", "MAX"), parts.input(0).float32()
    if norm not in ("MAX", "L1", "L2"):
        parts.node.refuse(f"attribute norm={norm}: supported are MAX, L1, L2")
    sizes = x if norm == "MAX" else abs(x) if norm == "L1" else x * x
    total = parts.make("ReduceMax" if norm == "MAX" else "ReduceSum", sizes, [-1], keepdims=1)
    if norm == "L2":
        total = parts.make("Sqrt", total)
    parts.output(x / total.equal(0).where(1, total))


def features(parts: Decomposition) -> None:
    """Compose ArrayFeatureExtractor: selection of columns by index."""
    node, shape = parts.node, parts.node.shape(0)
    count = int(np.prod(node.shape(1)))
    columns = parts.make("Gather", parts.input(0), parts.input(1).reshape(count), axis=len(shape) - 1)
    parts.output(columns.reshape(*(shape[:-1] or (1,)), count))


def joined(parts: Decomposition) -> None:
    """Compose FeatureVectorizer: columns of all inputs, side by side."""
    matrices = []
    for index in range(len(parts.node.proto.input)):
        x, shape = parts.input(index).float32(), parts.node.shape(index)
        matrices.append(x.reshape(shape[0], -1) if len(shape) != 2 else x)
    parts.result("Identity", parts.joined(matrices, 1))


def imputer(parts: Decomposition) -> None:
    node, x = parts.node, parts.input(0)
    floats = parts.kind.kind == "f"
    kind = "floats" if floats else "int64s"
    values = node.attribute(f"imputed_value_{kind}")
    if not values:
        node.refuse(f"attribute imputed_value_{kind} is needed for an input of {node.info(0).type}")
    replaced = node.attribute("replaced_value_float" if floats else "replaced_value_int64", 0)
    missing = parts.make("IsNaN", x) if np.isnan(replaced) else x.equal(replaced)
    parts.output(missing.where(np.array(values, parts.kind), x))


def binarizer(parts: Decomposition) -> None:
    parts.result("CastLike", parts.input(0) > parts.node.attribute("threshold", 0.0), parts.input(0))


def _keyed(parts: Decomposition, keys: Sequence[float]) -> Tensor:
    """Compare each element of the input with all keys, along a new last dimension."""
    return parts.input(0).reshape(*parts.node.shape(0), 1).equal(np.array(keys, parts.kind))


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
    matches, other = _keyed(parts, keys).cast(np.float32), np.full((*node.shape(0), 1), 0.5, np.float32)
    place = parts.make("ArgMax", parts.make("Concat", matches, other, axis=-1), axis=-1, keepdims=0)
    parts.result("Gather", np.array([*values, default], kind), place, axis=0)


def one_hot_encoder(parts: Decomposition) -> None:
    categories = parts.node.attribute("cats_int64s")
    if not categories:
        parts.node.refuse("attribute cats_strings: supported is cats_int64s, the device has no text")
    parts.output(_keyed(parts, categories).cast(np.float32))


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
