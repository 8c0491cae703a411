// The page of gad board and gad report. Whatever comes from a run is text: it reaches the
// document by textContent and setAttribute of known attributes, never as markup.
"use strict";
(() => {

// ---- elements

const $ = id => document.getElementById(id);

const build = (e, attributes, children) => {
  for (const [k, v] of Object.entries(attributes || {})) {
    if (v === null || v === undefined || v === false) continue;
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else e.setAttribute(k, v === true ? "" : v);
  }
  for (const c of children.flat()) if (c !== null && c !== undefined) e.append(typeof c === "string" ? visible(c) : c);
  return e;
};

// visible writes the control characters that turn text round (U+202E and its like) as their
// codes: what a model wrote is to be read in the order in which it is.
const visible = text => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, c => "⟨U+" + c.codePointAt(0).toString(16).toUpperCase() + "⟩");

const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const memory = {
  get: k => { try { return localStorage.getItem("gad-board-" + k); } catch { return null; } },
  set: (k, v) => { try { localStorage.setItem("gad-board-" + k, v); } catch { /* a file may have none */ } },
};

// ---- numbers

const finite = x => typeof x === "number" && Number.isFinite(x);

// figure writes a number as short as it is still telling.
const figure = x => {
  if (!finite(x)) return x === undefined || x === null ? "" : String(x);
  const a = Math.abs(x);
  if (x === 0) return "0";
  if (a >= 1e15 || a < 1e-4) return x.toExponential(2);
  if (a >= 1e9) return (x / 1e9).toFixed(2) + "G";
  if (a >= 1e6) return (x / 1e6).toFixed(2) + "M";
  if (a >= 1e4) return (x / 1e3).toFixed(1) + "k";
  if (Number.isInteger(x)) return String(x);
  return a >= 100 ? x.toFixed(1) : a >= 10 ? x.toFixed(2) : a >= 0.1 ? x.toFixed(3) : x.toPrecision(3);
};

// ticks are at most n + 1 round numbers from lo to hi.
const ticks = (lo, hi, n, whole) => {
  const rough = (hi - lo) / n, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(x => x >= rough * 0.999 && (!whole || Number.isInteger(x))) || 10 * power;
  const list = [];
  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9 && list.length < 20; k++) list.push(k * step);
  return list;
};

// tickText writes ticks alike, with as many digits as their distance needs.
const tickText = (list, x) => {
  const apart = list.length > 1 ? list[1] - list[0] : Math.abs(x) || 1;
  const a = Math.max(...list.map(Math.abs));
  if (a >= 1e5 || a < 1e-3 && a > 0) return x === 0 ? "0" : figure(x).replace(/\.?0+([kMG]|e|$)/, "$1");
  let digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(apart) + 1e-9)));
  if (Math.abs(apart * 10 ** digits - Math.round(apart * 10 ** digits)) > 1e-6) digits++; // 2.5
  return x.toFixed(digits);
};

// ---- where the data come from: the server, or this file

const embedded = $("data");
const whole = embedded ? JSON.parse(embedded.textContent) : null;

const get = async path => {
  const r = await fetch(path);
  const v = await r.json();
  if (!r.ok) throw new Error(v.error || r.statusText);
  return v;
};

const source = whole ? {
  board: async () => whole,
  series: async () => whole.series,
  scores: async () => whole.scores,
  samples: async (run, step) => whole.samples.find(x => x.run === run && x.step === step) || { rows: [], left_out: 0, damaged: 0, absent: true },
  answers: async run => whole.answers.find(x => x.run === run) || { prompts: [] },
} : {
  board: since => get("api/board?since=" + since),
  series: (from, to) => get("api/series?points=400&from=" + from + "&to=" + to),
  scores: () => get("api/scores"),
  samples: (run, step) => get("api/samples?run=" + run + "&step=" + step),
  answers: run => get("api/answers?run=" + run),
};

// ---- state

const state = {
  board: null, series: null, scores: [], samples: null,
  hidden: new Set(), from: 0, to: 0, smooth: 0.6, outliers: false, log: false, cursor: null,
  axis: "", zoom: null, seeds: null, open: null, // axis: "" is the one that fits the runs; zoom: a part of another axis than steps
  answers: null, asked: "", prompts: { run: -1, row: -1 }, // of the validations
  run: 0, step: 0, page: 0, following: true, shown: 0, // the version of the board that all sections show
};
const charts = new Map(); // by id

// ---- axes: how far a run is

const time = x => x < 90 ? figure(x) + " s" : x < 5400 ? (x / 60).toFixed(1) + " min" : (x / 3600).toFixed(2) + " h";
const work = x => x < 1e3 ? figure(x) + " TFLOP" : x < 1e6 ? figure(x / 1e3) + " PFLOP" : figure(x / 1e6) + " EFLOP";

// between is the value at a step, of values at some steps.
const between = (steps, values, step) => {
  let a = 0, b = steps.length - 1;
  if (b < 0) return 0;
  if (step <= steps[0]) return values[0];
  if (step >= steps[b]) return values[b];
  while (b - a > 1) { const m = (a + b) >> 1; if (steps[m] > step) b = m; else a = m; }
  return values[a] + (values[b] - values[a]) * (step - steps[a]) / (steps[b] - steps[a]);
};

// An axis has of: where a step of a run lies; say: such a place in words; units: what ticks
// are written in, by the largest that fits.
const axes = {
  step: { of: (a, step) => step, say: x => "step " + figure(x), units: [[1, ""]], whole: true },
  stages: { of: (a, step) => a.before.steps + step, say: x => "step " + figure(x) + " of all stages", units: [[1, ""]], whole: true },
  time: { of: (a, step) => a.before.seconds + between(a.step, a.seconds, step), say: time, units: [[1, "s"], [60, "min"], [3600, "h"]] },
  work: { of: (a, step) => a.before.tflop + between(a.step, a.tflop, step), say: work, units: [[1, "TFLOP"], [1e3, "PFLOP"], [1e6, "EFLOP"]] },
};
const axisName = () => state.axis || (state.board && state.board.runs.some(r => r.after && r.after.run >= 0) ? "stages" : "step");
const axis = () => axes[axisName()];
const place = (run, step) => axis().of(state.series.axes[run], step);
const unit = (lo, hi) => axis().units.filter(u => hi - lo >= 2 * u[0]).pop() || axis().units[0];

// ---- how a run looks: a colour and a dash, so that colour is never needed alone

const dashes = ["", "7 3", "2 2.5", "9 3 2 3", "12 4", "5 2 1 2 1 2"];
const look = i => ({ colour: "var(--c" + i % 6 + ")", dash: dashes[(i + Math.floor(i / 6)) % 6] });
const key = l => {
  const line = s("line", { x1: 0, y1: 5, x2: 26, y2: 5 });
  line.style.stroke = l.colour;
  line.style.strokeDasharray = l.dash || "none";
  return s("svg", { class: "key", viewBox: "0 0 26 10", "aria-hidden": "true" }, line);
};

// ---- charts

const H = 150, left = 46, right = 8, above = 6, below = 18;

// smoothed is the exponential mean that forgets by the share w with each step; a point of n
// steps counts n times. It begins without bias.
const smoothed = (ys, ns, w) => {
  if (!w) return ys;
  let sum = 0, weight = 0;
  return ys.map((y, i) => {
    const keep = w ** (ns ? ns[i] : 1);
    sum = sum * keep + y * (1 - keep);
    weight = weight * keep + 1 - keep;
    return sum / weight;
  });
};

