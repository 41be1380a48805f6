// What the run is doing now, the curves, and who and what calls for attention.
import { Chart, color, curve } from "./charts.js";
import { DASH, badge, by, bytes, clock, count, fill, fixed, make, percent, plain, plainBytes, put, span } from "./format.js";
import { clients } from "./state.js";

const accuracy = new Chart("chart-accuracy", { value: (y) => percent(y, 0), empty: "No x has been evaluated yet.", least: 0 });
const loss = new Chart("chart-loss", { value: plain, empty: "No round has closed yet.", least: 0 });

export function overview(run, runs, axis) {
  const rows = clients(run);
  now(run, rows);
  cards(run, rows);
  curves(run, runs, axis);
  roll(run, rows);
  attention(run, rows);
}

// One line of what goes on, and one of why.
export function sentence(run, rows) {
  const live = run.live;
  const here = rows.filter((row) => !row.absent).length;
  const missing = rows.filter((row) => row.absent && row.state !== "left").map((row) => row.name);
  if (!live) return run.closed ? [`${count(run.closed)} rounds are recorded`, "This run wrote no live.json: what it does now cannot be told."] : ["Nothing here yet", "The server has not begun to write."];
  if (live.ended != null) {
    const how = live.outcome === "finished" ? "Finished" : `Ended: ${live.outcome}`;
    return [`${how} after round ${run.closed} of ${live.rounds}`, `The server's process ended at ${new Date(live.ended * 1000).toLocaleString("en-GB")}.`];
  }
  if (run.alive === false) return [`The server is gone after round ${run.closed} of ${live.rounds}`, "Its process has ended without a word: it was killed, or the machine stopped. Started again with the same --run-dir it goes on."];
  if (live.phase === "preparing") return ["Preparing", "The model and the data are being built."];
  if (live.phase === "waiting") return [`Waiting for clients: ${rows.length} of ${live.needed} are here`, `Round 1 starts when they have joined${live.address ? ` at ${live.address}` : ""}.`];
  if (live.phase === "finished") return [`Finished after ${live.rounds} rounds`, "The clients are being told."];
  const waits = live.drawn - live.answered;
  const lost = missing.length ? `; not there: ${missing.slice(0, 5).join(", ")}${missing.length > 5 ? ` and ${missing.length - 5} more` : ""}` : "";
  return [`Round ${live.round} of ${live.rounds}`, `Open for ${span(run.now() - live.since)}: ${live.answered} of ${live.drawn} updates are in${waits ? `, ${waits} to come` : ""}; ${here} of ${rows.length} clients are here${lost}.`];
}

function now(run, rows) {
  const [what, more] = sentence(run, rows);
  put(by("doing"), what);
  put(by("doing-more"), more);
  const done = by("progress");
  done.max = Math.max(1, run.rounds);
  done.value = run.closed;
}

function cards(run, rows) {
  const last = run.last, live = run.live;
  const evaluated = run.curve().filter((point) => point.accuracy != null).at(-1);
  card("left", run.seconds_left == null ? DASH : span(run.seconds_left), run.seconds_left != null ? "if rounds go on as the last ten" : run.goesOn ? "known after the first round" : "nothing is running");
  card("accuracy", percent(evaluated?.accuracy), run.best ? `best ${percent(run.best.accuracy)} after round ${run.best.round}` : "not evaluated yet");
  card("loss", fixed(evaluated?.loss, 3), last ? `${fixed(last.train_loss, 3)} in training` : "");
  const absent = rows.filter((row) => row.absent).map((row) => row.name);
  card("clients", rows.length ? `${rows.length - absent.length} of ${live?.num_clients ?? rows.length}` : DASH,
    !run.goesOn ? "when the server was last heard" : absent.length ? `not there: ${absent.slice(0, 3).join(", ")}${absent.length > 3 ? " ..." : ""}` : rows.length ? "all who have joined" : "nobody has joined yet");
  card("sent", bytes(last?.total), last ? `${(last.total / last.fedavg).toFixed(3)} times FedAvg, SCAFFOLD ${(last.scaffold / last.fedavg).toFixed(3)}` : "");
  const cert = live?.certificate;
  const days = cert ? (cert.expires - run.now()) / 86400 : null;
  card("cert", cert ? (days < 0 ? "expired" : `${Math.floor(days)} days`) : live?.address ? "none" : DASH, cert ? `until ${new Date(cert.expires * 1000).toLocaleDateString("en-GB")}` : live?.address ? "no TLS" : "");
}
function card(name, value, note) { put(by(`card-${name}`), value); put(by(`card-${name}-note`), note); }

