"""Quantization of products: selection of the products, scales of their operands and results, and the additional
nodes."""

import math
from collections import ChainMap, Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npu_device.abi.opcodes import BITS, DataType
from toolchain.errors import ModelError
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Values
from toolchain.onnx_frontend.importer import weights
from toolchain.onnx_frontend.qdq_graph import MOVES
from toolchain.onnx_model.file import one_line
from toolchain.onnx_model.model import OnnxModel, prepare
from toolchain.onnx_model.reference import QUANTIZERS
from toolchain.onnx_nodes.evaluation import MAX_FOLDED, Propagation, TensorInfo, evaluate
from toolchain.onnx_nodes.view import node_name
from toolchain.onnx_reference.corrected import CORRECTED
from toolchain.quantize.codebook import VQ_BITS
from toolchain.quantize.qconfig import FLOAT_BITS, GPTQ, QConfig
from toolchain.quantize.ranges import Histogram, parse_method
from toolchain.quantize.scales import (
    TINY,
    ActivationScale,
    Samples,
    codes_of,
    invertible_scale,
    least_squares_scales,
    pair,
    scale_of,
)

PRODUCTS = ("Conv", "Gemm", "MatMul")


class _Sum(NamedTuple):
    """Convolution with an addition: its result is never written, so it needs no scale. `residual`: other operand;
    `end`: tensor at the end of the sum."""

    residual: str
    end: str