// A Chart shows lines over steps. A line has label, colour, dash, x, y and, if it has bands,
// lo, hi and inner ([lo, hi]); n is how many steps a point stands for.
class Chart {
  constructor(id, title, unit, doc, options) {
    this.id = id; this.title = title; this.unit = unit; this.options = options || {};
    this.lines = [];
    this.svg = s("svg", { "aria-hidden": "true" });
    this.plot = h("div", {
      class: "plot", tabindex: "0", role: "slider", "aria-label": title + (unit ? ", in " + unit : "") + ": move through the steps",
      "aria-describedby": id + "-doc", "aria-orientation": "horizontal", "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", "aria-valuetext": "no values yet",
      onkeydown: e => this.press(e), onpointermove: e => this.hover(e), onpointerleave: () => this.leave(),
      onpointerdown: e => this.grab(e), onpointerup: e => this.drop(e), ondblclick: () => zoomTo(0, 0), onblur: () => moveTo(null),
    }, this.svg);
    this.read = h("p", { class: "read" });
    this.table = h("details", { ontoggle: () => this.fill() }, h("summary", { "aria-label": "Table of " + title }, "Table"));
    this.root = h("figure", { class: "chart", id, role: "group", "aria-labelledby": id + "-h" },
      h("div", { class: "head" }, h("h3", { id: id + "-h" }, title), unit ? h("span", { class: "unit" }, unit) : null,
        h("button", { class: "i", type: "button", "aria-expanded": "false", "aria-controls": id + "-doc", "aria-label": "What is " + title + "?", onclick: e => {
          const p = $(id + "-doc");
          p.hidden = !p.hidden;
          e.currentTarget.setAttribute("aria-expanded", String(!p.hidden));
        } }, "i")),
      h("p", { class: "doc", id: id + "-doc", hidden: true }, doc), this.plot, this.read, this.table);
  }

  set(lines) {
    this.lines = lines;
    this.xs = [...new Set(lines.flatMap(l => l.x))].sort((a, b) => a - b);
    this.drawn = false;
    if (this.near) this.draw();
    if (this.table.open) this.fill();
  }

  // draw makes the picture anew. It is called only when the chart is near the window.
  draw() {
    const w = this.plot.clientWidth;
    if (!w || this.drawn === w) return;
    this.drawn = w;
    const lines = this.lines.map(l => ({ ...l, mean: l.steady ? l.y : smoothed(l.y, l.n, state.smooth) }));
    const all = [];
    for (const l of lines) for (let i = 0; i < l.y.length; i++) {
      all.push(l.y[i]);
      if (l.lo) all.push(l.lo[i], l.hi[i]);
    }
    const log = state.log && all.length > 0 && all.every(y => y > 0);
    let lo = Infinity, hi = -Infinity;
    if (state.outliers && all.length > 20) {
      const sorted = lines.flatMap(l => l.y).sort((a, b) => a - b);
      lo = sorted[Math.floor(sorted.length * 0.02)]; hi = sorted[Math.ceil(sorted.length * 0.98) - 1];
    } else for (const y of all) { if (y < lo) lo = y; if (y > hi) hi = y; }
    const to = y => log ? Math.log10(y) : Math.max(-8e307, Math.min(8e307, y)); // so that their distance is a number
    if (lo > hi) { lo = 0; hi = 1; }
    lo = to(lo); hi = to(hi);
    if (hi - lo < Math.abs(hi) * 1e-9 + 1e-300) { const pad = Math.abs(hi) * 0.1 || 1; lo -= pad; hi += pad; }
    const pad = (hi - lo) * 0.05;
    lo -= pad; hi += pad;
    let x0 = this.xs[0] ?? state.series.from, x1 = this.xs[this.xs.length - 1] ?? state.series.to;
    if (axisName() === "step") { if (state.from) x0 = state.from; if (state.to) x1 = state.to; }
    else if (state.zoom) [x0, x1] = state.zoom;
    if (x1 <= x0) { x0 -= 1; x1 = x0 + 2; }
    const X = x => left + (x - x0) / (x1 - x0) * (w - left - right);
    const Y = y => Math.max(-20, Math.min(H + 20, above + (hi - to(y)) / (hi - lo) * (H - above - below)));
    this.X = X; this.Y = Y; this.unX = p => x0 + (p - left) / (w - left - right) * (x1 - x0);
    const path = (xs, ys) => {
      let d = "";
      for (let i = 0; i < xs.length; i++) d += (i ? "L" : "M") + X(xs[i]).toFixed(1) + " " + Y(ys[i]).toFixed(1);
      if (xs.length === 1) d += "h.01";
      return d;
    };
    const area = (xs, a, b) => {
      if (!xs.length) return "";
      let d = "";
      for (let i = 0; i < xs.length; i++) d += (i ? "L" : "M") + X(xs[i]).toFixed(1) + " " + Y(b[i]).toFixed(1);
      for (let i = xs.length - 1; i >= 0; i--) d += "L" + X(xs[i]).toFixed(1) + " " + Y(a[i]).toFixed(1);
      return d + "Z";
    };
    const g = [];
    const yt = log ? ticks(lo, hi, 4).filter((y, i, l) => l.length < 3 || Number.isInteger(y) || hi - lo < 2) : ticks(lo, hi, 4);
    for (const y of yt) {
      const at = above + (hi - y) / (hi - lo) * (H - above - below);
      g.push(s("line", { class: "grid", x1: left, x2: w - right, y1: at.toFixed(1), y2: at.toFixed(1) }),
        s("text", { x: left - 5, y: (at + 3.5).toFixed(1), "text-anchor": "end" }, log ? figure(10 ** y) : tickText(yt, y)));
    }
    const [size, name] = unit(x0, x1), xt = ticks(x0 / size, x1 / size, Math.max(2, Math.floor(w / 80)), axis().whole);
    for (const x of xt) g.push(s("text", { x: X(x * size).toFixed(1), y: H - 4, "text-anchor": "middle" }, tickText(xt, x) + (name && x === xt[xt.length - 1] ? " " + name : "")));
    g.push(s("line", { class: "axis", x1: left, x2: w - right, y1: H - below, y2: H - below }));
    const clip = this.id + "-clip";
    const inside = s("g", { "clip-path": "url(#" + clip + ")" });
    g.push(s("clipPath", { id: clip }, s("rect", { x: left, y: 0, width: Math.max(0, w - left - right), height: H - below })), inside);
    for (const l of lines) {
      const put = (kind, d, fill) => {
        const p = s("path", { class: kind, d });
        if (fill) p.style.fill = l.colour; else { p.style.stroke = l.colour; p.style.strokeDasharray = l.dash || "none"; }
        inside.append(p);
      };
      if (l.lo) put("band", area(l.x, l.lo, l.hi), true);
      if (l.inner) put("inner", area(l.x, l.inner[0], l.inner[1]), true);
      if (l.mean !== l.y && !l.lo) put("raw", path(l.x, l.y));
      if (l.lead && l.x.length) {
        put("lead", path([l.lead.x, l.x[0]], [l.lead.y, l.mean[0]]));
      }
      put("line", path(l.x, l.mean));
      for (const m of (l.marks || []).slice(-50)) if (m.x >= x0 && m.x <= x1) {
        const at = X(m.x), sign = s("path", { class: "mark", d: "M" + at.toFixed(1) + " " + (H - below - 7) + "l4 7h-8z" });
        sign.append(s("title", {}, m.say));
        inside.append(s("line", { class: "marked", x1: at.toFixed(1), x2: at.toFixed(1), y1: above, y2: H - below }), sign);
      }
      for (const b of l.bad || []) if (b >= x0 && b <= x1) inside.append(s("line", { class: "bad", x1: X(b), x2: X(b), y1: H - below - 8, y2: H - below }));
    }
    this.cross = s("g");
    g.push(this.cross);
    this.svg.setAttribute("viewBox", "0 0 " + w + " " + H);
    this.svg.replaceChildren(...g);
    this.shown = lines;
    this.point();
  }

