"use strict";
/* Runs over core cycles, on canvases that share one time axis: lanes of spans, and below them what is counted from the
   same spans (engines at work, queue depth) or in bins (banks, scratchpad, barriers). Drawing costs at most one rectangle
   per pixel column and lane. */

/* Values from their differences, which begin at zero. */
function sums(differences) {
  let sum = 0;
  return Float64Array.from(differences, (step) => (sum += step));
}

/* First index whose value is above `limit`, in an ascending array. */
function above(values, limit) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle; else low = middle + 1;
  }
  return low;
}

/* Sum of max(0, moment - value) over ascending values, by their running sums. */
function passed(values, sums, moment) {
  const count = above(values, moment);
  return moment * count - (count ? sums[count - 1] : 0);
}

/* How many spans are open, as a function of time: means over columns are exact at every zoom. */
class Depth {
  constructor(lanes, whole) {
    const all = (name) => {
      const values = new Float64Array(lanes.reduce((sum, lane) => sum + lane.count, 0));
      let at = 0;
      for (const lane of lanes) { values.set(lane[name], at); at += lane.count; }
      return values.sort();
    };
    this.start = all("start"); this.stop = all("stop");
    this.starts = sums(this.start); this.stops = sums(this.stop);
    this.whole = whole;
    let most = 0;
    for (let index = 0, ended = 0; index < this.start.length; index++) {
      while (this.stop[ended] <= this.start[index]) ended++;
      most = Math.max(most, index + 1 - ended);
    }
    this.most = whole || most;
  }

  until(moment) { return passed(this.start, this.starts, moment) - passed(this.stop, this.stops, moment); }

  /* The mean over [from, to). */
  mean(from, to) { return (this.until(to) - this.until(from)) / Math.max(to - from, 1e-9); }
}

/* Values in bins. */
class Bins {
  constructor(edges, track) {
    this.edges = edges;
    const values = sums(track.values);
    this.values = values.map((value) => value * track.step);
    this.most = track.most || Math.max(...this.values);
  }

  mean(from, to) {
    let sum = 0, index = Math.max(0, above(this.edges, from) - 1);
    for (; index < this.values.length && this.edges[index] < to; index++)
      sum += this.values[index] * (Math.min(to, this.edges[index + 1]) - Math.max(from, this.edges[index]));
    return sum / Math.max(to - from, 1e-9);
  }
}

/* What all charts of the page show: [from, to) of the longest run. */
const axis = {
  from: 0, to: 10, end: 10, charts: [], measured: null, waiting: false,
  show(from, to) {
    const span = Math.min(Math.max(to - from, 10), axis.end);
    axis.from = Math.min(Math.max(from, 0), axis.end - span);
    axis.to = axis.from + span;
    axis.charts.forEach((chart) => chart.draw());
  },
  zoom(factor, share) {
    const span = (axis.to - axis.from) * factor, middle = axis.from + (axis.to - axis.from) * share;
    axis.show(middle - span * share, middle + span * (1 - share));
  },
  pan(share) { const step = (axis.to - axis.from) * share; axis.show(axis.from + step, axis.to + step); },
};
/* Seconds with the prefix that leaves few digits. */
function duration(seconds) {
  const [factor, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]].find(([least]) => seconds >= least) || [1e-9, "ns"];
  return `${text(seconds / factor)} ${unit}`;
}
const text = (value) => value.toLocaleString("en", { maximumFractionDigits: 2 });

class Gantt {
  static ROW = 24;
  static LEFT = 92;
  static HEAD = 22;
  static FAINT = 0.25; // of a column in which hardly anything is

