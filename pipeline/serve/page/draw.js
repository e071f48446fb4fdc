// Elements, numbers and SVG. Text from outside only ever becomes text: nothing here parses it as HTML.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "width%") element.style.width = value + "%";
    else if (name === "colour") element.style.setProperty("--colour", value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

// ---- numbers

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e6 || (size < 1e-4 && size > 0)) return value.toExponential(digits - 2);
  return String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return number(value, 3) + " " + units[unit];
}

export function duration(seconds) {
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  if (seconds < 60) return number(seconds, 3) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.round(seconds % 60) + " s";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h " + Math.round((seconds % 3600) / 60) + " min";
  return Math.round(seconds / 86400) + " days";
}

// ---- bars

export function progress(job) {
  const part = (step) => Math.min(100, (100 * step) / Math.max(1, job.steps));
  const percent = Math.floor(part(job.step));
  return h("div", { class: "progress " + job.state, title: `committed ${number(job.committed)}` },
    h("div", { class: "bar", role: "progressbar", "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100 },
      h("div", { class: "done", "width%": part(job.step) }), h("div", { class: "safe", "width%": part(job.committed) })),
    h("span", { class: "of" }, `${number(job.step)} / ${number(job.steps)}`), h("span", { class: "percent" }, percent + " %"));
}

export const share = (part) => h("div", { class: "share" },
  h("div", { class: "bar" }, h("div", { class: "done", "width%": 100 * part })),
  h("span", {}, part ? Math.round(100 * part) + " %" : ""));

// ---- charts

const MARGIN = { left: 58, right: 12, top: 10, bottom: 22 };

function ticks(low, high, about) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / about));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((step) => span / step <= about) || power;
  const found = [];
  for (let at = Math.ceil(low / size) * size; at <= high + size * 1e-9; at += size) found.push(Number(at.toPrecision(12)));
  return found;
}

function frame(width, height, xs, ys, yText) {
  const inner = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const x = (value) => inner.left + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * (inner.right - inner.left);
  const y = (value) => inner.bottom - ((value - ys[0]) / (ys[1] - ys[0] || 1)) * (inner.bottom - inner.top);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img" });
  for (const at of ticks(xs[0], xs[1], Math.max(2, Math.floor(width / 75)))) {
    if (!Number.isInteger(at)) continue;
    svg.append(s("line", { class: "grid", x1: x(at), x2: x(at), y1: inner.top, y2: inner.bottom }));
    svg.append(s("text", { x: x(at), y: height - 6, class: "tick middle" }, number(at)));
  }
  for (const at of yText ? ticks(ys[0], ys[1], 4) : []) {
    svg.append(s("line", { class: "grid", x1: inner.left, x2: inner.right, y1: y(at), y2: y(at) }));
    svg.append(s("text", { x: inner.left - 8, y: y(at) + 4, class: "tick end" }, yText(at)));
  }
  return { svg, x, y, inner };
}

function path(points, x, y) {
  let pen = "M", text = "";
  for (const [a, b] of points) {
    if (b === null) { pen = "M"; continue; }
    text += `${pen}${x(a).toFixed(1)} ${y(b).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

// points: [[step, value or null]]; band: [[step, low, high]]. The reading under the pointer is told to `read`.
export function lineChart(width, height, points, band, xs, { log = false, label, read }) {
  const scale = log ? Math.log10 : (value) => value;
  const fit = (value) => (value === null || (log && value <= 0) ? null : scale(value));
  const drawn = points.map(([step, value]) => [step, fit(value)]);
  const edges = band.map(([step, low, high]) => [step, fit(low), fit(high)]).filter(([, low, high]) => low !== null && high !== null);
  const values = [...drawn.map(([, value]) => value).filter((value) => value !== null), ...edges.flatMap(([, low, high]) => [low, high])];
  if (!values.length) return h("p", { class: "none" }, "no numbers yet");
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  [low, high] = [low - room, high + room];
  const { svg, x, y, inner } = frame(width, height, xs, [low, high], (at) => number(log ? 10 ** at : at, 3));
  svg.setAttribute("aria-label", label);
  if (edges.length > 1) {
    const upper = edges.map(([step, , top]) => [step, top]), lower = edges.map(([step, bottom]) => [step, bottom]).reverse();
    svg.append(s("path", { class: "band", d: path(upper, x, y) + path(lower, x, y).replace("M", "L") + "Z" }));
  }
  svg.append(s("path", { class: "line", d: path(drawn, x, y) }));
  if (drawn.length <= 30) for (const [a, b] of drawn) if (b !== null) svg.append(s("circle", { class: "dot", cx: x(a), cy: y(b), r: 2.5 }));
  const hair = s("line", { class: "hair", y1: inner.top, y2: inner.bottom, visibility: "hidden" });
  svg.append(hair);
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    let best = points[0];
    for (const point of points) if (Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at)) best = point;
    hair.setAttribute("x1", x(best[0])); hair.setAttribute("x2", x(best[0])); hair.setAttribute("visibility", "visible");
    read(`step ${number(best[0])}: ${best[1] === null ? "not a finite number" : number(best[1], 6)}`);
  });
  svg.addEventListener("pointerleave", () => { hair.setAttribute("visibility", "hidden"); read(""); });
  return svg;
}

// Who ran which ESTs (upwards) at which steps (to the right). Steps that were lost and computed again overlap.
export function timeline(width, generations, ests, xs, commits, colourOf) {
  const height = Math.min(260, Math.max(70, 14 * ests)) + MARGIN.top + MARGIN.bottom;
  const { svg, x, y, inner } = frame(width, height, xs, [0, ests], null);
  svg.setAttribute("aria-label", "who ran which ESTs at which steps");
  const every = Math.max(1, Math.ceil(ests / 8));
  for (let est = 0; est < ests; est += every)
    svg.append(s("text", { x: inner.left - 8, y: (y(est) + y(est + 1)) / 2 + 4, class: "tick end" }, (est === 0 ? "EST " : "") + est));
  for (const one of generations) {
    if (one.first === null || !one.members.length) continue;
    const left = x(one.first), wide = Math.max(1, x(one.last) - left);
    for (const { worker, first, last } of one.members) {
      const title = `${worker}\nESTs ${first} to ${last - 1}, steps ${one.first} to ${one.last}\ngeneration ${one.generation}: ${one.cause}`;
      svg.append(make(s("rect", { class: "ran", x: left, y: y(last) + 0.5, width: wide, height: Math.max(1, y(first) - y(last) - 1) },
        s("title", {}, title)), { colour: colourOf(worker) }, []));
    }
    svg.append(s("line", { class: "change", x1: left, x2: left, y1: inner.top - 4, y2: inner.bottom + 3 }, s("title", {}, one.cause)));
  }
  for (const step of commits) svg.append(s("line", { class: "commit", x1: x(step), x2: x(step), y1: inner.bottom - 1, y2: inner.bottom + 5 }));
  return svg;
}

const COLOURS = ["#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84cc16", "#f97316", "#64748b"];

// Workers get colours in the order in which they came, so that neighbours differ.
export function colours(names) {
  const order = new Map([...new Set(names)].map((name, place) => [name, COLOURS[place % COLOURS.length]]));
  return (name) => order.get(name) || "#64748b";
}
