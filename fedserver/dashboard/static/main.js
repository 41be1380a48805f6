// Listens to the stream, and draws what is visible.
import { clientTable } from "./clients.js";
import { data } from "./data.js";
import { drift, followPointer } from "./drift.js";
import { by, clock, fill, make, put } from "./format.js";
import { log } from "./log.js";
import { overview, sentence } from "./overview.js";
import { Run, clients } from "./state.js";
import { tabs } from "./tabs.js";
import { themeButton } from "./theme_button.js";
import { traffic } from "./traffic.js";

const VIEWS = { overview: (run) => overview(run, runs, axis()), clients: clientTable, traffic, drift, data, log };
const PAUSE_MS = 100;
let runs = [], focus = 0, view = "overview", due = 0, announced = "", heard = null;
const axis = () => document.querySelector("input[name=axis]:checked").value;

function draw() {
  due = 0;
  const run = runs[focus];
  if (!run || !run.name) return;
  VIEWS[view](run);
  header(run);
}
function soon() { if (!due) due = setTimeout(() => requestAnimationFrame(draw), PAUSE_MS); }

function header(run) {
  const head = run.head ?? run.live;
  put(by("title"), run.name);
  put(by("subtitle"), head ? [`${head.algorithm}${head.variates === "derived" ? " (derived)" : ""}`, head.model, head.dataset === "none" ? "data at the clients" : head.dataset].join(", ") : "no config.json yet");
  document.title = `${run.live ? `${run.closed}/${run.rounds} ` : ""}${run.name} - FedPVR`;
  const trouble = by("trouble");
  trouble.hidden = !run.trouble;
  if (run.trouble) put(trouble, run.trouble);
  announce(run);
}

// For those who listen: what changes slowly, not every round.
function announce(run) {
  const rows = clients(run), away = rows.filter((row) => row.absent).map((row) => `${row.name} ${row.state}`);
  const phase = run.live?.phase === "training" && run.goesOn ? "Training" : sentence(run, rows)[0];
  const text = [phase, away.length ? `Not there: ${away.slice(0, 10).join(", ")}` : ""].filter(Boolean).join(". ");
  if (text !== announced) { announced = text; put(by("announcer"), text); }
}

function picker() {
  const box = by("runs");
  box.hidden = runs.length < 2;
  fill(box, runs, (run) => run.number, (run) => {
    const input = make("input", { type: "radio", name: "run", value: run.number });
    input.checked = run.number === focus;
    input.addEventListener("change", () => { focus = run.number; soon(); });
    return make("label", { class: `c${run.number + 1}` }, input, make("i"), make("span"));
  }, (label, run) => put(label.lastChild, `${run.name || "..."}${run.title && run.title !== run.name ? `, ${run.title}` : ""}`));
}

function link(kind, text) {
  const now = by("link");
  now.className = `badge ${kind}`;
  put(now, text);
}

function listen() {
  const stream = new EventSource("/news");
  stream.addEventListener("runs", (event) => {
    runs = Array.from({ length: Number(event.data) }, (_, k) => runs[k] ?? new Run(k));
    focus = Math.min(focus, runs.length - 1);
  });
  stream.addEventListener("message", (event) => {
    const news = JSON.parse(event.data);
    runs[news.run]?.hear(news);
    heard = Date.now();
    picker();
    soon();
  });
  stream.addEventListener("open", () => link("ok", "live"));
  stream.addEventListener("error", () => {
    link("bad", heard ? `no connection since ${clock(heard)}` : "no connection");
    // A browser gives up by itself after some errors; this page does not.
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  });
}

themeButton(by("theme"), soon);
tabs(document.querySelector("[role=tablist]"), (name) => { view = name; soon(); });
for (const id of ["client-find", "client-filter", "log-level", "log-client", "log-find"]) by(id).addEventListener("input", soon);
for (const input of document.querySelectorAll("input[name=axis]")) input.addEventListener("change", soon);
addEventListener("resize", soon);
followPointer();
setInterval(() => { put(by("clock"), clock(Date.now())); soon(); }, 1000);
listen();