function curves(run, runs, axis) {
  const names = new Set(runs.map((each) => each.name));
  const label = (each) => (runs.length === 1 ? "" : names.size === runs.length ? `${each.name} ` : `${each.number + 1} `);
  const how = axis === "bytes" ? { xName: "bytes", xValue: plainBytes } : { xName: "round", xValue: (x) => String(x) };
  const drawn = runs.map((each) => ({ each, points: each.curve() }));
  accuracy.draw(drawn.flatMap(({ each, points }) => {
    const found = [{ label: `${label(each)}accuracy`, color: color(each.number), ...curve(points, axis, (p) => p.accuracy) }];
    const held = curve(points, axis, (p) => p.validation);
    if (held.ys.length) found.push({ label: `${label(each)}validation`, color: color(each.number), dash: [6, 4], ...held });
    return found;
  }), how);
  loss.draw(drawn.flatMap(({ each, points }) => [
    { label: `${label(each)}loss`, color: color(each.number), ...curve(points, axis, (p) => p.loss) },
    { label: `${label(each)}training`, color: color(runs.length === 1 ? 1 : each.number), dash: [3, 4], ...curve(points, axis, (p) => p.train_loss) },
  ].filter((c) => c.ys.length)), how);
  const points = run.curve();
  const known = points.filter((p) => p.accuracy != null);
  const at = known.at(-1), ninety = known.find((p) => p.accuracy >= 0.9);
  put(by("caption-accuracy"), at ? `${runs.length > 1 ? `${run.name}: ` : ""}${percent(at.accuracy)} after round ${at.round} and ${bytes(at.total)}; best ${percent(run.best?.accuracy)} after round ${run.best?.round}${ninety ? `; 90 % after round ${ninety.round} and ${bytes(ninety.total)}` : ""}.` : "");
  const last = points.at(-1);
  put(by("caption-loss"), last ? `${runs.length > 1 ? `${run.name}: training` : "Training"} loss from ${fixed(points[0].train_loss, 3)} in round ${points[0].round} to ${fixed(last.train_loss, 3)} in round ${last.round}${at ? `; loss of x ${fixed(at.loss, 3)}` : ""}.` : "");
}

function roll(run, rows) {
  const order = [...rows].sort((a, b) => Number(b.absent) - Number(a.absent)).slice(0, 60);
  fill(by("roll"), order, (row) => row.name, (row) => make("li", {}, make("strong", {}, row.name), badge(row.kind, "")), (item, row) => {
    item.lastChild.className = `badge ${row.kind}`;
    put(item.lastChild, row.state === "over" && row.standing ? `in ${count(row.standing.took_part)} of ${count(run.closed)} rounds` : row.state);
  });
  if (!rows.length) fill(by("roll"), [0], () => "none", () => make("li", { class: "muted" }, "Nobody has joined yet."));
}

// Who is not there now comes first; the server's log speaks of it only after a while.
function attention(run, rows) {
  const away = run.goesOn ? rows.filter((row) => row.absent).slice(0, 5) : [];
  const told = run.events.filter((event) => event.level === "warning").slice(-5).reverse();
  const found = [...away.map((row) => ({ key: `now ${row.name}`, time: row.seen == null ? "" : `${span(row.seen)} ago`, kind: "bad", level: "now", text: `${row.name}: ${row.state}${row.row?.reason ? `, ${row.row.reason}` : ""}` })), ...told.map(line)];
  if (found.length) lines(by("warnings"), found);
  else fill(by("warnings"), [0], () => "none", () => make("li", { class: "none" }, "Nothing so far."));
}

const marks = new WeakMap();
let last = 0;
const LEVELS = { warning: "warn", notice: "busy" };
export function line(event) {
  if (!marks.has(event)) marks.set(event, { key: last += 1, time: clock(event.time), kind: LEVELS[event.level] ?? "quiet", level: event.level, text: event.text });
  return marks.get(event);
}
export function lines(list, found) {
  fill(list, found, (each) => each.key, (each) => make("li", {}, make("time"), badge(each.kind, each.level), make("span")), (row, each) => {
    put(row.firstChild, each.time);
    put(row.lastChild, each.text);
  });
}
