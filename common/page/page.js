// What all pictures share. Words from a run become text nodes, never markup.

const el = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const swatch = (name) => {
  const made = el("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = `var(--${name})`;
  return made;
};

const embedded = (id) => JSON.parse(document.getElementById(id).textContent);

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const number = (value) => {
  if (value === null || value === undefined) return "-";
  if (Math.abs(value) < 1e-12) return "0";
  if (Math.abs(value) < 0.01) return Math.abs(value) < 0.0001 ? value.toExponential(1) : value.toPrecision(2);
  return NUMBER.format(value);
};
const scaled = (value, units, step) => {
  let k = 0;
  while (Math.abs(value) >= step && k < units.length - 1) { value /= step; k += 1; }
  return `${value >= 100 || k === 0 ? Math.round(value) : value.toFixed(1)} ${units[k]}`;
};
const bytes = (value) => scaled(value, ["bytes", "kB", "MB", "GB", "TB"], 1000);
const seconds = (value, step = 0) => {
  if (step && step < 1) return `${value.toFixed(Math.min(6, Math.ceil(-Math.log10(step))))} s`;
  if (!step && value === 0) return "0 s";
  if (!step && Math.abs(value) < 1) return `${(value * 1000).toFixed(value < 0.01 ? 2 : 0)} ms`;
  if (Math.abs(value) < 120) return `${step >= 1 ? Math.round(value) : value.toFixed(2)} s`;
  const whole = Math.round(value), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  return `${hours ? `${hours}:${two(Math.floor(whole / 60) % 60)}` : Math.floor(whole / 60)}:${two(whole % 60)}`;
};

// Round numbers that divide a range into about so many parts.
const stepFor = (span, parts) => {
  const rough = span / Math.max(1, parts) || 1, power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) || 10);
};
const ticks = (low, high, parts, whole = false) => {
  const step = whole ? Math.max(1, stepFor(high - low, parts)) : stepFor(high - low, parts), found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return [found, step];
};

const clipped = (pen, text, room) => {
  if (pen.measureText(text).width <= room) return text;
  let most = text.length;
  while (most > 1 && pen.measureText(`${text.slice(0, most)}\u2026`).width > room) most -= 1;
  return `${text.slice(0, most)}\u2026`;
};

// A canvas that follows its holder's width and the reader's colours; `draw` is called once a frame at most.
const surface = (holder, label, height, draw) => {
  const canvas = el("canvas", { role: "application", tabindex: "0", "aria-label": label });
  holder.append(canvas);
  let due = false;
  const paint = () => {
    due = false;
    const width = holder.clientWidth, tall = height(width), ratio = window.devicePixelRatio || 1;
    if (!width) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(tall * ratio);
    canvas.style.height = `${tall}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    draw(pen, width, tall);
  };
  const later = () => { if (!due) { due = true; requestAnimationFrame(paint); } };
  new ResizeObserver(later).observe(holder);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  return { canvas, later };
};

const tip = el("div", { class: "tip", hidden: "" });
const spoken = el("div", { class: "hush", "aria-live": "polite" });
document.body.append(tip, spoken);

// Rows are [name, value] or [name, value, colour].
const showTip = (x, y, title, rows) => {
  tip.replaceChildren(el("b", {}, title));
  for (const [name, value, colour] of rows) {
    tip.append(el("div", {}, el("span", {}, ...(colour ? [swatch(colour)] : []), name), el("span", {}, String(value))));
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = x + 16 + box.width < innerWidth ? x + 16 : Math.max(4, x - 16 - box.width);
  tip.style.left = `${right}px`;
  tip.style.top = `${Math.max(4, Math.min(innerHeight - box.height - 4, y + 12))}px`;
};
const hideTip = () => { tip.hidden = true; };
const say = (title, rows) => { spoken.textContent = `${title}. ${rows.map(([name, value]) => `${name}: ${value}`).join("; ")}`; };
addEventListener("scroll", hideTip, { passive: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
