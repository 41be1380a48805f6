// The table of clients.
import { DASH, badge, by, bytes, count, fill, fixed, make, percent, put, short, span } from "./format.js";
import { DOING, WORKING, clients } from "./state.js";

const MOST_ROWS = 300;
const FILTERS = { all: () => true, absent: (row) => row.absent, working: (row) => WORKING.has(row.state), missed: (row) => row.standing?.missed + row.standing?.uncounted > 0 };
const rounds = (n) => (n === 1 ? "1 round" : `${count(n)} rounds`);

export function clientTable(run) {
  const all = clients(run);
  const part = by("client-find").value.trim().toLowerCase();
  const chosen = all.filter((row) => FILTERS[by("client-filter").value](row) && row.name.toLowerCase().includes(part));
  const shown = chosen.slice(0, MOST_ROWS);
  put(by("clients-count"), all.length ? `${count(shown.length)} of ${count(all.length)} shown, ${count(all.filter((row) => row.absent).length)} not there` : "");
  fill(by("client-rows"), shown, (row) => row.name, create, (element, row) => update(element, row, run));
  const empty = by("clients-empty");
  empty.hidden = shown.length > 0;
  put(empty, all.length ? "No client is like that." : run.live?.phase === "waiting" ? "Nobody has joined yet." : "This run has no clients yet.");
}

function create(row) {
  const cell = (kind) => make("td", kind ? { class: kind } : {});
  const bar = make("div", { class: "upload" }, make("progress", { max: 1, value: 0, "aria-label": `Upload of ${row.name}` }), make("span"));
  const state = make("td", {}, badge("quiet", ""));
  const upload = make("td", {}, bar);
  return make("tr", {}, make("th", { scope: "row", title: row.name }, row.name), state, cell(), cell("number"), upload, cell("number"), cell("number"), cell("number"), cell("number"), cell("number"), cell("number"), cell("words"));
}

function update(element, row, run) {
  element.className = row.absent ? "absent" : "";
  const cells = [...element.children];
  const text = (k, value) => put(cells[k], value);
  cells[1].firstChild.className = `badge ${row.kind}`;
  put(cells[1].firstChild, DOING[row.state] ?? row.state);
  text(2, row.seen == null ? DASH : row.seen < 2 ? "now" : `${span(row.seen)} ago`);
  text(3, row.row?.counted_round ? String(row.row.counted_round) : DASH);
  const upload = row.row?.upload, bar = cells[4].firstChild;
  bar.hidden = !upload;
  if (upload) {
    bar.className = upload.received >= upload.total ? "upload done" : "upload";
    bar.firstChild.value = upload.total ? upload.received / upload.total : 0;
    put(bar.lastChild, percent(upload.total ? upload.received / upload.total : 0, 0));
  }
  text(5, upload?.speed ? `${bytes(upload.speed)}/s` : DASH);
  text(6, count(row.examples));
  const standing = row.standing;
  text(7, standing?.metric ? `${standing.metric} ${fixed(standing.value, 3)}` : row.row?.loss != null ? `loss ${fixed(row.row.loss, 3)}` : DASH);
  text(8, short(standing?.norm));
  text(9, standing?.bytes ? bytes(standing.bytes) : DASH);
  text(10, standing ? `${count(standing.took_part)} of ${count(run.closed)}` : DASH);
  const why = [row.row?.reason, row.row?.rule && `rule ${row.row.rule}`, standing?.missed ? `not in ${rounds(standing.missed)}, last: ${standing.reason}` : "", standing?.uncounted ? `did not count in ${rounds(standing.uncounted)}, last: ${standing.uncounted_reason}` : ""].filter(Boolean);
  text(11, why.join("; ") || DASH);
}
