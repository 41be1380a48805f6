// Whose data are what, as far as that is known, and the settings of the run.
import { DASH, by, count, fill, make, put } from "./format.js";

const MOST_ROWS = 100, MOST_CLASSES = 30;
let shown = "";

export function data(run) {
  const head = run.head, key = `${run.number} ${head?.shards.length} ${head?.run_id} ${document.documentElement.dataset.theme}`;
  facts(run);
  if (!head) { put(by("data-note"), "Known once all seats are taken."); fill(by("class-rows"), [], String, make); fill(by("class-heads"), [], String, make); shown = ""; return; }
  if (key === shown) return;
  shown = key;
  const classes = head.class_names.slice(0, MOST_CLASSES), shards = head.shards.slice(0, MOST_ROWS);
  const known = shards.filter((each) => each.classes);
  const left = [head.shards.length + head.unlisted - shards.length ? `${count(head.shards.length + head.unlisted - shards.length)} clients` : "", head.class_names.length - classes.length ? `${count(head.class_names.length - classes.length)} classes` : ""].filter(Boolean);
  put(by("data-note"), `${known.length ? "Darker means more of a client's examples." : "All clients have data of their own, of which they tell how many they are and nothing else."}${left.length ? ` Not shown: ${left.join(" and ")}.` : ""}`);
  by("class-heads").replaceChildren(make("th", { scope: "col" }, "Client"), make("th", { scope: "col", class: "number" }, "Examples"), ...(known.length ? classes : []).map((name) => make("th", { scope: "col", class: "number" }, name)));
  by("class-rows").replaceChildren(...shards.map((each) => make("tr", {}, make("th", { scope: "row" }, each.name), make("td", {}, count(each.examples)), ...(known.length ? classes : []).map((_, k) => {
    const n = each.classes?.[k], cell = make("td", {}, n == null ? DASH : String(n));
    const share = n && each.examples ? n / each.examples : 0;
    // Never so strong that the number could not be read on it.
    cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(4 + 36 * Math.min(1, 1.6 * share))}%, var(--surface))`;
    if (!share) cell.style.background = "transparent";
    return cell;
  }))));
}

function facts(run) {
  const head = run.head, live = run.live;
  const known = [
    ["Run", head?.run_id ?? live?.run_id], ["Directory", run.name], ["Algorithm", run.title], ["Control variates", head?.variates],
    ["Model", head?.model ?? live?.model], ["Data", head?.dataset ?? live?.dataset], ["Rounds", count(run.rounds)],
    ["Clients", count(head?.num_clients ?? live?.num_clients)], ["Coding", head ? head.codec.join(", ") || "32-bit floats" : null],
    ["In S_svr", head ? head.svr_names.join(", ") || "nothing" : null], ["Server", live?.address],
    ["Process", live ? `${live.process.pid} on ${live.process.host}` : null], ["Started", live ? new Date(live.started * 1000).toLocaleString("en-GB") : null],
    ["Certificate", live?.certificate?.path],
  ].filter(([, value]) => value);
  fill(by("facts"), known.flatMap(([name, value]) => [["dt", name, name], ["dd", name, value]]), ([tag, name]) => tag + name, ([tag]) => make(tag), (element, [, , text]) => put(element, text));
}
