"""Where the event loop keeps its state: words of three arrays (`stepper`).

`m` holds the machine: a header, units, runs and banks. `p` holds the plans that run: steps and pieces. `e` holds events
that the stream has not been given yet. Everything is a 64-bit integer; cycles are core cycles, credits are 1/den bytes.
"""

FOREVER = 1 << 62

# -- m: header ---------------------------------------------------------------------------------------------------------
FLOW_BASE = 0
"""Cycle from which the present rates move credits."""
TOTAL = 1
"""Credits per cycle that DRAM and NoC carry together when the DRAM has one channel; 0: no limit."""
CHANNEL = 2
"""Credits per cycle of one DMA channel; 0: no limit."""
LATENCY = 3
"""Cycles of DRAM and NoC before the first byte."""
DRAM_RATE = 7
"""Credits per cycle of one DRAM channel; 0: no limit."""
NOC_RATE = 8
"""Credits per cycle of the NoC; 0: no limit."""
FIRST_RATE = 9
"""Credits per cycle that whoever goes first takes from a DRAM channel; 0: no limit."""
SHARE_DUE = 4
"""A transfer has joined or left: rates are to be computed again."""
WAKE = 5
"""When the earliest step starts whose predecessors are over in the future."""
DRAM_CHANNELS = 6
SPLIT = 10
"""Steps of long plans read through channel 0 of the cluster and write through channel 1."""
ROW_CYCLES = 11
"""Of opening a DRAM row; 0: no row model."""
ROW_BYTES = 12
ROW_BANKS = 13
INTERLEAVE = 14
"""Bytes on a DRAM channel before the next one follows."""
ALIKE = 15
"""All transfers use the one DRAM channel and the NoC alike."""
BURST = 16
"""Credits that a bucket holds at most."""
OUT = 17
"""Events in `e`."""
OUT_LIMIT = 18
"""No cycle is begun with more."""
ORDERED = 19
"""Runs, listed from ORDER on by acceptance number."""
FINISHING = 20
"""Runs whose steps are over and whose results are still on their way."""
COMPLETED = 21
"""Runs that completed in this cycle, listed from COMPLETE on."""
WANTED = 22
"""Commands wait for a unit: bit 4 * class + cluster."""
TIME = 23
"""The cycle that was stepped last."""
UNITS_USED = 24
"""Units that exist, listed from UNIT_LIST on."""
BANKS = 25
"""Of all clusters."""
HEADER = 26

# -- m: units ----------------------------------------------------------------------------------------------------------
UNIT_COUNT = 48
UNITS = HEADER
MAX_DRAM_CHANNELS = 16
UNIT_WORDS = 17 + MAX_DRAM_CHANNELS
(
    U_CODE,  # as in events
    U_CLASS,  # TE, VE, DMA
    U_CLUSTER,
    U_HOLDER,  # run that has the unit to itself, + 1; 0: none
    U_RUN,  # run of the step in progress; -1: idle
    U_STEP,  # the step, index in p
    U_PIECE,  # its piece, index in p
    U_NUMBER,  # acceptance number of its command
    U_END,  # cycle of its end (DMA: once all data has moved)
    U_LAST,  # cycle of the end of the step before
    U_FROM,  # cycle from which it uses banks (DMA: from which data moves)
    U_LENGTH,  # cycles over which its bank accesses are spread
    U_STATE,  # DMA: LATE, FLOWING, TAIL
    U_LEFT,  # DMA: credits to move
    U_RATE,  # DMA: credits per cycle; 0: all at once, when there is no limit
    U_MIN_END,  # DMA: no earlier than this
    U_STALL,  # DMA: cycles lost to bank conflicts
    U_SHARE,  # DMA: of its bytes, the part on each DRAM channel, in 1/WHOLE
    *_SHARES,
) = range(UNIT_WORDS)
TE, VE, DMA = 0, 1, 2
LATE, FLOWING, TAIL = 1, 2, 3
UNIT_LIST = UNITS + UNIT_COUNT * UNIT_WORDS
"""Indices of the units that exist: TE, VE, DMA, each class through all clusters."""

