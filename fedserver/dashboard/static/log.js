// The events, with filters.
import { by, count, fill, make, put } from "./format.js";
import { line, lines } from "./overview.js";

const MOST_LINES = 300;
const LEVELS = { detail: ["detail", "notice", "warning"], notice: ["notice", "warning"], warning: ["warning"] };

export function log(run) {
  const select = by("log-client"), names = [...new Set(run.events.map((event) => event.client).filter(Boolean))].sort();
  fill(select, ["", ...names], (name) => name, (name) => make("option", { value: name }, name || "any"));
  if (!names.includes(select.value)) select.value = "";
  const levels = LEVELS[by("log-level").value], word = by("log-find").value.trim().toLowerCase();
  const found = run.events.filter((event) => levels.includes(event.level) && (!select.value || event.client === select.value) && event.text.toLowerCase().includes(word));
  const shown = found.slice(-MOST_LINES).reverse();
  put(by("log-count"), run.events.length ? `${count(shown.length)} of ${count(run.events.length)} events` : "");
  lines(by("log-lines"), shown.map(line));
  const empty = by("log-empty");
  empty.hidden = shown.length > 0;
  put(empty, run.events.length ? "No event is like that." : run.live ? "Nothing has happened yet." : "This run wrote no events.jsonl.");
}