  // point shows the values at the cursor, or the last ones.
  point() {
    if (!this.shown) return;
    const at = state.cursor, last = this.xs[this.xs.length - 1];
    this.cross.replaceChildren();
    if (last === undefined) { this.read.textContent = "no values yet"; return; }
    const x = at === null ? last : this.nearest(at);
    const parts = [];
    for (const l of this.shown) {
      let i = l.x.length - 1;
      while (i > 0 && l.x[i] > x) i--;
      if (i < 0 || l.x[i] > x || at !== null && l.x[i] < x && i === l.x.length - 1) continue; // not begun, or over
      parts.push([l, i]);
    }
    const many = this.shown.length > 1;
    const early = (l, i) => at === null && l.x[i] !== x ? " at " + axis().say(l.x[i]) : "";
    const say = parts.map(([l, i]) => (many ? l.label + " " : "") + figure(l.y[i]) + early(l, i) + (l.lo ? " (" + figure(l.lo[i]) + " to " + figure(l.hi[i]) + ")" : ""));
    this.plot.setAttribute("aria-valuemin", this.xs[0]);
    this.plot.setAttribute("aria-valuemax", last);
    this.plot.setAttribute("aria-valuenow", x);
    const warned = at === null ? [] : [...new Set(this.shown.flatMap(l => (l.marks || []).filter(m => this.nearest(m.x) === x).map(m => (many ? l.label + ": " : "") + m.say)))];
    this.plot.setAttribute("aria-valuetext", axis().say(x) + ": " + ([...say, ...warned].join("; ") || "no value"));
    // what a mouse reads may take more lines: it lies over what is below, which does not move
    this.read.style.height = at === null ? "" : this.read.style.height || this.read.offsetHeight + "px";
    this.read.replaceChildren(h("span", {}, at === null ? "last, " + axis().say(x) : axis().say(x)), ...parts.slice(0, 8).map(([l, i]) =>
      h("span", { class: "value" }, key(l), many ? l.label + " " : null, h("b", {}, figure(l.y[i])), early(l, i),
        l.lo && at !== null ? " (" + figure(l.lo[i]) + " to " + figure(l.hi[i]) + ")" : null)),
      parts.length > 8 ? h("span", { class: "value" }, "and " + (parts.length - 8) + " more in the table") : "",
      ...warned.slice(0, 3).map(w => h("span", { class: "warned" }, "▲ " + w)));
    if (at === null) return;
    const px = this.X(x).toFixed(1);
    this.cross.append(s("line", { class: "cross", x1: px, x2: px, y1: 0, y2: H - below }));
    for (const [l, i] of parts) {
      const dot = s("circle", { cx: this.X(l.x[i]).toFixed(1), cy: this.Y(l.y[i]).toFixed(1), r: 3 });
      dot.style.fill = l.colour;
      this.cross.append(dot);
    }
  }

  nearest(x) {
    let a = 0, b = this.xs.length - 1;
    while (b - a > 1) { const m = (a + b) >> 1; if (this.xs[m] > x) b = m; else a = m; }
    return Math.abs(this.xs[a] - x) <= Math.abs(this.xs[b] - x) ? this.xs[a] : this.xs[b];
  }

  press(e) {
    if (!this.xs || this.xs.length === 0 || e.ctrlKey || e.altKey || e.metaKey) return;
    const now = state.cursor === null ? this.xs.length - 1 : this.xs.indexOf(this.nearest(state.cursor));
    const jump = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - 10, PageUp: now + 10, Home: 0, End: this.xs.length - 1 }[e.key];
    if (e.key === "Escape") { moveTo(null); return; }
    if (jump === undefined) return;
    e.preventDefault();
    moveTo(this.xs[Math.max(0, Math.min(this.xs.length - 1, state.cursor === null && e.key.startsWith("Arrow") ? now : jump))]);
  }

  at(e) { return this.unX(e.clientX - this.plot.getBoundingClientRect().left); }
  hover(e) {
    if (!this.X || this.xs.length === 0) return;
    const x = this.at(e);
    if (this.from !== undefined) {
      const a = this.X(Math.min(this.from, x)), b = this.X(Math.max(this.from, x));
      this.cross.replaceChildren(s("rect", { class: "zoom", x: a, y: 0, width: b - a, height: H - below }));
      return;
    }
    moveTo(this.nearest(x));
  }
  leave() { this.from = undefined; moveTo(null); }
  grab(e) { if (e.pointerType === "mouse" && e.button === 0 && this.X) this.from = this.at(e); }
  drop(e) {
    if (this.from === undefined) return;
    const a = Math.min(this.from, this.at(e)), b = Math.max(this.from, this.at(e));
    this.from = undefined;
    if (this.X(b) - this.X(a) > 8) zoomTo(a, b);
  }

  // fill writes the table behind the chart, when it is opened.
  fill() {
    if (!this.table.open) return;
    const rows = [...this.xs].reverse(), few = 200;
    const columns = this.lines.map(l => new Map(l.x.map((x, i) => [x, i])));
    const cell = (l, i) => i === undefined ? "" : figure(l.y[i]) + (l.lo ? " (" + figure(l.lo[i]) + " to " + figure(l.hi[i]) + ")" : "");
    const table = h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, axis().units[0][1] || "step"), this.lines.map(l => h("th", { scope: "col", class: "n" }, l.label)))),
      h("tbody", {}, rows.slice(0, few).map(x => h("tr", {}, h("th", { scope: "row" }, axis().whole ? figure(x) : axis().say(x)), this.lines.map((l, k) => h("td", { class: "n" }, cell(l, columns[k].get(x))))))));
    this.table.replaceChildren(this.table.firstChild,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Values of " + this.title }, table),
      rows.length > few ? h("p", { class: "count" }, "the last " + few + " of " + rows.length + " points") : "");
  }
}

// moveTo puts the cursor of all charts at a step.
let moving = 0;
const moveTo = x => {
  if (state.cursor === x) return;
  state.cursor = x;
  if (!moving) moving = requestAnimationFrame(() => { moving = 0; for (const c of charts.values()) if (c.near) c.point(); });
};

// Charts are drawn when they come near the window.
const watcher = new IntersectionObserver(list => {
  for (const e of list) {
    const c = charts.get(e.target.id);
    if (!c) continue;
    c.near = e.isIntersecting;
    if (c.near) { c.draw(); c.point(); }
  }
  settled();
}, { rootMargin: "300px" });

// complete draws, when nothing else is to be done, what was never in sight, so that a picture of
// the whole page is whole.
let idle = 0;
const whenIdle = f => window.requestIdleCallback ? requestIdleCallback(f) : setTimeout(() => f({ timeRemaining: () => 10 }), 50);
const complete = left => {
  idle = 0;
  for (const c of charts.values()) {
    if (c.shown || !c.xs) continue;
    if (left.timeRemaining() < 5) { idle = whenIdle(complete); return; }
    c.draw();
  }
};
const completeSoon = () => { if (!idle) idle = whenIdle(complete); };

// Who prints gets all groups, and all charts as they are now.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details.group:not([open])")];
  for (const d of folded) d.open = true;
  for (const c of charts.values()) { c.draw(); c.point(); }
});
addEventListener("afterprint", () => { for (const d of folded) d.open = false; folded = []; });

const chart = (parent, id, title, unit, doc) => {
  let c = charts.get(id);
  if (!c) {
    c = new Chart(id, title, unit, doc);
    charts.set(id, c);
    parent.append(c.root);
    watcher.observe(c.root);
  }
  return c;
};
const redraw = () => { for (const c of charts.values()) { c.drawn = false; if (c.near) c.draw(); } };
const idOf = (kind, text) => kind + "-" + text.replace(/[^A-Za-z0-9_]/g, x => "-" + x.codePointAt(0).toString(16));

// settled notes when everything in sight has been drawn for the first time.
const settled = () => {
  if (state.settled || !state.series) return;
  const seen = [...charts.values()].filter(c => c.near);
  if (seen.some(c => !c.drawn)) return;
  state.settled = true;
  requestAnimationFrame(() => setTimeout(() => {
    performance.mark("charts-drawn");
    document.documentElement.dataset.drawn = String(Math.round(performance.now()));
  }));
};

// ---- sections

const shownRuns = () => state.board.runs.filter(r => !state.hidden.has(r.id));

const verdictText = r => ({ clear: "✓ no problems found", sick: "⚠ " + r.findings.length + (r.findings.length === 1 ? " bad sign" : " bad signs"), early: "… too few steps to judge" })[r.verdict];
const metricOf = name => state.board.metrics.find(m => m.name === name);
const shortNames = { "critic/d_acc_distinct": "d_acc of distinct", "critic/d_acc_fresh": "d_acc", "actor/pg_clipfrac": "clip fraction", "actor/kl_loss": "KL", "reward/kl_mean": "KL", "timing_s/step": "step time",
  "actor/sft_loss": "SFT loss", "critic/d_loss": "d_loss", "val/rouge_l": "ROUGE-L", "val/teacher_nll": "teacher NLL", "actor/grad_norm": "gradient norm", "dpo/loss": "DPO loss", "dpo/acc": "accuracy", "dpo/margin": "margin" };

