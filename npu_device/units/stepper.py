"""Event loop of CA_HYBRID: engines and DMA channels execute plans step by step.

In the native subset (`pyv_native`). In a cycle, steps end first, then steps start, then rates are recomputed. All
choices depend only on acceptance numbers and indices, which makes them deterministic.
"""

from npu_device.cost.piece_record import PieceRecord
from npu_device.dram.controller import dram_cycle_of, earliest_end, serve_next, serve_segments
from npu_device.trace.events import CACHED, What
from npu_device.units.arbiter import emit, use_banks
from npu_device.units.fluid import flow, foresee
from npu_device.units.sharing import share_rates, transfer_end
from npu_device.units.state import (
    CLASSES,
    DMA,
    DRAINING,
    FOREVER,
    LATENCY,
    MOVING,
    NOT_YET,
    READ,
    TE,
    TENSOR,
    VE,
    VECTOR,
    WRITE,
    EventLoop,
    Run,
    Step,
    Unit,
)
from npu_device.units.transfers import (
    begin_bank_accesses,
    begin_transfer,
    progress,
    release_request,
    report_conversion,
    report_moved,
    request_data,
)

IDLE, COMPLETE, UNIT_FREE, BEGUN = range(4)
"""Results of `advance`."""
NO_UNIT = -1


# -- ends --------------------------------------------------------------------------------------------------------------


def end_steps(loop: EventLoop, t: int) -> None:
    """End the steps on engines, transfers and commands that are due in cycle `t`."""
    loop.time = t
    loop.stepped += 1
    if loop.analytic:
        begin_bank_accesses(loop, t - 1)
    if loop.timed:
        serve_segments(loop.dram, t)
    for unit in loop.units:
        if unit.busy:
            if unit.kind == DMA:
                progress(loop, unit, t)
                if unit.phase >= DRAINING and unit.end <= t:
                    if loop.analytic:
                        flow(loop, t)
                    end_step(loop, unit, t)
            elif unit.end <= t:
                end_step(loop, unit, t)
    if loop.finishing:
        complete_runs(loop, t)


def end_step(loop: EventLoop, unit: Unit, t: int) -> None:
    """End the step of a unit: release its operands; its result follows after the drain."""
    run = unit.run
    step = unit.step
    piece = step.piece
    if piece.converting:
        report_conversion(loop, unit, t)
    emit(loop, t, unit.code, unit.end_event, run.ticket, step.tile, piece.payload, piece.aligned)
    step.released = t
    step.done = t + unit.result
    if loop.timed:
        release_request(loop, unit)
    unit.busy = 0
    unit.phase = 0
    unit.last_end = t
    run.finish = max(run.finish, step.done)
    run.remaining -= 1
    if not run.remaining:
        loop.finishing += 1
        for lane_unit in run.units:
            lane_unit.holder = None
            lane_unit.assigned = max(0, lane_unit.assigned - 1)


def complete_runs(loop: EventLoop, t: int) -> None:
    """Complete the commands whose last result is available, by acceptance number."""
    count = 0
    for run in loop.active:
        if not run.remaining and run.finish <= t:
            loop.completed.append(run.slot)
            loop.finishing -= 1
            for bank in loop.banks:
                if bank.busy:
                    emit(loop, t, bank.code, What.BANK_BUSY, run.ticket, 0, bank.busy, 0)
                    bank.busy = 0
            report_moved(loop, t, run.ticket)
        else:
            loop.active[count] = run
            count += 1
    del loop.active[count:]


# -- starts ------------------------------------------------------------------------------------------------------------


def ready_at(step: Step, step_class: int) -> int:
    """Return the cycle in which the predecessors of `step` have completed; FOREVER if one has no end yet."""
    ready = 0
    for predecessor in step.after:
        cycle = predecessor.released if step_class == READ else predecessor.done
        if cycle == NOT_YET:
            return FOREVER
        ready = max(ready, cycle)
    return ready


def usable(unit: Unit, run: Run) -> int:
    """Check whether a run may start a step on a unit now."""
    return not unit.busy and (unit.holder is None or unit.holder is run)


def unit_for(loop: EventLoop, run: Run, step_class: int, lane: int) -> Unit | None:
    """Return the unit of a step's lane if its command holds units of this kind, else the lowest free unit, or None."""
    kind = TE if step_class == TENSOR else VE if step_class == VECTOR else DMA
    if run.units[0].kind == kind:
        lane_unit = run.units[lane]
        return lane_unit if usable(lane_unit, run) else None
    index = 0
    for unit in loop.units:
        if unit.kind == kind and unit.cluster == run.cluster:
            if (kind != DMA or not loop.split or index == step_class) and usable(unit, run):
                return unit
            index += 1
    return None


