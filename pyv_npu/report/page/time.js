"use strict";
/* What readers do with the charts of gantt.js: pointer, keys, buttons, search, measuring, and a file for Perfetto. */
const tip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));

function say(words) { document.querySelectorAll(".time output").forEach((output) => { output.textContent = words; }); }

/* Chooses the command with a ticket in all runs; what is said of it is of one. */
function choose(chart, ticket) {
  const said = axis.charts.map((each) => [each, each.choose(ticket)]);
  say(said.find(([each]) => each === chart)[1]);
}

function measure(chart, from, to) {
  axis.measured = [Math.min(from, to), Math.max(from, to)];
  axis.charts.forEach((each) => each.draw());
  const [low, high] = axis.measured.map(Math.round), hertz = chart.run.hertz;
  const time = hertz ? ` = ${duration((high - low) / hertz)}` : "";
  const busy = chart.rows.filter((row) => row.share && high > low)
    .map((row) => `${row.name} ${text(chart.value(row, low, high))} %`);
  say([`${chart.name}: ${text(low)} to ${text(high)}, ${text(high - low)} cycles${time}`, ...busy].join(" · "));
}

function pointer(chart) {
  const canvas = chart.canvas;
  let held = null;
  canvas.addEventListener("wheel", (event) => { // without a key or the focus the wheel scrolls the page
    const aside = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !aside && document.activeElement !== canvas) return;
    event.preventDefault();
    if (aside) axis.pan((event.deltaX || event.deltaY) / 800);
    else axis.zoom(event.deltaY > 0 ? 1.25 : 0.8, chart.share(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held = { x: event.clientX, from: axis.from, cycle: chart.cycle(event), measuring: event.shiftKey || measuring, moved: false };
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.moved && !held.measuring) {
      const { lane, index } = chart.at(event);
      if (axis.measured) { axis.measured = null; axis.charts.forEach((each) => each.draw()); }
      choose(chart, index === undefined ? null : lane.ticket[index]);
    }
    held = null;
  });
  canvas.addEventListener("pointerleave", () => { tip.textContent = ""; });
  canvas.addEventListener("pointermove", (event) => {
    if (held && (held.moved || Math.abs(event.clientX - held.x) > 3)) {
      held.moved = true;
      tip.textContent = "";
      if (held.measuring) measure(chart, held.cycle, chart.cycle(event));
      else {
        const from = held.from - (event.clientX - held.x) / chart.width * (axis.to - axis.from);
        axis.show(from, from + axis.to - axis.from);
      }
      return;
    }
    tip.textContent = event.offsetX < Gantt.LEFT ? "" : chart.tip(event);
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
  });
  canvas.addEventListener("keydown", (event) => {
    const act = {
      ArrowLeft: () => axis.pan(-0.2), ArrowRight: () => axis.pan(0.2), "+": () => axis.zoom(0.5, 0.5), "=": () => axis.zoom(0.5, 0.5),
      "-": () => axis.zoom(2, 0.5), 0: () => axis.show(0, axis.end), Home: () => axis.show(0, axis.to - axis.from),
      End: () => axis.show(axis.end - (axis.to - axis.from), axis.end), n: () => beside(chart, 1), p: () => beside(chart, -1),
      "/": () => document.querySelector(".time input").focus(),
      Escape: () => { axis.measured = null; choose(chart, null); },
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  });
}

/* The next or the last command, by ticket. */
function beside(chart, step) {
  const tickets = chart.order ||= [...new Set(chart.lanes.flatMap((lane) => Array.from(lane.ticket)))].sort((a, b) => a - b);
  const at = chart.chosen === null ? (step > 0 ? -1 : tickets.length) : tickets.indexOf(chart.chosen);
  const ticket = tickets[Math.min(Math.max(at + step, 0), tickets.length - 1)];
  if (ticket !== undefined) reveal(chart, ticket);
}

/* Chooses a command and moves the axis to where it is in all runs. */
function reveal(chart, ticket) {
  choose(chart, ticket);
  const spans = axis.charts.flatMap((each) => each.spans);
  if (!spans.length) { say(`no ticket ${ticket}`); return; }
  const low = spans.reduce((least, span) => Math.min(least, span.start), Infinity);
  const high = spans.reduce((most, span) => Math.max(most, span.stop), 0);
  if (low < axis.from || high > axis.to || high - low < (axis.to - axis.from) / 50) {
    const margin = Math.max(high - low, 20);
    axis.show(low - margin, high + margin);
  }
}

function search(words) {
  const plain = words.trim().toLowerCase();
  if (/^[0-9]+$/.test(plain)) {
    reveal(axis.charts.find((chart) => chart.lanes.some((lane) => lane.ticket.includes(Number(plain)))) || axis.charts[0], Number(plain));
    return;
  }
  const counts = axis.charts.map((chart) => `${chart.name}: ${plain ? chart.find(plain) : (chart.choose(null), 0)} commands`);
  say(plain ? counts.join(", ") : "");
}

/* Chrome's trace events, which ui.perfetto.dev and other viewers open; a nanosecond is a core cycle. */
function traceEvents() {
  const events = [];
  axis.charts.forEach((chart, process) => {
    const pid = process + 1, first = new Map();
    events.push({ ph: "M", pid, name: "process_name", args: { name: `${chart.name}, 1 ns = 1 core cycle` } });
    chart.lanes.forEach((lane, thread) => {
      const tid = thread + 1;
      events.push({ ph: "M", pid, tid, name: "thread_name", args: { name: lane.name } });
      lane.start.forEach((start, index) => {
        const ticket = lane.ticket[index], ts = start / 1000, dur = (lane.stop[index] - start) / 1000;
        const name = `${ticket}${chart.layerOf(ticket).replace(", layer", "")}`;
        if (lane.name === "queue") { // spans that overlap are no slices of one thread
          events.push({ ph: "b", cat: "queue", id: ticket, pid, tid, ts, name }, { ph: "e", cat: "queue", id: ticket, pid, tid, ts: ts + dur, name });
          return;
        }
        events.push({ ph: "X", pid, tid, ts, dur, name });
        const flow = { cat: "submission", name: "submission", id: pid * 2 ** 32 + ticket, pid, tid, ts };
        if (lane.name === "core") { events.push({ ...flow, ph: "s" }); first.set(ticket, true); }
        else if (first.get(ticket)) { events.push({ ...flow, ph: "f", bp: "e" }); first.set(ticket, false); }
      });
    });
  });
  return { traceEvents: events, displayTimeUnit: "ns" };
}

const gantts = {};
let measuring = false, ready = Promise.resolve();
for (const root of document.querySelectorAll(".time")) {
  const parts = [...root.querySelectorAll("[data-run]")];
  ready = Promise.all(parts.map((part) => inflated(part.dataset.run))).then((texts) => {
    parts.forEach((part, index) => {
      gantts[part.dataset.run] = new Gantt(part, JSON.parse(texts[index]), part.dataset.name);
    });
    axis.show(0, axis.end);
  });
  const act = (name, does) => { root.querySelector(`[data-do=${name}]`).onclick = does; };
  act("in", () => axis.zoom(0.5, 0.5));
  act("out", () => axis.zoom(2, 0.5));
  act("all", () => axis.show(0, axis.end));
  act("left", () => axis.pan(-0.5));
  act("right", () => axis.pan(0.5));
  act("measure", (event) => { measuring = !measuring; event.target.setAttribute("aria-pressed", measuring); });
  act("perfetto", () => save("trace.json", JSON.stringify(traceEvents()), "application/json"));
  root.querySelector("select").onchange = (event) => { Gantt.colours = event.target.value; axis.charts.forEach((chart) => chart.draw()); };
  root.querySelector("input").addEventListener("input", (event) => search(event.target.value));
}
