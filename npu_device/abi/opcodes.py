"""Enumerations of descriptors: opcodes, their functions, data types, barrier scopes, ticket states."""

from enum import IntEnum, unique


@unique
class Opcode(IntEnum):
    NOP = 0
    LOAD = 1
    STORE = 2
    GEMM_T = 3
    CONV2D_T = 4
    ATTN_T = 5
    ELTWISE = 6
    LAYERNORM = 7
    SOFTMAX = 8
    GELU = 9
    POOL = 10
    REDUCE = 11
    COPY = 12
    GATHER = 13
    ROPE = 14
    KV_READ = 15
    KV_APPEND = 16
    BARRIER = 17
    CORE = 18
    """Work of the core: firmware executes it when all earlier commands are complete, and then submits the command."""


@unique
class Eltwise(IntEnum):
    """Functions of ELTWISE, in flags[31:24]."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    MAX = 4
    MIN = 5
    RELU = 6
    SIGMOID = 7
    TANH = 8
    ERF = 9
    EXP = 10
    SQRT = 11
    POW = 12
    CLIP = 13
    WHERE = 14
    CAST = 15
    QUANT = 16
    DEQUANT = 17
    SIN = 18
    COS = 19
    EQUAL = 20
    GREATER = 21
    LESS = 22
    LOG = 23
    FLOOR = 24
    CEIL = 25
    ROUND = 26
    """Round to the nearest integer, ties to even."""
    RELU6 = 27
    SILU = 28
    HARD_SIGMOID = 29
    HARD_SWISH = 30
    MISH = 31
    AND = 32
    OR = 33
    XOR = 34
    SHL = 35
    SHR = 36
    """Arithmetic shift right."""
    REM = 37
    """Remainder of truncating division, with the sign of the dividend; exact for floats too."""


@unique
class Carried(IntEnum):
    """Functions of LOAD and STORE: the role of the moved tensor."""

    ACTIVATION = 0
    WEIGHT = 1


@unique
class Appended(IntEnum):
    """Functions of KV_APPEND: the role of the rows."""

    KV = 0
    ACTIVATION = 1
    """Rows of a log, such as logits."""


@unique
class Gemm(IntEnum):
    """Function bits of GEMM_T."""

    WRITE = 0
    HOLD = 1


@unique
class Norm(IntEnum):
    """Functions of LAYERNORM."""

    LAYER = 0
    RMS = 1


@unique
class Pool(IntEnum):
    MAX = 0
    AVG = 1


@unique
class Activation(IntEnum):
    """Last function of an epilogue, in epilogue[3:0]."""

    NONE = 0
    RELU = 1
    SIGMOID = 2
    TANH = 3
    GELU = 4
    GELU_TANH = 5
    SILU = 6
    RELU6 = 7
    HARD_SIGMOID = 8
    HARD_SWISH = 9
    MISH = 10


@unique
class LoopOrder(IntEnum):
    """Order of the loops over the tiles of a macro command."""

    OUTPUT = 0
    WEIGHT = 1
    INPUT = 2

    @property
    def axes(self) -> str:
        """Dimensions of the loops over a product, outermost first."""
        return ("mnk", "nkm", "mkn")[self]


@unique
class Reduce(IntEnum):
    SUM = 0
    MEAN = 1
    MAX = 2
    ARGMAX = 3


@unique
class Scope(IntEnum):
    """Scopes of BARRIER (function) and TBAR (imm[1:0])."""

    TILE = 0
    CLUSTER = 1
    GLOBAL = 2


@unique
class Kernel(IntEnum):
    """Functions of CORE: the C kernels of firmware (docs/firmware.md, "Kernels")."""

    NON_ZERO = 0
    """Indices of the nonzero elements."""
    NON_MAX_SUPPRESSION = 1
    """Best boxes of each class that do not overlap a better one."""
    TOP_K = 2
    """Indices of the largest, or smallest, elements of each row, in order."""


FUNCTIONS: dict[Opcode, type[IntEnum]] = {
    Opcode.LOAD: Carried,
    Opcode.STORE: Carried,
    Opcode.KV_APPEND: Appended,
    Opcode.GEMM_T: Gemm,
    Opcode.ELTWISE: Eltwise,
    Opcode.LAYERNORM: Norm,
    Opcode.POOL: Pool,
    Opcode.REDUCE: Reduce,
    Opcode.BARRIER: Scope,
    Opcode.CORE: Kernel,
}
"""Opcode -> enumeration of its functions; flags[31:24] must be zero for other opcodes."""


@unique
class DataType(IntEnum):
    """Element types of the quant word; the bit width is in `BITS`."""

    NONE = 0
    FP32 = 1
    FP16 = 2
    BF16 = 3
    E4M3FN = 4
    E5M2 = 5
    INT32 = 6
    INT8 = 7
    UINT8 = 8
    INT4 = 9
    UINT4 = 10
    INT2 = 11
    VQ8 = 12
    ENCODED = 13


BITS = {
    DataType.FP32: 32,
    DataType.FP16: 16,
    DataType.BF16: 16,
    DataType.E4M3FN: 8,
    DataType.E5M2: 8,
    DataType.INT32: 32,
    DataType.INT8: 8,
    DataType.UINT8: 8,
    DataType.INT4: 4,
    DataType.UINT4: 4,
    DataType.INT2: 2,
    DataType.VQ8: 1,
    DataType.ENCODED: 4,
}
"""Bits of an element. VQ8: its share of the index, a byte for VQ_VECTOR elements of a row. ENCODED, keys and values
encoded by their parameter block: the bits of the dense part."""

VQ_VECTOR = 8
"""Number of elements of an index of VQ8."""
VQ_ENTRIES = 256
"""Number of vectors of a codebook."""
VQ_EXPANDED = DataType.FP16
"""Type of codebook elements, to which the DMA expands weights."""
KV_DECODED = DataType.FP16
"""Type to which the DMA decodes keys and values of type ENCODED."""
CODEBOOK_BYTES = VQ_ENTRIES * VQ_VECTOR * BITS[VQ_EXPANDED] // 8


@unique
class TicketState(IntEnum):
    """State in TICKET_STATUS[7:0]; an error has its code in [31:8]."""

    UNKNOWN = 0
    QUEUED = 1
    RUNNING = 2
    DONE = 3
    ERROR = 4


@unique
class StatusWord(IntEnum):
    """State in the low byte of a written status word; an error has its code in [31:8]."""

    PENDING = 0
    DONE = 1
    ERROR = 2


@unique
class FullPolicy(IntEnum):
    """Policy in CTRL[5:4] for an ENQCMD_T while the device queue is full."""

    RETRY = 0
    STALL = 1
    TRAP = 2
    DROP = 3


TRAP_QUEUE_FULL = 24
"""mcause of policy TRAP; mtval is rs1."""