def start_steps(loop: EventLoop, t: int) -> None:
    """Start every step that can start in cycle `t`, then recompute the shares of DRAM and NoC."""
    if loop.analytic:
        begin_bank_accesses(loop, t - 1)
    loop.wake = FOREVER
    searching = 1
    while searching:
        # the step that became ready first; then that of the older command, then reads before writes
        searching = 0
        earliest = FOREVER
        chosen = None
        chosen_run = None
        chosen_unit = None
        for run in loop.active:
            for step_class in range(CLASSES):
                step = run.heads[step_class]
                if step is not None:
                    ready = ready_at(step, step_class)
                    if step.issued != NOT_YET:
                        ready = step.issued - FOREVER
                    if ready > t:
                        loop.wake = min(loop.wake, ready)
                    elif ready < earliest:
                        unit = unit_for(loop, run, step_class, step.lane)
                        if unit is not None:
                            earliest = ready
                            chosen = step
                            chosen_run = run
                            chosen_unit = unit
        if chosen is not None and chosen_run is not None and chosen_unit is not None:
            begin_step(loop, chosen_run, chosen, chosen_unit, t)
            searching = 1
    if loop.outstanding > 1:
        issue_requests(loop, t)
    if loop.rates_due:
        loop.rates_due = 0
        if loop.analytic:
            foresee(loop, t)
        else:
            share_rates(loop, t)
    begin_bank_accesses(loop, t)


def issue_requests(loop: EventLoop, t: int) -> None:
    """Issue the requests of transfers that wait only for a channel, so that their latency counts from cycle `t`.

    Requests are issued in the order in which they became ready. Their transfers start before all others, in this order.
    """
    searching = 1
    while searching:
        searching = 0
        earliest = FOREVER
        chosen = None
        for run in loop.active:
            for step_class in range(WRITE + 1):
                step = next_request(run, step_class)
                if step is not None:
                    ready = ready_at(step, step_class)
                    if ready > t:
                        loop.wake = min(loop.wake, ready)
                    elif ready < earliest and free_requests(loop, run, step_class) > 0:
                        earliest = ready
                        chosen = step
        if chosen is not None:
            chosen.issued = t
            if loop.timed and not loop.analytic and chosen.piece.step_class == READ and not chosen.piece.aux & CACHED:
                request_data(loop, chosen, t)
            searching = 1


def next_request(run: Run, step_class: int) -> Step | None:
    """Return the first step of a class whose request has not been issued."""
    step = run.heads[step_class]
    while step is not None and step.issued != NOT_YET:
        step = step.next
    return step


def free_requests(loop: EventLoop, run: Run, step_class: int) -> int:
    """Return the number of requests that a run may issue, to its own channel or to the shared channels."""
    unit_of_run = run.units[0]
    count = 0
    for unit in loop.units:
        if unit.kind == DMA and unit.cluster == run.cluster and (unit_of_run.kind != DMA or unit is unit_of_run):
            count += loop.outstanding - 1
    by_class = unit_of_run.kind != DMA and loop.split
    if by_class:
        count = loop.outstanding - 1
    for rival in loop.active:
        if rival.remaining and rival.cluster == run.cluster:
            first = rival.units[0]
            if first is unit_of_run or (unit_of_run.kind != DMA and first.kind != DMA):
                for request_class in range(WRITE + 1):
                    if request_class == step_class or not by_class:
                        step = rival.heads[request_class]
                        while step is not None and step.issued != NOT_YET:
                            count -= 1
                            step = step.next
    return count


def begin_step(loop: EventLoop, run: Run, step: Step, unit: Unit, t: int) -> None:
    """Begin a step, the next of its class, on a unit."""
    piece = step.piece
    run.heads[piece.step_class] = step.next
    unit.busy = 1
    unit.run = run
    unit.step = step
    emit(loop, t, unit.code, unit.begin_event, run.ticket, step.tile, piece.payload, piece.aux)
    if unit.kind == DMA:
        begin_transfer(loop, unit, t)
    else:
        cycles = piece.cycles
        if unit.last_end != t:
            cycles += piece.cold
        unit.start = t
        unit.length = cycles
        unit.end = t + cycles
        unit.result = piece.drain
        if loop.external and unit.external:
            unit.end = FOREVER
            unit.stalled = 0
            loop.begun.append(unit.code)
        use_banks(loop, unit, t)


def start(loop: EventLoop, t: int) -> int:
    """Call `start_steps`. Return the cycle of the next event."""
    start_steps(loop, t)
    return next_cycle(loop)


# -- runs --------------------------------------------------------------------------------------------------------------


def admit(loop: EventLoop, run: Run, number: int, ticket: int, cluster: int, count: int, t: int) -> None:
    """Admit a run of `count` steps to a slot in cycle `t`, without units and heads. A run of no steps ends in `t`."""
    run.number = number
    run.ticket = ticket
    run.cluster = cluster
    run.remaining = count
    run.finish = t
    run.units.clear()
    for step_class in range(CLASSES):
        run.heads[step_class] = None
    if not count:
        loop.finishing += 1
    at = len(loop.active)
    loop.active.append(run)
    while at and loop.active[at - 1].number > number:
        loop.active[at] = loop.active[at - 1]
        at -= 1
    loop.active[at] = run