  constructor(root, run, name) {
    Object.assign(this, { name, run, layers: run.layers, chosen: null, spans: [], arrows: [] });
    this.tickets = sums(run.tickets);
    this.layer = sums(run.layer);
    this.lanes = run.lanes.map((lane) => {
      const start = sums(lane.start), length = sums(lane.length);
      const stop = start.map((value, index) => value + length[index]);
      let last = -Infinity; // ends in the order of starts may fall back: their running maximum can be searched
      const reach = stop.map((value) => (last = Math.max(last, value)));
      return { ...lane, start, stop, reach, ticket: sums(run.columns[lane.ticket]) };
    });
    const edges = sums(run.edges), kinds = {};
    for (const lane of this.lanes) if (lane.engine) (kinds[lane.engine] ||= []).push(lane);
    this.rows = this.lanes.map((lane) => ({ name: lane.name, lane, height: Gantt.ROW }));
    for (const [kind, lanes] of Object.entries(kinds))
      this.rows.push({ name: `${kind} busy`, unit: "%", times: 100, colour: lanes[0].colour, height: 46,
        track: new Depth(lanes, run.engines[kind]), share: true });
    const queue = this.lanes.find((lane) => lane.name === "queue");
    if (queue && queue.count)
      this.rows.push({ name: "queue depth", unit: "commands", times: 1, colour: queue.colour, height: 46, track: new Depth([queue]) });
    for (const each of run.tracks)
      this.rows.push({ ...each, times: each.unit === "%" ? 100 : 1, height: each.heat ? 13 : 46, track: new Bins(edges, each) });
    let top = Gantt.HEAD;
    for (const row of this.rows) { row.top = top; top += row.height + (row.track && !row.heat ? 4 : 0); }
    this.height = top + 6;
    this.canvas = root.querySelector("canvas");
    this.canvas.style.height = `${this.height}px`;
    axis.end = Math.max(axis.end, run.end);
    axis.charts.push(this);
    this.drawn = 0; // the width for which it was drawn
    new ResizeObserver(() => { if (this.drawn !== this.canvas.clientWidth) this.draw(); }).observe(this.canvas);
    theme.changed.push(() => { if (this.drawn) this.draw(); });
    pointer(this);
  }

  get width() { return Math.max(this.canvas.clientWidth - Gantt.LEFT - 8, 1); }
  x(cycle) { return Gantt.LEFT + (cycle - axis.from) / (axis.to - axis.from) * this.width; }
  share(event) { return Math.min(1, Math.max(0, (event.offsetX - Gantt.LEFT) / this.width)); }
  cycle(event) { return axis.from + (axis.to - axis.from) * this.share(event); }

  /* The number of the command with a ticket, -1 where it is not known. */
  command(ticket) {
    const index = above(this.tickets, ticket) - 1;
    return index >= 0 && this.tickets[index] === ticket ? index : -1;
  }

  /* Of the command with a ticket: ", layer NAME", where it is known. */
  layerOf(ticket) {
    const index = this.command(ticket);
    return index >= 0 ? `, layer ${this.layers[this.layer[index]]}` : "";
  }

  /* The row at a height, and of a lane the span nearest to a cycle. */
  at(event) {
    const row = this.rows.find((each) => event.offsetY >= each.top && event.offsetY < each.top + each.height);
    const lane = row?.lane, cycle = this.cycle(event), slack = (axis.to - axis.from) / this.width * 2;
    if (!lane) return { row, cycle };
    const index = above(lane.reach, cycle - slack);
    return index < lane.count && lane.start[index] <= cycle + slack ? { row, lane, index, cycle } : { row, lane, cycle };
  }

  tip(event) {
    const { row, lane, index, cycle } = this.at(event), lines = [`cycle ${text(Math.round(cycle))}`];
    if (index !== undefined) {
      const from = lane.start[index], to = lane.stop[index], ticket = lane.ticket[index];
      lines[0] = `${lane.name}: ticket ${ticket}${this.layerOf(ticket)}`;
      lines.push(`${text(from)} to ${text(to)}, ${text(to - from)} cycles`);
    } else if (row?.track) {
      const span = (axis.to - axis.from) / this.width;
      lines.push(`${row.name}: ${text(this.value(row, cycle - span / 2, cycle + span / 2))} ${row.unit}`);
    }
    return lines.join("\n");
  }

  value(row, from, to) { return row.track.mean(from, to) * row.times / (row.share ? row.track.whole : 1); }