const when = t => { const d = new Date(t); return Number.isNaN(d.getTime()) ? "" : d.toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" }); };

const timeLeft = r => {
  const every = r.recent["timing_s/step"];
  if (r.state !== "running" || !(r.total > r.step) || !(every > 0)) return null;
  const minutes = Math.ceil((r.total - r.step) * every / 60);
  return "about " + (minutes < 100 ? minutes + " min" : Math.round(minutes / 60) + " h") + " left";
};

const showHealth = () => {
  $("health-cards").replaceChildren(...state.board.runs.map(r => h("article", { class: "card" },
    h("header", {}, h("h3", {}, key(look(r.id)), r.name), h("span", { class: "verdict " + r.verdict }, verdictText(r)),
      h("span", { class: "state" }, [r.stage || "stage not known yet", r.after ? "continues " + (r.after.run >= 0 ? state.board.runs[r.after.run].name : r.after.path + ", which is not on this board") + (r.after.step ? " from step " + r.after.step : "") : null, r.steps ? "step " + r.step + (r.total ? " of " + r.total : "") : "no steps yet", r.state + (r.at && r.state !== "running" ? " " + when(r.at) : ""), timeLeft(r)].filter(x => x).join(" · "))),
    r.headline.length ? h("dl", { class: "figures" }, r.headline.map(name => {
      const m = metricOf(name), every = r.recent[name];
      return h("div", { title: name + ": " + m.doc }, h("dt", {}, shortNames[name] || name), h("dd", {}, figure(every), m.unit && m.unit !== "share" ? h("small", {}, " " + m.unit) : null));
    })) : h("p", { class: "empty" }, r.steps ? "no headline figures in these metrics" : "waiting for the first step"),
    r.findings.length ? h("p", { class: "fine" }, r.findings.map(f => f.name).join("; ") + ". ", h("a", { href: "#doctor" }, "What to do")) : null)));
};

const showRuns = () => {
  const box = $("runs"), names = state.board.runs.map(r => r.name).join("\n");
  if (box.dataset.names === names) return;
  box.dataset.names = names;
  box.replaceChildren(box.querySelector("legend"), ...state.board.runs.map(r => h("label", {},
    h("input", { type: "checkbox", checked: !state.hidden.has(r.id), onchange: e => {
      if (e.target.checked) state.hidden.delete(r.id); else state.hidden.add(r.id);
      showCurves(); showScores();
    } }), key(look(r.id)), h("span", { class: "text" }, r.name))));
};

// A metric may be named as what every object has.
const curveOf = (run, name) => Object.hasOwn(state.series.runs[run] || {}, name) ? state.series.runs[run][name] : null;

// linesOf is a metric of the shown runs, over the axis. A val/ metric begins with what was
// measured before the first step, and behind the last value of the run that it continues.
const linesOf = name => {
  const lines = shownRuns().filter(r => curveOf(r.id, name)).map(r => {
    const c = curveOf(r.id, name), l = { label: r.name, run: r.id, ...look(r.id), step: [...c.step], y: [...c.mean], lo: c.min && [...c.min], hi: c.max && [...c.max], n: c.n && [...c.n], bad: (c.not_finite || []).map(x => place(r.id, x)),
      steady: /^(val|start)\//.test(name) }; // few values, far apart: a mean over them would say what never was
    const start = name.startsWith("val/") && curveOf(r.id, "start/" + name.slice(4));
    if (start && start.step.length && !state.from) {
      l.step.unshift(0); l.y.unshift(start.mean[0]);
      if (l.lo) { l.lo.unshift(start.mean[0]); l.hi.unshift(start.mean[0]); l.n.unshift(1); }
    }
    l.x = l.step.map(x => place(r.id, x));
    const from = name.startsWith("val/") && r.after && r.after.run >= 0 && axisName() !== "step" && !state.hidden.has(r.after.run) && curveOf(r.after.run, name);
    if (from && from.step.length && from.step[0] <= r.after.step && !(state.seeds && r.repeats)) {
      let i = from.step.length - 1;
      while (i > 0 && from.step[i] > r.after.step) i--;
      l.lead = { x: place(r.after.run, from.step[i]), y: from.mean[i] };
    }
    l.marks = r.warnings.filter(w => w.step > 0).map(w => ({ step: w.step, x: place(r.id, w.step), say: "step " + w.step + ": " + w.text }));
    return l;
  });
  return banded(lines);
};

// banded makes one line of repetitions that differ in their seed: their mean, and a band from
// the least to the largest, where there are at least two.
const banded = lines => {
  if (!state.seeds) return lines;
  const out = [], groups = new Map();
  for (const l of lines) {
    const name = state.board.runs[l.run].repeats;
    if (!name) { out.push(l); continue; }
    if (!groups.has(name)) { groups.set(name, []); out.push(groups.get(name)); }
    groups.get(name).push(l);
  }
  return out.map(g => {
    if (!Array.isArray(g)) return g;
    if (g.length === 1) return g[0];
    const at = new Map(); // by the stretch of steps that a point stands for
    for (const l of g) l.step.forEach((x, i) => {
      const k = x === 0 ? -1 : Math.floor((x - state.series.from) / state.series.width);
      if (!at.has(k)) at.set(k, []);
      at.get(k).push([l.x[i], l.y[i], x]);
    });
    const keys = [...at.keys()].filter(k => at.get(k).length > 1).sort((a, b) => a - b), mean = (k, j) => at.get(k).reduce((sum, p) => sum + p[j], 0) / at.get(k).length;
    return { ...look(g[0].run), run: g[0].run, steady: g[0].steady, label: state.board.runs[g[0].run].repeats + " (" + g.length + " seeds)", step: keys.map(k => Math.max(...at.get(k).map(p => p[2]))), x: keys.map(k => mean(k, 0)), y: keys.map(k => mean(k, 1)),
      lo: keys.map(k => Math.min(...at.get(k).map(p => p[1]))), hi: keys.map(k => Math.max(...at.get(k).map(p => p[1]))) };
  });
};

const within = l => {
  const steps = axisName() === "step", [a, b] = steps ? [state.from || -Infinity, state.to || Infinity] : state.zoom || [-Infinity, Infinity];
  if (a === -Infinity && b === Infinity) return l;
  const keep = l.x.map((x, i) => i).filter(i => l.x[i] >= a && l.x[i] <= b);
  const pick = list => list && keep.map(i => list[i]);
  return { ...l, x: pick(l.x), y: pick(l.y), lo: pick(l.lo), hi: pick(l.hi), n: pick(l.n), inner: l.inner && l.inner.map(pick), lead: null };
};

// inOrder puts validation first, and what a run does before how far it is, how long a step
// takes and what is unknown.
const later = ["val", "", "start", "train", "timing_s", "perf", "other"], rank = m => Math.max(later.indexOf(m.group), m.group === "val" ? 0 : 1);
const inOrder = metrics => [...metrics].sort((a, b) => rank(a) - rank(b));

const showCurves = () => {
  const find = $("find").value.trim().toLowerCase(), open = new Map();
  showAxis();
  for (const m of inOrder(state.board.metrics)) {
    let box = $("group-" + m.group);
    if (!box) {
      const is = state.open ? state.open.has(m.group) : !open.size;
      box = h("details", { class: "group", id: "group-" + m.group, open: is }, h("summary", {}, m.group + " ", h("span", {}, m.title)), h("div", { class: "charts" }));
      box.addEventListener("toggle", () => { completeSoon(); if (!folded.length) keep(); });
      $("curve-groups").append(box);
    }
    const c = chart(box.lastChild, idOf("m", m.name), m.name, m.unit, m.doc);
    const lines = linesOf(m.name).map(within), on = lines.length > 0 && (!find || m.name.toLowerCase().includes(find) || m.doc.toLowerCase().includes(find));
    c.root.hidden = !on;
    open.set(m.group, (open.get(m.group) || 0) + on);
    c.set(lines);
  }
  for (const [g, n] of open) {
    const box = $("group-" + g);
    box.hidden = n === 0;
    if (find && n && !box.open) box.open = true;
  }
  completeSoon();
  for (const [id, name] of groupMetrics()) charts.get(id)?.set(linesOf(name).map(within));
};

// The group panel has charts of its own of these metrics.
const inGroups = ["critic/group_std", "critic/group_rel_std", "critic/top_gap", "critic/collapsed_groups_frac", "adv/zero_var_groups_frac", "adv/std"];
const groupMetrics = () => inGroups.filter(n => metricOf(n)).map(n => [idOf("g", n), n]);

// What the scores of a run's samples are.
const scores = run => ({
  dpo: { axis: "reward", about: "rewards of the sample and of the teacher's answer", columns: ["student's reward", "teacher's reward", "margin"] },
  opd: { axis: "log-probability", about: "mean log-probability of a token of the student's answers under the teacher", columns: ["under the teacher", "teacher's score", "advantage"] },
}[run && run.stage] || { axis: "score", about: "scores of student and teacher", columns: ["student's score", "teacher's score", "advantage"] });

const showScores = () => {
  const box = $("score-charts"), panel = $("group-charts");
  const column = (q, p) => q[p].map(x => finite(x) ? x : NaN);
  const fan = (run, step, q, label, colour, dash) => {
    const keep = step.map((_, i) => i).filter(i => finite(q.p50[i]));
    const pick = p => keep.map(i => column(q, p)[i]);
    return within({ label, colour, dash, x: keep.map(i => place(run, step[i])), y: pick("p50"), lo: pick("p10"), hi: pick("p90"), inner: [pick("p25"), pick("p75")], steady: true });
  };
  let any = false;
  for (const r of state.board.runs) {
    const sc = state.scores[r.id];
    if (!sc || (!sc.step.length && !charts.has("s-" + r.id))) continue;
    any = true;
    const told = scores(r), c = chart(box, "s-" + r.id, r.name, told.axis, told.about +
      ": median, middle half, 80 %; " + (sc.answers[sc.answers.length - 1] || 0) + " answers a step" + (sc.thinned ? ", not all steps" : "") + (sc.problem ? "; " + sc.problem : ""));
    c.root.hidden = state.hidden.has(r.id);
    c.set([fan(r.id, sc.step, sc.student, "student", "var(--student)", ""), fan(r.id, sc.step, sc.teacher, "teacher", "var(--teacher)", "7 3")]);
  }
  empty(box, !any, "No run has samples with scores: gad sft has no discriminator, and trainer.save_samples=0 keeps none.");
  for (const [id, name] of groupMetrics()) {
    const m = metricOf(name);
    chart(panel, id, m.name, m.unit, m.doc).set(linesOf(name).map(within));
  }
  const spreads = shownRuns().filter(r => state.scores[r.id] && state.scores[r.id].spread.p50.some(finite))
    .map(r => ({ ...fan(r.id, state.scores[r.id].step, state.scores[r.id].spread, r.name, look(r.id).colour, look(r.id).dash), inner: null }));
  if (spreads.length || charts.has("g-spread"))
    chart(panel, "g-spread", "Spread within a prompt", "", "standard deviation of the scores of one prompt's answers, over the prompts in samples/: the line is the median prompt, the band holds 80 % of them").set(spreads);
  completeSoon();
  empty(panel, !spreads.length && !groupMetrics().length, "No run samples several answers to a prompt.");
};

const empty = (box, is, text) => {
  const old = box.querySelector(":scope > .empty");
  if (old) old.remove();
  if (is) box.append(h("p", { class: "empty" }, text));
};

// ---- samples

const words = t => t.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

// difference is the pieces of two texts: ["same" | "del" | "ins", text]. Long texts are
// compared by their common beginning and end alone.
const difference = (from, to) => {
  const a = words(from), b = words(to);
  let p = 0, q = 0;
  while (p < a.length && p < b.length && a[p] === b[p]) p++;
  while (q < a.length - p && q < b.length - p && a[a.length - 1 - q] === b[b.length - 1 - q]) q++;
  const am = a.slice(p, a.length - q), bm = b.slice(p, b.length - q), out = [];
  const put = (kind, text) => {
    if (!text) return;
    if (out.length && out[out.length - 1][0] === kind) out[out.length - 1][1] += text; else out.push([kind, text]);
  };
  put("same", a.slice(0, p).join(""));
  if (am.length * bm.length > 4e5) { put("del", am.join("")); put("ins", bm.join("")); }
  else {
    const n = am.length, m = bm.length, L = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
    for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) L[i][j] = am[i] === bm[j] ? L[i + 1][j + 1] + 1 : Math.max(L[i + 1][j], L[i][j + 1]);
    let i = 0, j = 0;
    while (i < n || j < m) {
      if (i < n && j < m && am[i] === bm[j]) { put("same", am[i]); i++; j++; }
      else if (i < n && (j === m || L[i + 1][j] >= L[i][j + 1])) put("del", am[i++]);
      else put("ins", bm[j++]);
    }
  }
  put("same", a.slice(a.length - q).join(""));
  return out;
};

const longest = 700, tallest = 14; // characters and lines of a text that are shown at once
const shortened = text => text.slice(0, longest).split("\n", tallest).join("\n");

// marked is the text with a mark at each of the seams, which count its characters.
const marked = (text, seams, what) => {
  const all = Array.from(text), at = [0, ...seams.filter(n => n < all.length), all.length];
  return at.slice(1).flatMap((n, i) => [i ? h("i", { class: "seam", title: what + " " + (i + 1) }) : "", visible(all.slice(at[i], n).join(""))]);
};
// textCell is a text, its beginning first; of an answer in chunks with their seams.
const textCell = (label, text, again, seams = [], what = "chunk") => {
  const cell = h("td", { role: "cell", "data-label": label });
  const put = all => {
    const some = shortened(text), part = h("span", { class: "text" + (again ? " again" : ""), dir: "auto" }, ...marked(all ? text : some, seams, what), all || some.length === text.length ? "" : "…");
    cell.replaceChildren(part, some.length < text.length ? h("button", { type: "button", onclick: () => { state.following = false; put(!all); } }, all ? "less" : "all " + text.length + " characters") : "");
  };
  put(false);
  return cell;
};
const diffCell = (teacher, student) => {
  const cell = h("td", { role: "cell", "data-label": "difference" });
  if (teacher === null) return cell;
  if (teacher === student) { cell.append(h("span", { class: "empty" }, "the same text")); return cell; }
  const box = h("span", { class: "text", dir: "auto" });
  let room = 2 * longest, lines = tallest;
  for (const [kind, text] of difference(teacher, student)) {
    if (room <= 0 || lines <= 0) { box.append("…"); break; }
    const part = text.slice(0, room).split("\n", lines).join("\n");
    room -= part.length;
    lines -= part.split("\n").length - 1;
    box.append(kind === "same" ? visible(part) : h(kind, {}, part));
  }
  cell.append(box);
  return cell;
};

// An episode: who says what, and what the environment and the discriminator gave for each of the
// student's turns. It takes the place of the difference too: two conversations differ by turns.
const turnsShown = 24;
const turnsCell = (label, turns) => {
  const cell = h("td", { role: "cell", "data-label": label, colspan: "2" });
  const say = t => {
    const mine = t.valid !== undefined, notes = [];
    if (mine && t.reward) notes.push("reward " + figure(t.reward));
    if (t.score !== undefined) notes.push("score " + figure(t.score));
    if (t.valid === false) notes.push("invalid");
    const some = shortened(t.text), text = h("span", { class: "text", dir: "auto" }, some.length < t.text.length ? some + "…" : some);
    return h("li", { class: mine ? t.valid ? "mine" : "mine wrong" : "" }, h("b", {}, mine ? "student" : t.role), " ", text, notes.length ? h("small", {}, notes.join(", ")) : "");
  };
  const put = all => {
    const list = h("ol", { class: "turns" }, (all ? turns : turns.slice(0, turnsShown)).map(say));
    cell.replaceChildren(list, turns.length > turnsShown ? h("button", { type: "button", onclick: () => { state.following = false; put(!all); } }, all ? "less" : "all " + turns.length + " messages") : "");
  };
  put(false);
  return cell;
};

// The trees of a prompt: a line for each answer, whose own tokens are bars, cut where others branch
// off. A bar is above or below the middle of its line as its tokens are made more or less probable,
// and pale where the advantage is small beside the largest; to the right V and the advantage of an answer's last tokens, of the others in their titles.
const mostLeaves = 64;
const branches = x => x.tree && x.tree.nodes && x.tree.nodes.length > 0;
const treeCell = leaves => {
  leaves.sort((a, b) => a.tree.tree - b.tree.tree || a.tree.leaf - b.tree.leaf);
  const left = 64, right = 800, high = 26, top = 14, unit = leaves[0].turns ? "turn" : "character";
  const end = Math.max(1, ...leaves.flatMap(x => x.tree.nodes.map(n => n.to)));
  const across = n => left + (right - left) * n / end, signed = a => (a > 0 ? "+" : "") + figure(a);
  const most = Math.max(...leaves.flatMap(x => x.tree.nodes.map(n => Math.abs(n.advantage) || 0))) || 1;
  const line = new Map(leaves.map((x, i) => [x.tree.leaf, top + i * high])), parts = [];
  leaves.forEach((x, i) => {
    const t = x.tree, y = line.get(t.leaf), from = t.nodes[0].from;
    if (line.has(t.parent)) parts.push(s("path", { class: "branch", d: "M" + across(from) + " " + line.get(t.parent) + "V" + y }));
    if (t.parent < 0) parts.push(s("text", { x: 0, y: y + 4 }, "tree " + (t.tree + 1)));
    for (const n of t.nodes) {
      const a = n.advantage, up = !finite(a) || a === 0 ? "" : a > 0 ? " up" : " down", x1 = across(n.from), wide = Math.max(2, across(n.to) - x1 - 1);
      const says = unit + "s " + (n.from + 1) + " to " + n.to + ": V " + figure(n.value) + ", " + n.leaves + (n.leaves === 1 ? " answer" : " answers") + ", advantage " + figure(a);
      parts.push(s("rect", { class: "node" + up, x: x1, width: wide, y: y - (up === " down" ? 0 : up ? 8 : 4), height: 8, "fill-opacity": (0.3 + 0.7 * (Math.abs(a) || 0) / most).toFixed(2) }, s("title", {}, says)));
      if (n.leaves > 1 && wide > 130) parts.push(s("text", { x: x1 + 2, y: y + (up === " down" ? -3 : 10) }, "V " + figure(n.value) + " of " + n.leaves + ", A " + signed(a)));
    }
    const last = t.nodes[t.nodes.length - 1];
    parts.push(s("text", { x: across(last.to) + 6, y: y + 4 }, "V " + figure(last.value) + ", A " + signed(last.advantage)));
  });
  const trees = new Set(leaves.map(x => x.tree.tree)).size;
  return h("td", { role: "cell", class: "tree", colspan: "7", "data-label": "trees" },
    s("svg", { viewBox: "0 0 960 " + (top + leaves.length * high), role: "img", "aria-label": leaves.length + " answers in " + trees + (trees === 1 ? " tree" : " trees") }, ...parts));
};

const chosen = () => {
  const text = $("sample-text").value.trim().toLowerCase(), show = $("sample-show").value, order = $("sample-order").value;
  const rows = state.samples.rows.filter(x => (!text || (x.prompt + "\n" + x.student + "\n" + x.teacher + "\n" + (x.notes || "")).toLowerCase().includes(text)) && ({
    all: true, above: x.student_score > x.teacher_score, below: x.student_score < x.teacher_score, same: x.student === x.teacher,
    other: x.student !== x.teacher, up: x.advantage > 0, down: x.advantage < 0,
  })[show]);
  const by = { adv: x => -x.advantage, "-adv": x => x.advantage, score: x => -x.student_score, "-score": x => x.student_score }[order];
  if (by) rows.sort((a, b) => (finite(by(a)) ? by(a) : Infinity) - (finite(by(b)) ? by(b) : Infinity));
  return rows;
};

const perPage = 20;

const showSamples = () => {
  const box = $("sample-table");
  if (!state.samples) return;
  const rows = chosen(), pages = Math.max(1, Math.ceil(rows.length / perPage));
  state.page = Math.max(0, Math.min(state.page, pages - 1));
  const some = rows.slice(state.page * perPage, (state.page + 1) * perPage);
  const left = state.samples.left_out ? ", and " + state.samples.left_out + " more in the file" : "", hurt = state.samples.damaged ? ", " + state.samples.damaged + " damaged lines" : "";
  $("sample-count").textContent = state.samples.absent ? "No samples." : rows.length + " of " + state.samples.rows.length + " answers of step " + state.step + (state.board.runs.length > 1 ? " of " + state.board.runs[state.run].name : "") + left + hurt;
  $("page-is").textContent = "page " + (state.page + 1) + " of " + pages;
  $("page-before").disabled = state.page === 0;
  $("page-after").disabled = state.page >= pages - 1;
  if (!some.length) { box.replaceChildren(h("p", { class: "empty" }, state.samples.absent ? "This run has no samples here." : "No answer fits.")); return; }
  const number = (label, x) => h("td", { role: "cell", class: "n", "data-label": label }, figure(x));
  const head = ["prompt", "teacher", "student", "difference"], numbers = scores(state.board.runs[state.run]).columns;
  box.replaceChildren(h("table", { class: "answers stack", role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head.map(x => h("th", { scope: "col", role: "columnheader" }, x)), numbers.map(x => h("th", { scope: "col", role: "columnheader", class: "n" }, x)))),
    h("tbody", { role: "rowgroup" }, some.flatMap((x, i) => {
      const again = i > 0 && some[i - 1].row === x.row && some[i - 1].prompt === x.prompt;
      const trees = branches(x) && !again ? h("tr", { role: "row" }, treeCell(state.samples.rows.filter(o => branches(o) && o.row === x.row && o.prompt === x.prompt).slice(0, mostLeaves))) : null;
      const student = branches(x) && !x.seams ? textCell("student", x.student, false, x.tree.nodes.map(n => n.from).filter(n => n > 0), "node") : textCell("student", x.student, false, x.seams);
      const notes = x.notes ? textCell("notes", "Notes: " + x.notes, false) : null;
      if (notes) notes.colSpan = 7;
      return [trees, h("tr", { role: "row" }, textCell("prompt, data row " + x.row, x.prompt, again), textCell("teacher", x.teacher, again), x.turns ? turnsCell("student", x.turns) : [student, diffCell(x.teacher, x.student)],
        number(numbers[0], x.student_score), number(numbers[1], x.teacher_score), number(numbers[2], x.advantage)), notes && h("tr", { role: "row" }, notes)];
    }))));
};

