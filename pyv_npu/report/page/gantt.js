"use strict";
/* A chart of spans over core cycles on a canvas. Drawing costs at most one rectangle per pixel column and lane. */

/* The inverse of `packed` in pyv_npu/report/figures.py. */
function unpack(text, count) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const values = new Float64Array(count);
  let at = 0, sum = 0;
  for (let index = 0; index < count; index++) {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    sum += value % 2 ? -(value + 1) / 2 : value / 2;
    values[index] = sum;
  }
  return values;
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

class Gantt {
  static ROW = 24;
  static LEFT = 74;
  static HEAD = 22;
  static FAINT = 0.25; // of a column in which hardly anything is

  constructor(root, run) {
    this.end = run.end;
    this.layers = run.layers;
    this.tickets = unpack(run.tickets, run.known);
    this.layer = unpack(run.layer, run.known);
    this.lanes = run.lanes.map((lane) => {
      const start = unpack(lane.start, lane.count), length = unpack(lane.length, lane.count);
      const stop = start.map((value, index) => value + length[index]);
      let last = -Infinity; // ends in the order of starts may fall back: their running maximum can be searched
      const reach = stop.map((value) => (last = Math.max(last, value)));
      return { ...lane, start, stop, reach, ticket: unpack(lane.ticket, lane.count) };
    });
    this.canvas = root.querySelector("canvas");
    this.output = root.querySelector("output");
    this.height = Gantt.HEAD + Gantt.ROW * this.lanes.length + 6;
    this.canvas.style.height = `${this.height}px`;
    this.show(0, this.end);
    root.querySelector("[data-do=in]").onclick = () => this.zoom(0.5, 0.5);
    root.querySelector("[data-do=out]").onclick = () => this.zoom(2, 0.5);
    root.querySelector("[data-do=all]").onclick = () => this.show(0, this.end);
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.share(event));
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = { x: event.clientX, from: this.from };
    });
    this.canvas.addEventListener("pointerup", () => { this.drag = null; });
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  get width() { return Math.max(this.canvas.clientWidth - Gantt.LEFT, 1); }

  share(event) {
    return Math.min(1, Math.max(0, (event.offsetX - Gantt.LEFT) / this.width));
  }

  show(from, to) {
    const span = Math.min(Math.max(to - from, 10), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - span);
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, share) {
    const span = (this.to - this.from) * factor, middle = this.from + (this.to - this.from) * share;
    this.show(middle - span * share, middle + span * (1 - share));
  }

  /* Of the command with a ticket: ", layer NAME", where it is known. */
  layerOf(ticket) {
    const index = above(this.tickets, ticket) - 1;
    return index >= 0 && this.tickets[index] === ticket ? `, layer ${this.layers[this.layer[index]]}` : "";
  }

  moved(event) {
    const span = this.to - this.from;
    if (this.drag) {
      const from = this.drag.from - (event.clientX - this.drag.x) / this.width * span;
      this.show(from, from + span);
      return;
    }
    const cycle = this.from + span * this.share(event);
    const lane = this.lanes[Math.floor((event.offsetY - Gantt.HEAD) / Gantt.ROW)];
    let text = `cycle ${Math.round(cycle).toLocaleString("en")}`;
    if (lane) {
      const slack = span / this.width * 2, index = above(lane.reach, cycle - slack);
      if (index < lane.count && lane.start[index] <= cycle + slack) {
        const from = lane.start[index], to = lane.stop[index];
        text += ` · ${lane.name}: ticket ${lane.ticket[index]}${this.layerOf(lane.ticket[index])}, ${from.toLocaleString("en")} to `
          + `${to.toLocaleString("en")} (${(to - from).toLocaleString("en")} cycles)`;
      }
    }
    this.output.textContent = text;
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, width = this.width, scale = width / (this.to - this.from);
    this.canvas.width = (width + Gantt.LEFT) * ratio;
    this.canvas.height = this.height * ratio;
    const paint = this.canvas.getContext("2d");
    paint.scale(ratio, ratio);
    paint.font = "12px system-ui, sans-serif";
    this.ticks(paint, scale);
    this.lanes.forEach((lane, row) => {
      const top = Gantt.HEAD + row * Gantt.ROW;
      paint.fillStyle = "#333";
      paint.fillText(lane.name, 10, top + 16);
      paint.fillStyle = lane.colour;
      const columns = this.columns(lane, Math.round(width * ratio));
      for (let first = 0, last; first < columns.length; first = last) {
        for (last = first + 1; last < columns.length && columns[last] === columns[first];) last++;
        if (columns[first] === 0) continue;
        paint.globalAlpha = Gantt.FAINT + (1 - Gantt.FAINT) * columns[first];
        paint.fillRect(Gantt.LEFT + first / ratio, top + 3, (last - first) / ratio, Gantt.ROW - 6);
      }
      paint.globalAlpha = 1;
    });
  }

  /* Of `count` columns of pixels, which share of each is covered by spans; they may overlap. Not 0 where a span is. */
  columns(lane, count) {
    const share = new Float32Array(count), scale = count / (this.to - this.from);
    let reached = this.from;
    for (let index = above(lane.reach, this.from); index < lane.count && lane.start[index] < this.to; index++) {
      const left = (Math.max(lane.start[index], reached) - this.from) * scale;
      const right = Math.min((lane.stop[index] - this.from) * scale, count);
      const first = Math.min(Math.floor(left), count - 1), last = Math.floor(right);
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

  ticks(paint, scale) {
    const aim = 110 / scale;
    let step = 1;
    for (let turn = 0; step < aim; turn++) step *= turn % 3 === 1 ? 2.5 : 2;
    paint.textBaseline = "alphabetic";
    for (let tick = Math.ceil(this.from / step) * step; tick <= this.to; tick += step) {
      const x = Gantt.LEFT + (tick - this.from) * scale;
      paint.fillStyle = "#e6e6e6";
      paint.fillRect(x, Gantt.HEAD - 4, 1, this.height);
      paint.fillStyle = "#666";
      paint.fillText(tick.toLocaleString("en"), x + 3, 14);
    }
  }
}

const gantts = {};
for (const root of document.querySelectorAll(".gantt")) {
  const data = JSON.parse(document.getElementById(root.dataset.run).textContent);
  gantts[root.dataset.run] = new Gantt(root, data);
}