def hold(loop: EventLoop, run: Run, unit: Unit) -> None:
    """Assign a unit to the next lane of a run. A channel with several outstanding transfers serves several runs."""
    run.units.append(unit)
    if unit.kind == DMA and loop.outstanding > 1:
        unit.assigned += 1
    else:
        unit.holder = run


def begin_single(
    loop: EventLoop, run: Run, piece: PieceRecord, dram: int, number: int, ticket: int, unit: Unit, t: int
) -> None:
    """Begin a run of one step on a unit."""
    step = run.single
    step.piece = piece
    step.dram = dram
    step.released = NOT_YET
    step.done = NOT_YET
    step.issued = NOT_YET
    step.request = None
    admit(loop, run, number, ticket, unit.cluster, 1, t)
    run.heads[piece.step_class] = step
    hold(loop, run, unit)
    start_steps(loop, t)


# -- time --------------------------------------------------------------------------------------------------------------


def next_cycle(loop: EventLoop) -> int:
    """Return the cycle of the next event, for a timed DRAM a lower bound; FOREVER for none."""
    cycle = next_event(loop)
    if loop.timed and loop.dram.unserved:
        for unit in loop.units:
            if unit.phase == MOVING and unit.request is not None and unit.request.end == FOREVER:
                cycle = min(cycle, max(loop.time + 1, earliest_end(loop.dram, unit.request)))
    return cycle


def next_event(loop: EventLoop) -> int:
    """Return the cycle of the next event, without the transfers whose end a timed DRAM has not determined."""
    cycle = loop.wake
    for unit in loop.units:
        if unit.busy:
            if unit.kind != DMA or unit.phase >= DRAINING:
                cycle = min(cycle, unit.end)
            elif unit.phase == LATENCY:
                cycle = min(cycle, unit.start)
            else:
                cycle = min(cycle, transfer_end(loop, unit))
    if loop.finishing:
        for run in loop.active:
            if not run.remaining:
                cycle = min(cycle, run.finish)
    return max(cycle, loop.time)


def takes_run(loop: EventLoop, unit: Unit) -> int:
    """Check whether a unit can take another run: it is free, or a DMA channel with fewer runs than its limit of
    outstanding transfers."""
    if unit.kind == DMA and loop.outstanding > 1:
        return unit.assigned < loop.outstanding
    return not unit.busy and unit.holder is None


def find_units(loop: EventLoop, kind: int, cluster: int, index: int) -> int:
    """Fill `loop.free_units` with the codes of units that can take a run, least loaded DMA channels first. Return the
    first, or NO_UNIT. `index`: that of a unit within the cluster, from 1; 0 for all."""
    loop.free_units.clear()
    for load in range(loop.outstanding):
        position = 0
        for unit in loop.units:
            if unit.kind == kind and unit.cluster == cluster:
                position += 1
                if (
                    (not index or index == position) and not unit.stuck and takes_run(loop, unit)
                    and (unit.assigned or unit.busy) == load
                ):  # fmt: skip
                    loop.free_units.append(unit.code)
    return loop.free_units[0] if loop.free_units else NO_UNIT


def requested_unit_free(loop: EventLoop) -> int:
    """Check whether a unit is free on which a waiting command could start."""
    if loop.requested:
        for unit in loop.units:
            if takes_run(loop, unit) and loop.requested >> 16 * unit.kind + unit.cluster & 1:
                return 1
    return 0


def serve_until(loop: EventLoop, t: int, limit: int) -> int:
    """Serve the row segments of a timed DRAM that are chosen before `limit` and before the next event, which is at `t`
    or at the end of a transfer that this completes. Return the cycle of the next event."""
    dram = loop.dram
    until = dram_cycle_of(dram, min(t, limit))
    unserved = dram.unserved
    while unserved and serve_next(dram, until):
        if dram.unserved < unserved:
            unserved = dram.unserved
            t = next_event(loop)
            until = dram_cycle_of(dram, min(t, limit))
    dram.served_until = max(dram.served_until, min(t, limit))
    return t


def advance(loop: EventLoop, limit: int) -> int:
    """Step through cycles below `limit` until another part of the device must act. Return the reason.

    IDLE: no event is due below `limit`. COMPLETE: commands completed in cycle `time`; its starts are pending, and
    recompute `wake`. UNIT_FREE: a unit for which a command waits is free after the starts of cycle `time`. BEGUN: a
    step began on an external unit in cycle `time`.
    """
    while True:
        t = next_event(loop)
        if loop.timed:
            t = serve_until(loop, t, limit)
        if t >= limit:
            return IDLE
        if loop.analytic and begin_bank_accesses(loop, t - 1):
            continue
        end_steps(loop, t)
        if loop.completed:
            loop.wake = FOREVER
            return COMPLETE
        start_steps(loop, t)
        if loop.external and loop.begun:
            return BEGUN
        if requested_unit_free(loop):
            return UNIT_FREE