const sampleSteps = r => whole ? whole.samples.filter(x => x.run === r.id).map(x => x.step) : r.sample_steps;

const loadSamples = async () => {
  const r = state.board.runs[state.run], steps = r ? sampleSteps(r) : [];
  const select = $("sample-step");
  if (select.dataset.steps !== state.run + ":" + steps.join()) {
    select.dataset.steps = state.run + ":" + steps.join();
    select.replaceChildren(...steps.map(x => h("option", { value: x }, String(x))));
  }
  if (!steps.length) state.step = 0;
  else if (state.following || !steps.includes(state.step)) state.step = steps[steps.length - 1];
  select.value = String(state.step);
  const i = steps.indexOf(state.step);
  $("sample-before").disabled = i <= 0;
  $("sample-after").disabled = i < 0 || i >= steps.length - 1;
  const want = state.run + ":" + state.step + ":" + (r ? r.sessions.length : 0); // a resume computes steps again
  if (state.loaded !== want) {
    state.samples = steps.length ? await source.samples(state.run, state.step).catch(e => ({ rows: [], left_out: 0, damaged: 0, absent: true, why: e.message })) : { rows: [], left_out: 0, damaged: 0, absent: true };
    state.loaded = want;
    state.page = 0;
  }
  showSamples();
};

