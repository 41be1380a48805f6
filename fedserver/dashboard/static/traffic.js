// Bytes by direction, purpose and tensor, and what other methods would have sent.
import { Chart, color, curve } from "./charts.js";
import { badge, by, bytes, count, fill, make, plainBytes, put } from "./format.js";

const PURPOSES = [["model", "model (x, y_i)"], ["buffer", "buffers"], ["control", "control variates (c, c_i)"], ["other", "everything else"]];
const chart = new Chart("chart-bytes", { value: plainBytes, empty: "No round has closed yet.", least: 0 });

export function traffic(run) {
  const points = run.curve(), last = points.at(-1);
  const own = run.title || "this run";
  const methods = last ? [[own, last.total, true], ["FedAvg", last.fedavg, false], ["SCAFFOLD", last.scaffold, false]] : [];
  const most = Math.max(1, ...methods.map(([, total]) => total));
  fill(by("methods"), methods, ([name, , mine]) => `${name}${mine}`, ([name, , mine]) => make("div", mine ? { class: "own" } : {}, make("span", {}, make("strong", {}, mine ? `${name} (this run)` : name), make("span")), make("b")), (row, [, total]) => {
    put(row.firstChild.lastChild, `${bytes(total)}, ${(total / last.fedavg).toFixed(3)} times FedAvg`);
    row.lastChild.style.width = `${(100 * total) / most}%`;
  });
  if (!last) fill(by("methods"), [0], () => "none", () => make("p", { class: "muted" }, "Nothing has been sent in a closed round yet."));
  chart.draw([
    { label: own, color: color(0), ...curve(points, "round", (p) => p.total) },
    { label: "FedAvg", color: color(2), dash: [6, 4], ...curve(points, "round", (p) => p.fedavg) },
    { label: "SCAFFOLD", color: color(1), dash: [3, 4], ...curve(points, "round", (p) => p.scaffold) },
  ], { xName: "round", xValue: String });
  put(by("caption-bytes"), last ? `${bytes(last.total)} after ${count(last.round)} rounds, ${bytes(last.total / last.round)} a round.` : "");
  purposes(run, last);
  tensors(run);
}

function purposes(run, last) {
  const rows = last ? [...PURPOSES, ["total", "all"]] : [];
  const of = (way, key) => (key === "total" ? PURPOSES.reduce((sum, [name]) => sum + run[way][name], 0) : run[way][key]);
  fill(by("purpose-rows"), rows, ([key]) => key, ([key, name]) => make("tr", key === "total" ? { class: "total" } : {}, make("th", { scope: "row" }, name), make("td", { class: "number" }), make("td", { class: "number" }), make("td", { class: "number" })), (row, [key]) => {
    const [down, up] = [of("down", key), of("up", key)];
    put(row.children[1], bytes(down));
    put(row.children[2], bytes(up));
    put(row.children[3], bytes(down + up));
  });
}

function tensors(run) {
  const known = run.bytes;
  put(by("tensor-note"), !known ? "" : known.rounds < run.closed ? `Adding up: ${count(known.rounds)} of ${count(run.closed)} rounds so far.` : `Of ${count(known.rounds)} rounds${known.unlisted ? `; ${count(known.unlisted)} smaller rows are left out` : ""}. Tensors in S_svr are marked.`);
  fill(by("tensor-rows"), known?.tensors ?? [], (t) => `${t.purpose} ${t.name}`, (t) => {
    const head = make("th", { scope: "row" }, t.name || "-");
    if (t.svr) head.append(" ", badge("busy", "S_svr"));
    return make("tr", {}, head, make("td", {}, t.purpose), make("td", { class: "number" }), make("td", { class: "number" }));
  }, (row, t) => { put(row.children[2], t.down ? bytes(t.down) : "0"); put(row.children[3], t.up ? bytes(t.up) : "0"); });
}
