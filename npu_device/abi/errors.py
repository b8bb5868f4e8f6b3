"""Error codes visible to firmware, and the exceptions of this package."""

from enum import IntEnum, unique


class NpuDeviceError(Exception):
    """Error in the use of this package; the message has value, rule and remedy."""


class ExternalEngineError(NpuDeviceError):
    """Error of an external engine: no HELLO, exit, time-out, protocol violation, or wrong result."""


class AbiError(NpuDeviceError):
    """Error of an inconsistent ABI table, or of a value that does not fit the ABI."""


@unique
class ReturnCode(IntEnum):
    """Codes that custom instructions return negated in rd (docs/interface.md). They are not libc's errno."""

    ENOENT = 2
    EBUSY = 16
    EINVAL = 22
    ETIMEDOUT = 110


@unique
class TicketError(IntEnum):
    """Error codes of a ticket in state ERROR, in 256..511 and so distinct from every ReturnCode."""

    RESET = 256
    FETCH = 257
    OPCODE = 258
    UNSUPPORTED = 259
    RESERVED = 260
    MISALIGNED = 261
    ADDRESS = 262
    SHAPE = 263
    BANK_MASK = 264
    DATA_TYPE = 265
    TICKET = 266
    FUNCTION = 267
    AFFINITY = 268
    CLUSTER = 269
    OPERAND_NOT_IN_SPM = 270
    OPERAND_OUTSIDE_BANKS = 271
    NO_ACCUMULATOR = 272
    ACC_OVERFLOW = 273
    EXTENDED_BLOCK = 274
    WORKSPACE = 275
    POSITION = 276
    BUS = 277
    KV_BLOCK = 278
    KV_DATA = 279
    KV_PAGES = 280


TICKET_ERROR_TEXT = {
    TicketError.RESET: "the device was reset while the command was in flight",
    TicketError.FETCH: "the ring slot lies outside memory",
    TicketError.OPCODE: "unknown opcode",
    TicketError.UNSUPPORTED: "a valid command that this device does not execute",
    TicketError.RESERVED: "a reserved bit or field is not zero",
    TicketError.MISALIGNED: "an address is not aligned to its element",
    TicketError.ADDRESS: "an address range is outside memory",
    TicketError.SHAPE: "a dimension is zero or too large",
    TicketError.BANK_MASK: "the bank mask names no bank",
    TicketError.DATA_TYPE: "the operation does not take this data type",
    TicketError.TICKET: "the host ticket is invalid or in flight",
    TicketError.FUNCTION: "unknown function of the operation",
    TicketError.AFFINITY: "the engine affinity names no engine",
    TicketError.CLUSTER: "the cluster does not exist",
    TicketError.OPERAND_NOT_IN_SPM: "a tile command's operand is not in the scratchpad",
    TicketError.OPERAND_OUTSIDE_BANKS: "an operand lies outside the bank mask",
    TicketError.NO_ACCUMULATOR: "accumulate without a sum in the accumulator for the output address",
    TicketError.ACC_OVERFLOW: "the sums do not fit the accumulator",
    TicketError.EXTENDED_BLOCK: "the extended block is misaligned or outside memory",
    TicketError.WORKSPACE: "the workspace is too small for the tiles",
    TicketError.POSITION: "the token position is not below t_max",
    TicketError.BUS: "the memory system answered a transfer with an error",
    TicketError.KV_BLOCK: "the parameter block of keys and values is wrong",
    TicketError.KV_DATA: "keys or values cannot be encoded, or what is stored is no encoding",
    TicketError.KV_PAGES: "no page is left for keys and values",
}

assert set(TICKET_ERROR_TEXT) == set(TicketError), "every ticket error has a text"