  /* Marks all spans of a command, and what it waited for and what waited for it. */
  choose(ticket) {
    const of = (one) => this.rows.flatMap((row) => !row.lane ? [] : Array.from(row.lane.ticket.keys())
      .filter((index) => row.lane.ticket[index] === one)
      .map((index) => ({ row, engine: row.lane.engine, start: row.lane.start[index], stop: row.lane.stop[index] })));
    this.chosen = ticket;
    this.arrows = [];
    this.spans = ticket === null ? [] : of(ticket);
    const work = this.spans.filter((span) => span.engine).sort((a, b) => a.start - b.start);
    const life = [...this.spans.filter((span) => !span.engine).sort((a, b) => a.start - b.start), ...work.slice(0, 1)];
    for (let index = 1; index < life.length; index++) this.arrows.push([life[index - 1], life[index], "life"]);
    const link = (other, forward) => {
      const theirs = of(this.tickets[other]).filter((span) => span.engine);
      if (!theirs.length || !work.length) return;
      const last = (spans) => spans.reduce((a, b) => (b.stop > a.stop ? b : a));
      const first = (spans) => spans.reduce((a, b) => (b.start < a.start ? b : a));
      this.arrows.push(forward ? [last(work), first(theirs), "after"] : [last(theirs), first(work), "before"]);
    };
    const me = ticket === null ? -1 : this.command(ticket);
    if (me >= 0 && this.run.waits.length) {
      this.run.waits[me].forEach((other) => link(other, false));
      this.run.waits.forEach((others, index) => { if (others.includes(me)) link(index, true); });
    }
    this.draw();
    if (ticket === null) return "";
    const waits = me >= 0 && this.run.waits.length ? `, waits for ${this.run.waits[me].map((other) => `ticket ${this.tickets[other]}`).join(", ") || "no command"}` : "";
    return `${this.name}: ticket ${ticket}${this.layerOf(ticket)}${waits}`;
  }

  /* Marks the spans of all commands whose layer has these letters; how many commands. */
  find(words) {
    const found = this.layers.map((layer) => layer.toLowerCase().includes(words));
    const tickets = new Set(Array.from(this.tickets).filter((_, index) => found[this.layer[index]]));
    this.arrows = [];
    this.spans = !tickets.size ? [] : this.rows.flatMap((row) => !row.lane ? [] : Array.from(row.lane.ticket.keys())
      .filter((index) => tickets.has(row.lane.ticket[index]))
      .map((index) => ({ row, start: row.lane.start[index], stop: row.lane.stop[index] })));
    this.draw();
    return tickets.size;
  }

