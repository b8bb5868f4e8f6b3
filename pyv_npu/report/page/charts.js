"use strict";
/* Vega-Lite charts: each is drawn when it comes into view, again in the other colours or at another width. */
const THEMES = JSON.parse(document.getElementById("themes").textContent);
const charts = [];

/* Vega, Vega-Lite and Vega-Embed, when the first chart is drawn. */
let library = null;
async function load() {
  document.head.append(Object.assign(document.createElement("script"), { textContent: await inflated("vega") }));
}

/* The specification at a width: small multiples stand side by side where there is room; `margin`: of axes in each. */
function fit(spec, width, margin) {
  const fitted = structuredClone(spec), views = fitted.concat || fitted.vconcat;
  if (views) {
    fitted.columns = Math.max(1, Math.min(fitted.concat ? views.length : 1, Math.floor(width / 330)));
    for (const view of views) view.width = Math.floor(width / fitted.columns) - margin;
  } else Object.assign(fitted, { width, autosize: { type: "fit-x", contains: "padding" } });
  return fitted;
}

/* The longest name in a legend of a specification. */
function longest(spec) {
  const names = spec?.legend?.values || [];
  const deeper = spec && typeof spec === "object" ? Object.values(spec).map((each) => typeof each === "object" ? longest(each) : 0) : [];
  return Math.max(0, ...names.map((name) => String(name).length), ...deeper);
}

/* Configurations of Vega-Lite in one, the later ones over the earlier ones. */
function merge(...configs) {
  const all = {};
  for (const [name, value] of configs.flatMap(Object.entries))
    all[name] = value && typeof value === "object" && !Array.isArray(value) ? { ...all[name], ...value } : value;
  return all;
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.box = figure.querySelector(".chart");
    Object.assign(this, JSON.parse(figure.querySelector("script").textContent));
    figure.querySelectorAll("[data-do]").forEach((button) => { button.onclick = () => this.save(button.dataset.do); });
  }

  get width() { return Math.floor(this.box.clientWidth); }

  /* The end of the drawing at the present width. */
  draw() {
    if (this.width && this.drawn !== this.width) {
      this.drawn = this.width;
      this.drawing = this.render();
    }
    return this.drawing;
  }

  async render() {
    await (library ||= load());
    let columns = Math.max(1, Math.floor((this.width - 50) / (longest(this.spec) * 7 + 34)));
    const embed = (margin) => {
      const narrow = { axisY: { labelLimit: this.width < 500 ? 110 : 220 }, legend: { columns } };
      const config = merge(THEMES.common, THEMES[document.documentElement.dataset.theme], narrow);
      return vegaEmbed(this.box, fit(this.spec, this.width, margin), { mode: "vega-lite", config, renderer: "svg", actions: false, logLevel: 1, tooltip: showTip });
    };
    let result, over = 0, wide = false;
    for (let margin = 70, tries = 0; !tries || ((over > 0 || wide) && tries < 4); tries++) { /* labels may need more room */
      result = await embed(margin);
      const svg = this.box.querySelector("svg"), edge = svg.getBoundingClientRect().right;
      over = svg.width.baseVal.value - this.width;
      margin += Math.ceil(Math.max(0, over) / (fit(this.spec, this.width, 0).columns || 1));
      wide = columns > 1 && [...svg.querySelectorAll(".role-legend-label text")].some((label) => label.getBoundingClientRect().right > edge);
      if (wide) columns--;
    }
    this.view?.finalize();
    this.view = result.view;
  }

  async save(kind) {
    await this.draw();
    const link = document.createElement("a");
    link.href = await this.view.toImageURL(kind, 2);
    link.download = `${this.name}.${kind}`;
    link.click();
  }
}

/* Names and values of a mark, at the pointer. */
function showTip(_, event, item, value) {
  tip.textContent = value && typeof value === "object" ? Object.entries(value).map(([name, each]) => `${name}: ${each}`).join("\n") : value || "";
  if (!value) return;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

document.querySelectorAll("figure.vega").forEach((figure) => charts.push(new Chart(figure)));
const inView = new IntersectionObserver((entries) => entries.forEach((entry) => {
  if (entry.isIntersecting) charts.find((chart) => chart.figure === entry.target).draw();
}), { rootMargin: "400px" });
charts.forEach((chart) => inView.observe(chart.figure));
const drawAll = () => Promise.all(charts.map((chart) => chart.draw()));
const redraw = () => charts.forEach((chart) => { if (chart.drawn) { chart.drawn = 0; chart.draw(); } });
theme.changed.push(redraw);
new ResizeObserver(() => charts.forEach((chart) => { if (chart.drawn) chart.draw(); })).observe(document.querySelector("main"));
addEventListener("load", () => (window.requestIdleCallback || setTimeout)(drawAll)); /* paper has all of them */
