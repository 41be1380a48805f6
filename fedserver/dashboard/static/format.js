// Numbers, times and elements as people read them. Text is always text: nothing here makes markup of it.
export const DASH = "\u2013";
const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(n) {
  if (n == null) return DASH;
  let k = 0;
  while (n >= 1000 && k < UNITS.length - 1) { n /= 1000; k += 1; }
  return `${k && n < 100 ? n.toFixed(n < 10 ? 2 : 1) : Math.round(n)} ${UNITS[k]}`;
}
export const percent = (x, digits = 1) => (x == null ? DASH : `${(100 * x).toFixed(digits)} %`);
export const fixed = (x, digits = 4) => (x == null ? DASH : x.toFixed(digits));
export const count = (n) => (n == null ? DASH : n.toLocaleString("en"));
// A number on an axis, where zeros at the end say nothing.
export const plain = (x) => (x == null ? DASH : String(Number(x.toPrecision(3))));
export const plainBytes = (n) => bytes(n).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
export function short(x) {
  if (x == null) return DASH;
  const size = Math.abs(x);
  return size && (size < 0.001 || size >= 100000) ? x.toExponential(2) : x.toPrecision(4);
}
export function span(seconds) {
  if (seconds == null) return DASH;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}
export const clock = (time) => {
  const moment = new Date(time);
  return Number.isNaN(moment.getTime()) ? "" : moment.toLocaleTimeString("en-GB");
};
export const by = (id) => document.getElementById(id);

export function put(element, text) {
  const wanted = text === "" ? "\u00a0" : text;
  if (element.textContent !== wanted) element.textContent = wanted;
}
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
export function badge(kind, text) { return make("span", { class: `badge ${kind}` }, text); }

// Rows of a table or list by key: those that stay are kept, so that focus and scrolling stay too.
export function fill(parent, items, key, create, update) {
  const there = new Map([...parent.children].map((row) => [row.dataset.key, row]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let row = there.get(name);
    there.delete(name);
    if (!row) { row = create(item); row.dataset.key = name; }
    if (row === next) next = next.nextElementSibling; else parent.insertBefore(row, next);
    if (update) update(row, item);
  }
  for (const row of there.values()) row.remove();
}