  draw() {
    this.drawn = this.canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1, width = this.width, style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const size = [Math.round((width + Gantt.LEFT + 8) * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1]) [this.canvas.width, this.canvas.height] = size;
    const paint = this.canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, size[0], size[1]);
    paint.font = "12px system-ui, sans-serif";
    this.ticks(paint, width / (axis.to - axis.from), colour);
    for (const row of this.rows) {
      paint.fillStyle = colour("ink");
      paint.font = row.heat ? "10px system-ui, sans-serif" : "12px system-ui, sans-serif";
      paint.fillText(row.name, 8, row.top + Math.min(16, row.height - 2), Gantt.LEFT - 12);
      if (row.lane) this.drawLane(paint, row, Math.round(width * ratio), ratio);
      else this.drawTrack(paint, row, width, colour);
    }
    this.drawMarks(paint, colour);
  }

  drawLane(paint, row, count, ratio) {
    const lane = row.lane, byLayer = Gantt.colours === "layer" && this.layers.length > 0;
    const owner = byLayer ? new Int32Array(count) : null, columns = this.columns(lane, count, owner);
    const hue = (index) => {
      const command = this.command(lane.ticket[index]);
      return command < 0 ? -1 : this.layer[command];
    };
    for (let first = 0, last; first < count; first = last) {
      const layer = byLayer && columns[first] ? hue(owner[first]) : -1;
      for (last = first + 1; last < count && columns[last] === columns[first]
        && (!byLayer || owner[last] === owner[first] || hue(owner[last]) === layer);) last++;
      if (columns[first] === 0) continue;
      paint.fillStyle = layer < 0 ? lane.colour : `hsl(${(layer * 137.5) % 360} 60% 52%)`;
      paint.globalAlpha = Gantt.FAINT + (1 - Gantt.FAINT) * columns[first];
      paint.fillRect(Gantt.LEFT + first / ratio, row.top + 3, (last - first) / ratio, row.height - 6);
    }
    paint.globalAlpha = 1;
  }

  drawTrack(paint, row, width, colour) {
    const step = (axis.to - axis.from) / width, most = row.share ? 100 : row.track.most * row.times || 1;
    const base = row.top + row.height - 1;
    paint.fillStyle = row.heat ? `rgb(${colour(row.conflict ? "heat-bad" : "heat")})` : row.colour || colour("accent");
    for (let x = 0; x < width; x++) {
      const from = axis.from + x * step, value = this.value(row, from, from + step);
      if (value <= 0) continue;
      if (row.heat) paint.globalAlpha = Math.min(1, value / most);
      const high = row.heat ? row.height - 2 : Math.max(1, (row.height - 6) * Math.min(1, value / most));
      paint.fillRect(Gantt.LEFT + x, base - high, 1, high);
    }
    paint.globalAlpha = 1;
    if (row.heat) return;
    paint.fillStyle = colour("line");
    paint.fillRect(Gantt.LEFT, base, width, 1);
    paint.fillStyle = colour("muted");
    paint.font = "10.5px system-ui, sans-serif";
    paint.fillText(`to ${text(most)} ${row.unit}`, 8, row.top + 30, Gantt.LEFT - 12);
  }

  drawMarks(paint, colour) {
    const clip = (cycle) => Math.min(Math.max(this.x(cycle), Gantt.LEFT), Gantt.LEFT + this.width);
    paint.strokeStyle = colour("ink");
    paint.lineWidth = 1.5;
    for (const span of this.spans) {
      if (span.stop < axis.from || span.start > axis.to) continue;
      const left = clip(span.start), right = clip(span.stop);
      paint.strokeRect(left, span.row.top + 2, Math.max(right - left, 2), span.row.height - 4);
    }
    for (const [from, to, kind] of this.arrows) {
      const x = clip(from.stop), y = from.row.top + from.row.height / 2, u = clip(to.start), v = to.row.top + to.row.height / 2;
      paint.strokeStyle = paint.fillStyle = colour({ life: "muted", before: "bad", after: "good" }[kind]);
      const bend = Math.max(18, Math.abs(u - x) / 2);
      paint.beginPath(); paint.moveTo(x, y); paint.bezierCurveTo(x + bend, y, u - bend, v, u, v); paint.stroke();
      paint.beginPath(); paint.moveTo(u, v); paint.lineTo(u - 7, v - 4); paint.lineTo(u - 7, v + 4); paint.fill();
    }
    if (axis.measured) {
      const [left, right] = axis.measured.map(clip);
      paint.fillStyle = colour("accent");
      paint.globalAlpha = 0.18;
      paint.fillRect(left, Gantt.HEAD, right - left, this.height);
      paint.globalAlpha = 1;
    }
  }

  /* Of `count` columns of pixels, which share of each is covered by spans; they may overlap. Not 0 where a span is.
     `owner` is told a span of each column, the last that begins there. */
  columns(lane, count, owner) {
    const share = new Float32Array(count), scale = count / (axis.to - axis.from);
    let reached = axis.from;
    for (let index = above(lane.reach, axis.from); index < lane.count && lane.start[index] < axis.to; index++) {
      const left = (Math.max(lane.start[index], reached) - axis.from) * scale;
      const right = Math.min((lane.stop[index] - axis.from) * scale, count);
      const first = Math.max(0, Math.min(Math.floor(left), count - 1)), last = Math.floor(right);
      if (owner) owner.fill(index, first, Math.max(first + 1, Math.min(Math.ceil(right), count)));
      if (right <= left) {
        if (share[first] === 0) share[first] = 1e-3;
        continue;
      }
      reached = lane.stop[index];
      if (first >= last) {
        share[first] += right - left;
        continue;
      }
      share[first] += first + 1 - left;
      share.fill(1, first + 1, last);
      if (last < count) share[last] += right - last;
    }
    return share.map((value) => Math.min(value, 1));
  }

  ticks(paint, scale, colour) {
    const aim = Math.min(150, this.width / 3) / scale;
    let step = 1;
    for (let turn = 0; step < aim; turn++) step *= turn % 3 === 1 ? 2.5 : 2;
    paint.textBaseline = "alphabetic";
    paint.fillStyle = colour("muted");
    paint.fillText("core cycles", 8, 14);
    for (let tick = Math.ceil(axis.from / step) * step; tick <= axis.to; tick += step) {
      const x = this.x(tick);
      paint.fillStyle = colour("grid");
      paint.fillRect(x, Gantt.HEAD - 4, 1, this.height);
      paint.fillStyle = colour("muted");
      const label = `${text(tick)}${this.run.hertz ? ` = ${duration(tick / this.run.hertz)}` : " cycles"}`;
      if (x + 3 + paint.measureText(label).width <= Gantt.LEFT + this.width + 8) paint.fillText(label, x + 3, 14);
    }
    if (this.run.end < axis.end) { // the run is over
      paint.fillStyle = colour("muted");
      paint.fillRect(Math.max(this.x(this.run.end), Gantt.LEFT), Gantt.HEAD, 1, this.height);
    }
  }
}
Gantt.colours = "unit";
