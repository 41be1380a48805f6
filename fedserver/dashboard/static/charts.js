// Curves with uPlot: one chart for all runs, drawn anew when the theme or the set of curves changes.
import { by, make } from "./format.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const color = (k) => style(`--s${(k % 6) + 1}`);

export class Chart {
  constructor(id, { value, empty, least = null }) {
    this.box = by(id);
    this.value = value;
    this.least = least;
    this.empty = make("p", { class: "empty" }, empty);
    this.box.append(this.empty);
    this.plot = null;
    this.shape = "";
    new ResizeObserver(() => this.fit()).observe(this.box);
  }
  fit() {
    const width = this.box.clientWidth;
    if (this.plot && width) this.plot.setSize({ width, height: this.height() });
  }
  height() { return 290 - Math.min(90, 28 * Math.ceil((this.count + 1) / (this.box.clientWidth > 420 ? 4 : 2))); }
  // curves: [{label, color, dash, xs, ys}]
  draw(curves, { xName, xValue }) {
    const some = curves.some((curve) => curve.ys.some((y) => y != null));
    this.empty.hidden = some;
    if (!some || !this.box.clientWidth) { if (!some) this.drop(); return; }
    const data = uPlot.join(curves.map((curve) => [curve.xs, curve.ys]));
    const shape = JSON.stringify([xName, style("--text"), curves.map((c) => [c.label, c.color, c.dash])]);
    if (this.plot && shape === this.shape) { this.plot.setData(data); return; }
    this.drop();
    this.shape = shape;
    this.count = curves.length;
    this.plot = new uPlot(this.options(curves, xName, xValue), data, this.box);
  }
  drop() { this.plot?.destroy(); this.plot = null; this.shape = ""; }
  options(curves, xName, xValue) {
    const axis = { stroke: style("--muted"), grid: { stroke: style("--grid"), width: 1 }, ticks: { stroke: style("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    const least = this.least;
    return {
      width: this.box.clientWidth, height: this.height(),
      legend: { markers: { width: 2, dash: (plot, k) => (plot.series[k].dash ? "dotted" : "solid") } }, cursor: { points: { size: 7 }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => {
        if (low == null) return [0, 1];
        const room = Math.max((high - low) * 0.08, Math.abs(high) * 0.02, 1e-9);
        return [least != null && low - room < least ? least : low - room, high + room];
      } } },
      axes: [
        { ...axis, space: 70, values: (_, ticks) => ticks.map((x) => (xName === "round" && !Number.isInteger(x) ? "" : xValue(x))) },
        { ...axis, size: 68, values: (_, ticks) => ticks.map((y) => this.value(y)) },
      ],
      series: [
        { label: xName, value: (_, x) => (x == null ? "\u2013" : xValue(x)) },
        ...curves.map((c) => ({ label: c.label, stroke: c.color, width: 2, dash: c.dash, spanGaps: true,
          points: { show: c.ys.length < 60, size: 5 }, value: (_, y) => (y == null ? "\u2013" : this.value(y)) })),
      ],
    };
  }
}

// The rounds at which a value is known, as xs and ys by round or by bytes.
export function curve(points, axis, value) {
  const known = points.filter((point) => value(point) != null);
  return { xs: known.map((point) => (axis === "bytes" ? point.total : point.round)), ys: known.map(value) };
}