class ProductQuantizer:
    """Quantizer of products to INT8 codes."""

    precision = "int8"

    def __init__(
        self, model: OnnxModel, proto: Any, samples: Samples, config: QConfig, method: str, *, open_shapes: bool = False
    ) -> None:  # fmt: skip
        """`proto`: graph of the model, which is modified; `method`: of `toolchain.quantize.ranges`; `open_shapes` as in
        `toolchain.quantize.post_training.quantize_model`."""
        self._method, self._share = parse_method(method)
        self._name = model.name
        self._proto = proto
        self._info = model.info
        self._weights = {
            tensor.name: np.asarray(numpy_helper.to_array(tensor)) for tensor in self._proto.graph.initializer
        }
        self._fold_weights(model, {} if open_shapes else dict(model.info))
        nodes = self._proto.graph.node
        self._makers = {name: node for node in nodes for name in node.output if name}
        self._readers = Counter(name for node in nodes for name in node.input)
        self._readers.update(model.outputs)
        self._outputs = set(model.outputs)
        self._floats: dict[str, str] = {}
        self._products = {node.output[0]: node for node in nodes if self._is_product(node)}
        if any(node.op_type in QUANTIZERS for node in nodes):
            raise ModelError(
                f"{model.name}: --precision {self.precision}: the model is quantized already: drop the option"
            )
        if not self._products:
            raise ModelError(
                f"{model.name}: --precision {self.precision}: no product of floats to quantize: drop the option"
            )
        self._bits = self._widths(config)
        self._sums: dict[str, _Sum] = {}
        for name in self._wide_products(config):
            self._floats[node_name(self._products.pop(name))] = "the QConfig wants wider activations"
        if not self._products:
            raise ModelError(f"{model.name}: --precision int8: override keeps every product as it is: drop the option")
        self._scales = self._calibrate(samples)
        self._new: list[Any] = []

    def run(self) -> OnnxModel:
        nodes: list[Any] = []
        for name in self._scales:
            if name not in self._makers:
                nodes += self._pair(name)
        for node in self._proto.graph.node:
            changed = onnx.NodeProto.FromString(node.SerializeToString())
            bias = self._bias(node)
            for index, name in enumerate(node.input):
                if name in self._scales and self._reads_codes(node, index):
                    changed.input[index] = f"{name}.dq"
            for index, name in enumerate(node.input):
                if node.output[0] in self._products and index < 2 and name in self._weights:
                    nodes.append(self._weight(node, name) if index else self._rows(node, name))
                    changed.input[index] = nodes[-1].output[0]
                elif bias and name == bias:
                    nodes.append(self._steps(node, name))
                    changed.input[index] = nodes[-1].output[0]
            nodes.append(changed)
            for name in node.output:
                if name in self._scales:
                    nodes += self._pair(name)
        graph = self._proto.graph
        read = {*self._outputs, *(name for node in nodes for name in node.input)}
        initializers = [tensor for tensor in (*graph.initializer, *self._new) if tensor.name in read]
        for field in (graph.node, graph.initializer, graph.value_info):
            del field[:]
        graph.node.extend(nodes)
        graph.initializer.extend(initializers)
        model = prepare(self._proto, self._name)
        model.floats = self._floats
        return model

    def _fold_weights(self, model: OnnxModel, info: dict[str, TensorInfo]) -> None:
        """Fold weights computed from constants and shapes, for example by Transpose, to constants."""
        graph, nodes, opsets = self._proto.graph, list[Any](), model.proto.opset_import
        propagation, names = Propagation(opsets, info), weights(list(graph.node))
        for name, values in self._weights.items():
            if values.size <= MAX_FOLDED:
                propagation.know(name, values)
        for node in graph.node:
            propagation.follow_node(node)
            constants = ChainMap(self._weights, propagation.constants)
            inputs = {name: constants[name] for name in node.input if name in constants}
            constant = len(inputs) == len({name for name in node.input if name}) > 0
            if constant and not names.isdisjoint(node.output) and node.op_type not in QUANTIZERS:
                try:
                    results = evaluate(node, inputs, opsets)
                except Exception as error:
                    raise ModelError(
                        f"{model.name}: node {node_name(node)} ({node.op_type}): it has no result ({one_line(error)}): "
                        "export the model again"
                    ) from None
                for name, values in zip(node.output, results, strict=False):
                    self._weights[name] = values
                    graph.initializer.append(numpy_helper.from_array(values, name))
            else:
                nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
        del graph.node[:]
        graph.node.extend(nodes)

    # -- selection -----------------------------------------------------------------------------------------------------

    def _is_product(self, node: Any) -> bool:
        if node.op_type not in PRODUCTS or node.domain not in ("", "ai.onnx"):
            return False
        wide = [name for name in node.input[:2] if not self._is_fp32(name)]
        if wide:
            kind = self._info[wide[0]].type if wide[0] in self._info else "of unknown type"
            self._floats[node_name(node)] = f"{wide[0]} is {kind}: only products of FLOAT are converted"
        elif all(name in self._weights for name in node.input[:2]):
            self._floats[node_name(node)] = "both operands are constant"
        return node_name(node) not in self._floats

    def _count(self) -> list[str]:
        """Return products whose constant weights are one matrix, which a QConfig numbers."""
        return [
            name for name, node in self._products.items()
            if (values := self._weights.get(node.input[1])) is not None
            and (node.op_type != "MatMul" or math.prod(values.shape[:-2]) == 1)
        ]  # fmt: skip

    def _wide_products(self, config: QConfig) -> list[str]:
        """Return products that stay unchanged because the QConfig requests wider activations."""
        counted = self._count()
        config.check_overrides("activation", len(counted))
        return [name for number, name in enumerate(counted) if config.product_activation(number) in FLOAT_BITS]

    def _widths(self, config: QConfig) -> dict[str, int]:
        """Return the weight bits of each product."""
        if config.group:
            raise ModelError(
                f"--precision int8 with QConfig group_size {config.group}: sums of codes have one scale: drop one"
            )
        if config.rounding == GPTQ:
            raise ModelError(f"--precision int8 with QConfig rounding {GPTQ}: weights of floats only: drop one")
        counted = self._count()
        widths = {name: config.weight_bits(number) or BITS[DataType.INT8] for number, name in enumerate(counted)}
        if VQ_BITS in widths.values():
            raise ModelError(
                "--precision int8 with QConfig weights vq: vectors are of floats; drop --precision int8, or give bits"
            )
        return widths

    def _top(self, node: Any) -> int:
        """Return the largest code of a product's weights."""
        return (1 << self._bits.get(node.output[0], BITS[DataType.INT8]) - 1) - 1

    def _is_fp32(self, name: str) -> bool:
        if name in self._weights:
            return bool(self._weights[name].dtype == np.float32)
        return name in self._info and self._info[name].type == "FLOAT"

    def _observed(self) -> list[str]:
        """Return tensors that get a scale: operands of products, and the other operand of a sum with one of these as
        result."""
        names: dict[str, None] = {}
        for node in self._products.values():
            for name in node.input[:2]:
                while name not in self._weights and name not in names:
                    names[name] = None
                    name = self._move_from(name)
        self._sums = self._residuals(names)
        return list(names)

    def _reads_codes(self, node: Any, index: int) -> bool:
        """Check whether an input with a scale is read as codes: by products, sums of codes, and operators that move
        codes to them. Other readers use the numbers, which needs no conversion."""
        name = node.input[index]
        if node.output[0] in self._products:
            return index < 2
        if any(name == residual.end for residual in self._sums.values()):  # this tensor exists as codes only
            return True
        if node.op_type in MOVES:
            return index == 0 and node.output[0] in self._scales
        return any(name == residual.residual and product in node.input for product, residual in self._sums.items())

    def _residuals(self, names: dict[str, None]) -> dict[str, _Sum]:
        """Return convolution outputs read only by an Add with another tensor of equal shape, if that tensor or the sum
        is in `names`. Both are then added to `names`."""
        sums: dict[str, _Sum] = {}
        for add in reversed(self._proto.graph.node):
            for name, other in zip(add.input, reversed(add.input), strict=True) if add.op_type == "Add" else ():
                product = self._products.get(name)
                single_reader = self._readers[name] == 1 and self._readers[other] and other not in self._weights
                shapes = {self._info[operand].shape for operand in (name, other) if operand in self._info}
                end = self._behind_limits(add.output[0])
                fits = product is not None and product.op_type == "Conv" and single_reader and len(shapes) == 1
                if fits and name != other and (end in names or other in names):
                    sums[name] = _Sum(other, end)
                    names.update(dict.fromkeys((other, end)))
                    break
        return sums

    def _behind_limits(self, name: str) -> str:
        following = next((reader for reader in self._proto.graph.node if name in reader.input), None)
        foldable = following is not None and self._readers[name] == 1 and self._limits(following)
        return following.output[0] if following is not None and foldable else name

    def _limits(self, node: Any) -> bool:
        """Check for Relu, or a Clip with constant limits: its output range sets the range of the codes."""
        return node.op_type == "Relu" or (
            node.op_type == "Clip" and all(limit in self._weights for limit in node.input[1:] if limit)
        )

    def _move_from(self, name: str) -> str:
        """Return the source tensor of a move by one operator; the tensor itself for any other producer."""
        node = self._makers.get(name)
        return name if node is None or node.op_type not in MOVES else str(node.input[0])

    def _calibrate(self, samples: Samples) -> dict[str, ActivationScale]:
        names = self._observed()
        histograms = {name: Histogram(counting=self._method != "minmax") for name in names}
        evaluator = ReferenceEvaluator(self._proto, new_ops=CORRECTED)
        for sample in samples:
            try:
                results: Any = evaluator.run(names, dict(sample))
            except Exception as error:
                raise ModelError(f"{self._name}: calibration: {' '.join(str(error).split())[:200]}") from None
            for name, values in zip(names, results, strict=True):
                histograms[name].add(values)
        ranges = {name: histograms[name].range(self._method, self._share) for name in names}
        scales = {name: self._scale(*ranges[name]) for name in names if np.isfinite(ranges[name]).all()}
        for residual, end in self._sums.values():
            source = self._origin(residual, scales)
            if end in scales and source in scales:
                scales[source] = scale_of(*ranges[source], scales[end].kind)
        for node in self._products.values():
            for name in node.input[:2]:
                if name not in self._weights and name not in scales:
                    low, high = ranges[name]
                    self._floats[node_name(node)] = f"the samples give {name} the range {low:g} to {high:g}"
        return {name: scales[self._origin(name, scales)] for name in names if name in scales}

    def _scale(self, low: float, high: float) -> ActivationScale:
        return scale_of(low, high)

    def _origin(self, name: str, scales: Mapping[str, ActivationScale]) -> str:
        """Return the first tensor with these values that has a scale; model outputs have none."""
        before = self._move_from(name)
        return name if before == name or before not in scales else self._origin(before, scales)

    # -- additional nodes ----------------------------------------------------------------------------------------------

    def _constant(self, name: str, values: Any) -> str:
        self._new.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def _pair(self, name: str) -> list[Any]:
        nodes_of_pair = pair(name, self._scales[name])
        self._new += nodes_of_pair.constants
        return list(nodes_of_pair.nodes)

    def _axis(self, node: Any, rank: int) -> int:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        return 0 if node.op_type == "Conv" or attributes.get("transB") else rank - 1

    def _weight_scales(self, node: Any) -> Values:
        values = self._weights[node.input[1]]
        axis = self._axis(node, values.ndim)
        rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        return least_squares_scales(rows, self._top(node))

    def _weight(self, node: Any, name: str) -> Any:
        values, scales = self._weights[name], self._weight_scales(node)
        axis = self._axis(node, values.ndim)
        shaped = scales.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
        return self._dequantize(f"{node.output[0]}.weights", self._coded(node, values / shaped), scales, axis)

    def _rows(self, node: Any, name: str) -> Any:
        """Return a quantized constant first operand, with one scale as for activations."""
        values = self._weights[name]
        scale = self._scale(float(values.min()), float(values.max()))
        return self._dequantize(f"{node.output[0]}.rows", codes_of(values, scale), np.asarray(scale.scale), 0)

    def _coded(self, node: Any, values: Values) -> Values:
        """Round numbers in units of the scale to codes."""
        return np.clip(np.rint(values), -self._top(node), self._top(node)).astype(np.int8)

    def _dequantize(self, name: str, codes: Values, scales: Values, axis: int) -> Any:
        inputs = self._constant(f"{name}.codes", codes), self._constant(f"{name}.scale", scales)
        return helper.make_node("DequantizeLinear", inputs, [name], name=f"{name}.dequantize", axis=axis)

    def _product_of(self, node: Any) -> Any | None:
        """Return the product to which a node adds a bias: the node itself, or the MatMul before an Add."""
        if node.output[0] in self._products:
            return node if node.op_type != "MatMul" else None
        if node.op_type != "Add":
            return None
        makers = (self._makers.get(name) for name in node.input)
        names = (maker.output[0] for maker in makers if maker is not None and maker.op_type == "MatMul")
        return next((self._products.get(name) for name in names if self._readers[name] == 1), None)

    def _bias(self, node: Any) -> str:
        """Return the constant row that a node adds to an integer product with constant weights; empty for none."""
        product = self._product_of(node)
        if product is None or product.input[1] not in self._weights or product.input[0] not in self._scales:
            return ""
        names = node.input[2:3] if node is product else node.input
        width = self._weight_scales(product).size
        return next((name for name in names if name in self._weights and self._weights[name].shape == (width,)), "")

    def _steps(self, node: Any, name: str) -> Any:
        product = self._product_of(node)
        assert product is not None
        scales = (self._scales[product.input[0]].scale * self._weight_scales(product)).astype(np.float32)
        codes = np.clip(np.rint(self._weights[name] / scales), -(2**31), 2**31 - 1).astype(np.int32)
        return self._dequantize(f"{node.output[0]}.bias", codes, scales, 0)