// ---- one prompt over the steps

const short = text => text.length > 60 ? text.slice(0, 60) + "…" : text;

const showPrompt = () => {
  const box = $("prompt-table"), list = (state.answers || { prompts: [] }).prompts, at = Math.max(0, list.findIndex(p => p.row === state.prompts.row)), p = list[at];
  $("prompt-before").disabled = at <= 0;
  $("prompt-after").disabled = at >= list.length - 1;
  $("prompt-row").value = p ? String(p.row) : "";
  if (!p) {
    $("prompt-count").textContent = "";
    box.replaceChildren(h("p", { class: "empty" }, (state.answers || {}).problem || "No validation of this run has samples: data.val_files names the rows, trainer.test_freq says how often, trainer.save_samples how many prompts are kept."));
    return;
  }
  $("prompt-count").textContent = "Prompt " + (at + 1) + " of " + list.length + ", validation row " + p.row + ", after " + (p.step.length === 1 ? "step " : "steps ") + p.step.join(", ") + (state.answers.thinned ? "; not all validations" : "");
  const answer = (step, text, before) => h("tr", { role: "row" }, h("td", { role: "cell", class: "n", "data-label": "after step" }, step), textCell("answer", text), diffCell(before, text));
  box.replaceChildren(
    h("table", { class: "answers stack", role: "table" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["prompt", "teacher's answer"].map(x => h("th", { scope: "col", role: "columnheader" }, x)))),
      h("tbody", { role: "rowgroup" }, h("tr", { role: "row" }, textCell("prompt", p.prompt), textCell("teacher", p.teacher)))),
    h("table", { class: "answers stack", role: "table" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["after step", "student's answer", "difference from the one before"].map((x, i) => h("th", { scope: "col", role: "columnheader", class: i ? null : "n" }, x)))),
      h("tbody", { role: "rowgroup" }, p.step.map((step, i) => answer(String(step), p.student[i], i ? p.student[i - 1] : null)))));
};