# -- m: runs -----------------------------------------------------------------------------------------------------------
MAX_RUNS = 96
RUNS = UNIT_LIST + UNIT_COUNT
RUN_WORDS = 16
MAX_LANES = 4
(
    R_NUMBER,  # acceptance number of the command; 0: the slot is free
    R_STEPS,  # index of its first step in p
    R_TICKET,
    R_UNIT,  # the units that it holds, one for each lane; -1: none
    _,
    _,
    _,
    R_CLUSTER,
    R_HEAD,  # next step of each class: READ, WRITE, TENSOR, VECTOR; -1: none
    _,
    _,
    _,
    R_LEFT,  # steps not over
    R_FINISH,  # latest completion of its steps
    _,
    _,
) = range(RUN_WORDS)
ORDER = RUNS + MAX_RUNS * RUN_WORDS
COMPLETE = ORDER + MAX_RUNS
BUSY = COMPLETE + MAX_RUNS
"""Port cycles of each bank since the last record of them."""
MAX_BANKS = 256
BOOKED = BUSY + MAX_BANKS
"""Of each bank and port: the cycle before which it cannot have served all that was asked of it."""
OPEN_ROWS = BOOKED + 2 * MAX_BANKS
"""Of each DRAM channel: the open row of each bank."""
MAX_ROW_BANKS = 64

# -- m: DRAM channels --------------------------------------------------------------------------------------------------
BUCKET = OPEN_ROWS + MAX_DRAM_CHANNELS * MAX_ROW_BANKS
"""Credits saved for whoever goes first, at most BURST."""
BUCKET_AT = BUCKET + MAX_DRAM_CHANNELS
"""Cycle up to which they were counted; FOREVER while transfers take all there is."""
PAUSED = BUCKET_AT + MAX_DRAM_CHANNELS
"""Cycle until which someone goes before all transfers."""
MOVED = PAUSED + MAX_DRAM_CHANNELS
"""Bytes since the last record of them."""
SPARE = MOVED + MAX_DRAM_CHANNELS
"""Credits per cycle that are not given yet while rates are shared; the last is the NoC's."""
FILLED = SPARE + MAX_DRAM_CHANNELS + 1
"""Bytes that the transfer which begins lacks in the L2."""

# -- m: L2 -------------------------------------------------------------------------------------------------------------
(
    L2_LINE,  # bytes of a line; 0: no L2
    L2_SETS,
    L2_WAYS,
    L2_HIT,  # cycles before the first byte of a transfer whose lines are all there
    L2_MISS,  # ... of which some are not
    L2_CREDITS,  # of a line
    L2_HELD,  # lines in it
    L2_DIRTY,  # of these, lines that DRAM does not have
    L2_BACK,  # lines written back since the transfer began
    L2_OLD,  # lines that it has found changed in DRAM
    L2_OLD_AT,  # address of the first of them
    L2_GONE,  # lines that were watched and have left, listed from L2_LEFT on as they were
) = range(FILLED + MAX_DRAM_CHANNELS, FILLED + MAX_DRAM_CHANNELS + 12)
L2_TAGS = L2_GONE + 1
"""The lines of each set, the one that was used last first: number << FLAGS | flags; 0: none. L2_LEFT follows them."""
FLAGS = 3
DIRTY = 1
WATCHED = 2
"""Reported when it leaves."""
STALE = 4
"""DRAM has been changed since."""
MACHINE_WORDS = L2_TAGS
"""Without an L2; with one, two for each of its lines more."""

# -- p: steps and pieces -----------------------------------------------------------------------------------------------
STEP_WORDS = 11
(
    S_PIECE,  # index of the piece in p
    S_TILE,
    S_DRAM,  # first DRAM address
    S_AFTER,  # earlier steps, relative to the first; -1: none
    _,
    _,
    _,
    S_NEXT,  # next step of the class, -1: none
    S_RELEASED,  # cycle since when its operands are free, -1: not yet
    S_DONE,  # cycle since when its result is there, -1: not yet
    S_LANE,  # which of its command's units it runs on, where it is of their kind
) = range(STEP_WORDS)
MAX_AFTER = 4
READ, WRITE, TENSOR, VECTOR = 0, 1, 2, 3

(
    P_CLASS,
    P_CYCLES,  # computation: cycles on the engine. Transfer: cycles that data takes at least (bursts, ports)
    P_DRAIN,  # cycles from there to the result
    P_COLD,  # more cycles when the engine's pipeline has run empty
    P_BYTES,  # payload, for events
    P_ALIGNED,  # bytes on NoC and DRAM
    P_CREDITS,
    P_AUX,
    P_MASK,  # banks modulo 32 of its phases
    P_PHASES,  # how many
    P_STALLS,  # how many
    P_LIST,  # phases (bank, port, port cycles), stalls (bank, cause, cycles), bytes on each DRAM channel, rows there
) = range(12)
PHASE_WORDS = 3
ROW_COUNT, ROW_SIZE, ROW_STRIDE = 0, 1, 2
"""After the bytes on each DRAM channel."""
Q_BANK, Q_PORT, Q_NEED = 0, 1, 2

EVENT_WORDS = 4
"""Of a record."""
EVENTS = 8192
"""Events that `e` holds."""
EVENTS_PER_CYCLE = 4096
"""Room that a cycle begins with."""