class FloatQuantizer(ProductQuantizer):
    """Quantizer of products to 8-bit floats."""

    precision = "fp8"

    def __init__(
        self, model: OnnxModel, proto: Any, samples: Samples, config: QConfig, method: str, kind: DataType
    ) -> None:  # fmt: skip
        self._type = NUMPY[kind].type
        self._largest = float(ml_dtypes.finfo(NUMPY[kind]).max)
        super().__init__(model, proto, samples, config, method)

    def _widths(self, config: QConfig) -> dict[str, int]:
        if config.weight is not None or config.overrides("weight"):
            raise ModelError("--precision fp8 with QConfig weights: fp8 is their width; drop one of them")
        return {}

    def _observed(self) -> list[str]:
        read = dict.fromkeys(name for node in self._products.values() for name in node.input[:2])
        return [name for name in read if name not in self._weights]

    def _scale(self, low: float, high: float) -> ActivationScale:
        return ActivationScale(invertible_scale(max(-low, high) / self._largest), self._type, 0)

    def _origin(self, name: str, scales: Mapping[str, ActivationScale]) -> str:
        return name

    def _weight_scales(self, node: Any) -> Values:
        values = self._weights[node.input[1]]
        axis = self._axis(node, values.ndim)
        largest = np.abs(values).max(axis=tuple(a for a in range(values.ndim) if a != axis)) / self._largest
        return np.where(largest > TINY, largest, 1).astype(np.float32)

    def _coded(self, node: Any, values: Values) -> Values:
        return np.clip(values, -self._largest, self._largest).astype(self._type)

    def _bias(self, node: Any) -> str:
        return ""