const loadPrompts = async () => {
  const runs = state.board.runs, select = $("prompt-run"), names = runs.map(r => r.name + r.validated).join("\n");
  if (select.dataset.names !== names) {
    select.dataset.names = names;
    if (state.prompts.run < 0) state.prompts.run = Math.max(0, runs.findLastIndex(r => r.validated));
    select.replaceChildren(...runs.map(r => h("option", { value: r.id }, r.name)));
    select.value = String(state.prompts.run);
  }
  const r = runs[state.prompts.run], want = state.prompts.run + ":" + (r ? r.validated + ":" + r.sessions.length : "");
  if (state.asked !== want) {
    state.answers = r && r.validated ? await source.answers(state.prompts.run) : { prompts: [] };
    state.asked = want;
    $("prompt-row").replaceChildren(...state.answers.prompts.map(p => h("option", { value: p.row }, short(p.prompt))));
  }
  showPrompt();
};

// ---- doctor and settings

const showDoctor = () => {
  $("doctor-runs").replaceChildren(...state.board.runs.map(r => h("div", {},
    h("h3", { class: "text" }, r.name),
    h("p", {}, ({ clear: "No problems found", sick: "Bad signs: " + r.findings.length, early: "Too few steps to judge by most signs" })[r.verdict] + (r.judged ? ", in " + r.judged + " steps. " : ". "),
      r.holder ? "Running: " + r.holder + ". " : "State: " + r.state + (r.at ? ", " + when(r.at) : "") + ". ", r.said ? "Last said: " + r.said : "",
      r.sessions.length > 1 ? ". Resumed after step " + r.sessions.slice(1).map(x => x.after_step).slice(-10).join(", ") : ""),
    r.findings.map(f => h("div", { class: "sign" }, h("p", {}, h("b", {}, f.name), ": " + f.seen), h("p", {}, h("span", {}, "Rule: "), f.rule), h("p", {}, h("span", {}, "Look first at: "), f.advice))),
    r.warnings.length ? h("details", {}, h("summary", {}, r.warnings.length === 1 ? "1 warning in the log" : r.warnings.length + " warnings in the log"), h("ul", {}, r.warnings.map(w => h("li", { class: "text" }, (w.step ? "step " + w.step + ": " : "") + w.text)))) : null,
    r.problems.map(p => h("div", { class: "sign wait" }, h("p", {}, h("b", {}, "Could not be read"), ": " + p))))));
};

const showSettings = () => {
  const runs = state.board.runs, show = $("set-show").value, find = $("set-find").value.trim().toLowerCase();
  const differs = k => new Set(runs.filter(r => k in r.settings).map(r => r.settings[k])).size > 1;
  const rows = state.board.settings.filter(x => (show === "all" || (show === "differ" ? differs(x.key) : runs.some(r => r.changed.includes(x.key)))) &&
    (!find || x.key.includes(find) || x.doc.toLowerCase().includes(find) || runs.some(r => (r.settings[x.key] || "").toLowerCase().includes(find))));
  if (!rows.length) { $("set-table").replaceChildren(h("p", { class: "empty" }, runs.length === 1 && show === "differ" ? "There is one run: nothing to compare." : "No setting fits.")); return; }
  const wide = runs.length > 3;
  $("set-table").replaceChildren(h("div", wide ? { class: "wide", tabindex: "0", role: "region", "aria-label": "Settings of the runs" } : {}, h("table", { class: "settings-table stack", role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, h("th", { scope: "col", role: "columnheader" }, "setting"), runs.map(r => h("th", { scope: "col", role: "columnheader", class: "text" }, r.name)))),
    h("tbody", { role: "rowgroup" }, rows.map(x => {
      const d = show !== "differ" && differs(x.key);
      return h("tr", { role: "row" }, h("td", { role: "cell", "data-label": "setting" }, h("code", {}, x.key), h("div", { class: "what" }, x.doc)),
        runs.map(r => h("td", { role: "cell", "data-label": r.name, class: d ? "differs" : null }, x.key in r.settings ? r.settings[x.key] || "(empty)" : Object.keys(r.settings).length ? "not read" : "not known")));
    })))));
};

// ---- the view in the address, so that it can be kept and sent

const views = { smooth: 0.6, text: "", show: "all", order: "file" };
const keep = () => {
  if (!state.board) return;
  const q = new URLSearchParams(), put = (k, v) => { if (v) q.append(k, v); };
  put("axis", state.axis);
  if (state.smooth !== views.smooth) put("smooth", state.smooth);
  for (const r of state.board.runs) if (state.hidden.has(r.id)) put("hide", r.name);
  put("from", state.from); put("to", state.to);
  if (state.zoom) put("zoom", state.zoom.map(x => Number(x.toPrecision(6))).join("-"));
  put("outliers", state.outliers && 1); put("log", state.log && 1); put("find", $("find").value);
  if (state.seeds !== manySeeds()) put("seeds", state.seeds ? "band" : "lines");
  const groups = [...document.querySelectorAll("details.group")], open = groups.filter(d => d.open).map(d => d.id.slice(6));
  if (groups.length && open.join() !== groups[0].id.slice(6)) put("open", open.join() || "none");
  if (!state.following) { put("run", (state.board.runs[state.run] || {}).name); put("step", state.step); }
  for (const k of ["text", "show", "order"]) if ($("sample-" + k).value !== views[k]) put(k, $("sample-" + k).value);
  try { history.replaceState(null, "", location.pathname + (q.size ? "?" + q : "") + location.hash); } catch { /* a page that may have no other address */ }
};
const given = new URLSearchParams(location.search);
const restore = () => {
  const number = k => Math.max(0, Math.floor(Number(given.get(k)) || 0));
  if (Object.hasOwn(axes, given.get("axis") || "")) state.axis = given.get("axis");
  if (given.has("smooth")) state.smooth = Math.max(0, Math.min(0.99, Number(given.get("smooth")) || 0));
  state.from = number("from"); state.to = number("to");
  const zoom = (given.get("zoom") || "").split("-").map(Number);
  if (zoom.length === 2 && zoom.every(finite) && zoom[0] < zoom[1]) state.zoom = zoom;
  state.outliers = given.has("outliers"); state.log = given.has("log");
  if (given.has("open")) state.open = new Set(given.get("open").split(","));
  $("from").value = state.from || ""; $("to").value = state.to || ""; $("find").value = given.get("find") || "";
  $("outliers").checked = state.outliers; $("log").checked = state.log;
  for (const k of ["text", "show", "order"]) if (given.has(k)) $("sample-" + k).value = given.get(k);
  for (const k of ["show", "order"]) if ($("sample-" + k).selectedIndex < 0) $("sample-" + k).value = views[k];
};
// restoreRuns is what of the address needs the runs' names.
const restoreRuns = runs => {
  const hide = new Set(given.getAll("hide"));
  for (const r of runs) if (hide.has(r.name)) state.hidden.add(r.id);
  if (given.has("seeds")) state.seeds = given.get("seeds") === "band";
  const run = runs.findIndex(r => r.name === given.get("run")), step = Math.floor(Number(given.get("step")) || 0);
  if (run >= 0 && step > 0) { state.run = run; state.step = step; state.following = false; }
};

