// Drift diversity as a heat map of layers and rounds, and the norms of the control variates.
import { Chart, color, curve } from "./charts.js";
import { badge, by, fill, fixed, make, plain, put, short } from "./format.js";

const norms = new Chart("chart-norms", { value: plain, empty: "This method has no control variates, or no round has closed yet.", least: 0 });
const LEFT = 150, BOTTOM = 24, ROW = 26;
let drawn = null;

export function drift(run) {
  const points = run.curve().filter((p) => p.drift.some((value) => value != null));
  const layers = run.layers.map((name, k) => ({ name: name || "(top)", k, svr: (run.head?.svr_layers ?? []).includes(name) }));
  heat(points, layers);
  rows(points, layers);
  const all = run.curve();
  norms.draw([
    { label: "c", color: color(0), ...curve(all, "round", (p) => p.c || null) },
    { label: "c_i, largest", color: color(1), dash: [3, 4], ...curve(all, "round", (p) => p.c_i?.[2] || null) },
    { label: "c_i, median", color: color(1), ...curve(all, "round", (p) => p.c_i?.[1] || null) },
    { label: "c_i, smallest", color: color(1), dash: [3, 4], ...curve(all, "round", (p) => p.c_i?.[0] || null) },
  ].filter((c) => c.ys.length), { xName: "round", xValue: String });
  const last = all.at(-1);
  put(by("caption-norms"), last?.c_i ? `After round ${last.round}: c ${short(last.c)}; c_i from ${short(last.c_i[0])} to ${short(last.c_i[2])}, median ${short(last.c_i[1])}.` : "");
}

const channel = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
function mixed(share) {
  const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [low, high] = [of("--heat-0"), of("--heat-1")];
  return `rgb(${[0, 1, 2].map((k) => Math.round(channel(low, k) + share * (channel(high, k) - channel(low, k)))).join(" ")})`;
}

function heat(points, layers) {
  const canvas = by("heat"), width = canvas.clientWidth, height = Math.max(90, layers.length * ROW + BOTTOM);
  canvas.style.height = `${points.length ? height : 320}px`;
  if (!width) return;
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = (points.length ? height : 320) * scale;
  const pen = canvas.getContext("2d"), text = getComputedStyle(document.documentElement);
  pen.scale(scale, scale);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const muted = text.getPropertyValue("--muted");
  if (!points.length) {
    pen.fillStyle = muted;
    pen.fillText("No round has closed yet.", 12, 160);
    put(by("caption-heat"), "No round has closed yet.");
    fill(by("heat-scale"), [], String, make);
    drawn = null;
    return;
  }
  const values = points.flatMap((p) => p.drift).filter((v) => v != null).sort((a, b) => a - b);
  // One wild value must not make all others look alike.
  const low = values[0], high = Math.max(values[Math.floor(0.98 * (values.length - 1))], low + 1e-9);
  const left = Math.min(LEFT, width * 0.36), wide = width - left - 2, ramp = Array.from({ length: 65 }, (_, k) => mixed(k / 64));
  points.forEach((point, x) => layers.forEach((layer, y) => {
    const value = point.drift[layer.k];
    if (value == null) return;
    pen.fillStyle = ramp[Math.round(64 * Math.min(1, (value - low) / (high - low)))];
    const from = left + (x * wide) / points.length;
    pen.fillRect(from, y * ROW + 1, Math.max(1, wide / points.length + 0.5), ROW - 2);
  }));
  const accent = text.getPropertyValue("--accent");
  layers.forEach((layer, y) => {
    pen.fillStyle = layer.svr ? accent : muted;
    pen.font = `${layer.svr ? "600 " : ""}12px system-ui, sans-serif`;
    const label = layer.svr ? `\u25cf ${layer.name}` : layer.name;
    pen.fillText(label.length * 6.4 > left ? `${label.slice(0, Math.floor(left / 6.6))}\u2026` : label, 0, y * ROW + ROW / 2);
    if (layer.svr) { pen.strokeStyle = accent; pen.lineWidth = 1.5; pen.strokeRect(left, y * ROW + 1, wide, ROW - 2); }
  });
  pen.fillStyle = muted;
  pen.font = "12px system-ui, sans-serif";
  const ends = [points[0].round, points[Math.floor((points.length - 1) / 2)].round, points.at(-1).round];
  pen.fillText(`round ${ends[0]}`, left, height - 10);
  pen.textAlign = "center";
  if (points.length > 2) pen.fillText(String(ends[1]), left + wide / 2, height - 10);
  pen.textAlign = "right";
  if (points.length > 1) pen.fillText(String(ends[2]), left + wide, height - 10);
  drawn = { points, layers, left, wide };
  const marked = layers.filter((layer) => layer.svr).map((layer) => layer.name);
  const last = points.at(-1), top = [...layers].filter((l) => last.drift[l.k] != null).sort((a, b) => last.drift[b.k] - last.drift[a.k])[0];
  put(by("caption-heat"), `${layers.length} layers, rounds ${points[0].round} to ${last.round}. In round ${last.round} ${top.name} differs most, ${fixed(last.drift[top.k], 3)}. ${marked.length ? `In S_svr: ${marked.join(", ")}.` : "S_svr is empty."}`);
  fill(by("heat-scale"), [0], () => "scale", () => make("span", {}, make("span"), " ", make("i"), " ", make("span")), (row) => {
    put(row.firstChild, fixed(low, 2));
    put(row.lastChild, `${fixed(high, 2)} and more`);
  });
  by("heat-scale").firstChild.className = "scale";
}

function rows(points, layers) {
  fill(by("drift-rows"), points.length ? layers : [], (l) => l.name, (l) => make("tr", {}, make("th", { scope: "row" }, l.name), make("td", {}, ...(l.svr ? [badge("busy", "S_svr")] : [])), make("td", { class: "number" }), make("td", { class: "number" }), make("td", { class: "number" })), (row, l) => {
    const known = points.map((p) => p.drift[l.k]).filter((v) => v != null);
    put(row.children[2], fixed(known[0], 3));
    put(row.children[3], fixed(known.length ? known.reduce((a, b) => Math.max(a, b)) : null, 3));
    put(row.children[4], fixed(known.at(-1), 3));
  });
}

export function followPointer() {
  const canvas = by("heat"), tip = by("heat-tip");
  canvas.addEventListener("pointermove", (event) => {
    const x = drawn && Math.floor(((event.offsetX - drawn.left) / drawn.wide) * drawn.points.length), y = Math.floor(event.offsetY / ROW);
    const point = drawn?.points[x], layer = drawn?.layers[y];
    tip.hidden = !point || !layer;
    if (tip.hidden) return;
    put(tip, `${layer.name}, round ${point.round}: ${fixed(point.drift[layer.k], 3)}`);
    tip.style.left = `${Math.min(event.offsetX + 12, canvas.clientWidth - 220)}px`;
    tip.style.top = `${event.offsetY + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
}