const manySeeds = () => {
  const n = new Map();
  for (const r of state.board.runs) if (r.repeats) n.set(r.repeats, (n.get(r.repeats) || 0) + 1);
  return [...n.values()].some(x => x > 2);
};

const showAxis = () => {
  const runs = state.board.runs, name = axisName();
  $("axis").value = name;
  for (const id of ["from", "to"]) $(id).disabled = name !== "step";
  $("seeds-label").hidden = !runs.some(r => r.repeats);
  $("seeds").checked = state.seeds;
  const lost = name === "step" ? [] : runs.filter(r => r.after && r.after.run < 0 && !state.hidden.has(r.id)).map(r => r.name + " continues " + r.after.path);
  $("axis-note").textContent = lost.length ? "Not on this board, so that its way is not counted: " + lost.slice(0, 3).join("; ") + "." : "";
  $("axis-note").hidden = !lost.length;
};

// ---- the whole

const fail = e => { $("error").hidden = !e; if (e) $("error").textContent = "The board cannot be read: " + e.message; };

const showAll = async board => {
  const first = !state.board;
  state.board = board;
  if (first) { state.seeds = manySeeds(); restoreRuns(board.runs); }
  document.title = (board.runs.length === 1 ? board.runs[0].name : board.runs.length + " runs") + " - gad " + (whole ? "report" : "board");
  showHealth();
  showRuns();
  const mine = ++asked, series = await source.series(state.from, state.to);
  if (mine === asked) state.series = series; // else somebody has zoomed meanwhile
  if (state.series) showCurves();
  state.scores = await source.scores();
  showScores();
  const select = $("sample-run"), names = board.runs.map(r => r.name).join("\n");
  if (select.dataset.names !== names) {
    select.dataset.names = names;
    if (!state.step && state.following) state.run = Math.max(0, board.runs.findIndex(r => sampleSteps(r).length));
    select.replaceChildren(...board.runs.map(r => h("option", { value: r.id }, r.name)));
    select.value = String(state.run);
    $("set-show").value = board.runs.length > 1 ? "differ" : "changed";
  }
  await loadSamples();
  await loadPrompts();
  showDoctor();
  showSettings();
  fail(null);
  if (first) arrive();
};

// arrive goes to the section that the address names once what is above it has been drawn, unless
// somebody has scrolled meanwhile.
const arrive = () => {
  const to = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (!to || state.scrolled) return;
  const go = () => { if (!state.scrolled) to.scrollIntoView(); };
  go();
  requestAnimationFrame(() => requestAnimationFrame(go));
};
for (const e of ["wheel", "touchmove", "keydown"]) addEventListener(e, () => { state.scrolled = true; }, { passive: true });

let timer = 0, asked = 0;
const poll = async () => {
  clearTimeout(timer);
  try {
    const b = await source.board(state.shown);
    if (b.runs && state.board && state.board.runs.some((r, i) => (b.runs[i] || {}).path !== r.path)) { location.reload(); return; } // a board of other runs has taken the port
    if (b.runs) { await showAll(b); state.shown = b.version; }
    fail(null);
    $("live").textContent = whole ? "as of " + when(whole.written) : "live, looked at " + new Date().toLocaleTimeString();
  } catch (e) {
    fail(e);
    $("live").textContent = "not live: is gad board still running?";
  }
  if (!whole) timer = setTimeout(poll, document.hidden ? 20000 : 2000);
};

// zoomTo shows a part of the axis; 0, 0 is all of it.
const zoomTo = (a, b) => {
  if (axisName() === "step") {
    if (!b || Math.round(b) > Math.round(a)) range(b ? Math.max(1, Math.round(a)) : 0, Math.round(b));
    return;
  }
  state.zoom = b ? [a, b] : null;
  showCurves(); showScores(); keep();
};

const range = async (from, to) => {
  state.from = from; state.to = to;
  keep();
  $("from").value = from || ""; $("to").value = to || "";
  const mine = ++asked;
  try {
    const series = await source.series(from, to);
    if (mine !== asked) return;
    state.series = series;
    showCurves(); showScores();
  } catch (e) { fail(e); }
};
const typed = () => {
  const from = Math.max(0, Math.floor(Number($("from").value) || 0)), to = Math.max(0, Math.floor(Number($("to").value) || 0));
  if (!to || to >= from) range(from, to);
};

const theme = v => {
  const dark = v === "dark" || v !== "light" && matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
};

const wire = () => {
  restore();
  $("theme").value = memory.get("theme") || "auto";
  theme($("theme").value);
  $("theme").addEventListener("change", e => { memory.set("theme", e.target.value); theme(e.target.value); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme($("theme").value));
  const kept = Number(memory.get("smooth") ?? 0.6);
  if (!given.has("smooth")) state.smooth = kept >= 0 && kept <= 0.99 ? kept : 0.6;
  $("smooth").value = state.smooth;
  $("smooth-is").textContent = state.smooth.toFixed(2);
  $("smooth").addEventListener("input", e => { state.smooth = Number(e.target.value); $("smooth-is").textContent = state.smooth.toFixed(2); memory.set("smooth", state.smooth); redraw(); });
  $("outliers").addEventListener("change", e => { state.outliers = e.target.checked; redraw(); });
  $("log").addEventListener("change", e => { state.log = e.target.checked; redraw(); });
  $("find").addEventListener("input", () => state.series && showCurves());
  $("from").addEventListener("change", typed);
  $("to").addEventListener("change", typed);
  $("whole").addEventListener("click", () => zoomTo(0, 0));
  $("axis").addEventListener("change", e => {
    state.axis = e.target.value; state.zoom = null; state.cursor = null;
    if (state.from || state.to) range(0, 0); else { showCurves(); showScores(); }
    keep();
  });
  $("seeds").addEventListener("change", e => { state.seeds = e.target.checked; showCurves(); showScores(); keep(); });
  for (const e of ["change", "click"]) $("main").addEventListener(e, () => setTimeout(keep)); // after what the event does
  $("sample-run").addEventListener("change", e => { state.run = Number(e.target.value); state.following = true; loadSamples(); });
  const step = x => { const steps = sampleSteps(state.board.runs[state.run]); state.step = x; state.following = x === steps[steps.length - 1]; loadSamples(); };
  const by = n => { const steps = sampleSteps(state.board.runs[state.run]), i = steps.indexOf(state.step) + n; if (i >= 0 && i < steps.length) step(steps[i]); };
  $("sample-step").addEventListener("change", e => step(Number(e.target.value)));
  $("sample-before").addEventListener("click", () => by(-1));
  $("sample-after").addEventListener("click", () => by(1));
  for (const id of ["sample-text", "sample-show", "sample-order"]) $(id).addEventListener("input", () => { state.page = 0; state.following = false; showSamples(); });
  const turn = n => { state.page += n; state.following = false; showSamples(); }; // who reads is not sent to a newer step
  $("page-before").addEventListener("click", () => turn(-1));
  $("page-after").addEventListener("click", () => turn(1));
  const askFor = row => { state.prompts.row = row; showPrompt(); };
  const turnPrompt = n => { const list = state.answers.prompts, p = list[Math.max(0, list.findIndex(x => x.row === state.prompts.row)) + n]; if (p) askFor(p.row); };
  $("prompt-run").addEventListener("change", e => { state.prompts.run = Number(e.target.value); loadPrompts().catch(fail); });
  $("prompt-row").addEventListener("change", e => askFor(Number(e.target.value)));
  $("prompt-before").addEventListener("click", () => turnPrompt(-1));
  $("prompt-after").addEventListener("click", () => turnPrompt(1));
  $("set-show").addEventListener("change", showSettings);
  $("set-find").addEventListener("input", showSettings);
  let width = 0;
  new ResizeObserver(() => { if (width !== innerWidth) { width = innerWidth; for (const c of charts.values()) if (c.near) c.draw(); } }).observe(document.body);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !whole) poll(); });
};

wire();
poll();
})();
