// Curves, stacked bars and heat maps, from what Python has put into the page.

const place = (canvas, event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};

// Tells `find` where the pointer is, and `move` that an arrow key was pressed; both return [x, y, title, rows] or null.
const explore = (canvas, later, find, move, forget) => {
  const show = (found, aloud) => {
    if (!found) { hideTip(); return; }
    const box = canvas.getBoundingClientRect(), [x, y, title, rows] = found;
    showTip(box.left + x, box.top + y, title, rows);
    if (aloud) say(title, rows);
  };
  const pointed = (event) => { show(find(...place(canvas, event)), false); later(); };
  canvas.addEventListener("pointermove", pointed);
  canvas.addEventListener("pointerdown", pointed);
  const leave = () => { forget(); hideTip(); later(); };
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way) return;
    event.preventDefault();
    show(move(...way), true);
    later();
  });
};

// A list may be longer than what Math.min takes.
const least = (list, start) => list.reduce((a, b) => Math.min(a, b), start);
const most = (list, start) => list.reduce((a, b) => Math.max(a, b), start);

// Where a word has to be centred to end before a place.
const within = (pen, word, x, end) => Math.min(x, end - pen.measureText(word).width / 2);

const axes = (pen, frame, xs, ys, wordX, wordY, atX, atY) => {
  pen.strokeStyle = ink("grid");
  pen.fillStyle = ink("soft");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  for (const y of ys) {
    const at = Math.round(atY(y)) + 0.5;
    pen.beginPath(); pen.moveTo(frame.left, at); pen.lineTo(frame.right, at); pen.stroke();
    pen.fillText(wordY(y), frame.left - 7, at);
  }
  pen.textAlign = "center";
  for (const x of xs) pen.fillText(wordX(x), within(pen, wordX(x), atX(x), frame.right + 6), frame.bottom + 12);
};

const curves = (holder, chart) => {
  const names = chart.names;
  const hidden = new Set();
  let view = chart.views[0], at = null, frame = {}, toX = Number, toY = Number;
  const shown = () => names.filter((name) => view.series[name] && !hidden.has(name));
  const points = (name) => view.series[name][0].map((x, k) => [x, view.series[name][1][k]]).filter(([, y]) => y !== null);
  const edges = (name) => (view.bands && view.bands[name]) || [[], []]; // Lowest and highest, where a line stands for several.
  const wordY = (y) => (view.percent ? `${number(100 * y)} %` : number(y));
  const every = () => [...new Set(shown().flatMap((name) => points(name).map(([x]) => x)))].sort((a, b) => a - b);

  const draw = (pen, width, height) => {
    const all = shown().flatMap(points), xs = all.map(([x]) => x);
    const ys = [...all.map(([, y]) => y), ...shown().flatMap((name) => edges(name).flat())];
    let low = view.log ? least(ys.filter((y) => y > 0), Infinity) : least(ys, 0);
    let high = most(ys, -Infinity);
    if (!all.length || !Number.isFinite(low)) { low = 0; high = 1; }
    if (view.log) { low = Math.log10(low); high = Math.log10(Math.max(high, 10 ** low * 1.01)); }
    if (high <= low) high = low + 1;
    if (!view.log) high += 0.04 * (high - low);
    const [left, right] = [least(xs, Infinity), most(xs, -Infinity)];
    frame = { left: 56, right: width - 12, top: 10, bottom: height - 42 };
    toX = (x) => frame.left + (right > left ? (x - left) / (right - left) : 0.5) * (frame.right - frame.left);
    const height1 = (y) => (view.log ? Math.log10(Math.max(y, 1e-300)) : y);
    toY = (y) => frame.bottom - ((height1(y) - low) / (high - low)) * (frame.bottom - frame.top);
    const whole = xs.every(Number.isInteger);
    const [marksX] = all.length ? ticks(left, right, (frame.right - frame.left) / 70, whole) : [[]];
    const [marksY] = ticks(low, high, (frame.bottom - frame.top) / 34, view.log && high - low >= 1);
    axes(pen, frame, marksX, marksY.map((y) => (view.log ? 10 ** y : y)), number, wordY, toX, toY);
    pen.fillText(view.x, (frame.left + frame.right) / 2, height - 10);
    shown().forEach((name) => {
      const [under, over] = edges(name), at1 = view.series[name][0];
      pen.fillStyle = ink(`s${names.indexOf(name) % 8}`);
      pen.globalAlpha = 0.15;
      pen.beginPath();
      over.forEach((y, n) => pen[n ? "lineTo" : "moveTo"](toX(at1[n]), toY(y)));
      [...under.keys()].reverse().forEach((n) => pen.lineTo(toX(at1[n]), toY(under[n])));
      pen.fill();
      pen.globalAlpha = 1;
    });
    shown().forEach((name) => {
      const k = names.indexOf(name), line = points(name);
      pen.strokeStyle = pen.fillStyle = ink(`s${k % 8}`);
      pen.lineWidth = 2;
      pen.setLineDash(k % 2 ? [7, 4] : []); // So that one line under another is seen.
      pen.beginPath();
      if (!view.points) line.forEach(([x, y], n) => pen[n ? "lineTo" : "moveTo"](toX(x), toY(y)));
      pen.stroke();
      pen.setLineDash([]);
      if (line.length <= 40 || view.points) line.forEach(([x, y]) => { pen.beginPath(); pen.arc(toX(x), toY(y), 2.2, 0, 7); pen.fill(); });
    });
    if (at === null) return;
    pen.strokeStyle = ink("soft");
    pen.beginPath(); pen.moveTo(toX(at), frame.top); pen.lineTo(toX(at), frame.bottom); pen.stroke();
    for (const [name, x, y] of near(at)) {
      pen.fillStyle = ink(`s${names.indexOf(name) % 8}`);
      pen.beginPath(); pen.arc(toX(x), toY(y), 4, 0, 7); pen.fill();
    }
  };
  // The point of every line that is nearest.
  const near = (x) => shown().flatMap((name) => {
    const line = points(name);
    if (!line.length) return [];
    const best = line.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    const [under, over] = edges(name), k = view.series[name][0].indexOf(best[0]);
    const span = over.length ? ` (${wordY(under[k])} to ${wordY(over[k])})` : "";
    return Math.abs(toX(best[0]) - toX(x)) < 30 ? [[name, ...best, span]] : [];
  });
  const told = (y) => {
    if (at === null) return null;
    const rows = near(at).sort((a, b) => b[2] - a[2]);
    return [toX(at), y, `${view.x} ${number(at)}`, rows.map(([name, , v, span]) => [name, wordY(v) + span, `s${names.indexOf(name) % 8}`])];
  };
  const { canvas, later } = surface(holder, `${chart.title}; left and right give values`, (w) => (w < 480 ? 240 : 300), draw);
  explore(canvas, later, (x, y) => {
    const all = every();
    at = all.length ? all.reduce((a, b) => (Math.abs(toX(b) - x) < Math.abs(toX(a) - x) ? b : a)) : null;
    return told(y);
  }, (step) => {
    const all = every(), now = at === null ? (step > 0 ? -1 : all.length) : all.indexOf(at);
    at = all.length ? all[Math.max(0, Math.min(all.length - 1, now + step))] : null;
    return told(40);
  }, () => { at = null; });
  if (chart.views.length > 1) {
    const buttons = chart.views.map((each, k) => {
      const made = el("button", { type: "button", "aria-pressed": String(k === 0) }, each.name);
      made.addEventListener("click", () => {
        view = each;
        at = null;
        buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === made)));
        later();
      });
      return made;
    });
    canvas.before(el("div", { class: "tools", role: "group", "aria-label": "what is drawn" }, ...buttons));
  }
  canvas.after(el("div", { class: "keys" }, ...names.map((name, k) => {
    const made = el("button", { type: "button", "aria-pressed": "true" }, swatch(`s${k % 8}`), name);
    made.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      made.setAttribute("aria-pressed", String(!hidden.has(name)));
      later();
    });
    return made;
  })));
};

const bars = (holder, chart) => {
  const names = chart.names;
  const purposes = chart.purposes;
  const total = (name) => Object.values(chart.parts[name]).reduce((a, b) => a + b, 0);
  const top = most(names.map(total), 1);
  let at = -1, boxes = [];
  const segments = (name) => purposes.map((purpose) => [purpose, chart.parts[name][purpose] || 0]);
  const across = (pen, width) => {
    const left = Math.min(width * 0.4, 12 + Math.max(...names.map((name) => pen.measureText(name).width)));
    const room = width - left - 80;
    names.forEach((name, k) => {
      const y = 4 + k * 30;
      let x = left;
      pen.globalAlpha = chart.faint.includes(name) ? 0.5 : 1;
      for (const [purpose, value] of segments(name)) {
        pen.fillStyle = ink(purpose);
        pen.fillRect(x, y, (value / top) * room, 20);
        x += (value / top) * room;
      }
      pen.globalAlpha = 1;
      pen.fillStyle = ink(k === at ? "accent" : "ink");
      pen.textAlign = "right";
      pen.fillText(clipped(pen, name, left - 8), left - 8, y + 10);
      pen.textAlign = "left";
      pen.fillText(bytes(total(name)), x + 6, y + 10);
      boxes[k] = [0, y - 5, width, 30];
    });
  };
  const upright = (pen, width, height) => {
    const frame = { left: 68, right: width - 8, top: 8, bottom: height - 24 };
    const each = (frame.right - frame.left) / names.length, gap = Math.min(6, each * 0.25);
    const [marks] = ticks(0, top, 5);
    const toY = (y) => frame.bottom - (y / top) * (frame.bottom - frame.top);
    const toX = (k) => frame.left + (k + 0.5) * each;
    const widest = Math.max(...names.map((name) => pen.measureText(name).width)) + 12, skip = Math.ceil(widest / each);
    axes(pen, frame, names.map((_, k) => k).filter((k) => k % skip === 0), marks, (k) => names[k], bytes, toX, toY);
    names.forEach((name, k) => {
      let y = frame.bottom;
      for (const [purpose, value] of segments(name)) {
        const tall = (value / top) * (frame.bottom - frame.top);
        pen.fillStyle = ink(purpose);
        pen.fillRect(frame.left + k * each + gap / 2, y - tall, each - gap, tall);
        y -= tall;
      }
      boxes[k] = [frame.left + k * each, frame.top, each, frame.bottom - frame.top];
      if (k === at) { pen.fillStyle = ink("shade"); pen.fillRect(...boxes[k]); }
    });
  };
  const height = () => (chart.horizontal ? 4 + 30 * names.length : 220);
  const told = () => {
    if (at < 0) return null;
    const rows = segments(names[at]).filter(([, value]) => value).map(([purpose, value]) => [purpose, NUMBER.format(value), purpose]);
    const [x, y, w] = boxes[at];
    return [chart.horizontal ? w / 2 : x + w / 2, y, names[at], [...rows, ["total", NUMBER.format(total(names[at]))]]];
  };
  const { canvas, later } = surface(holder, `${chart.title}; arrow keys give values`, height, chart.horizontal ? across : upright);
  explore(canvas, later, (x, y) => {
    at = boxes.findIndex(([left, top, w, h]) => x >= left && x < left + w && y >= top && y < top + h);
    return told();
  }, (dx, dy) => {
    at = Math.max(0, Math.min(names.length - 1, at + dx + dy));
    return told();
  }, () => { at = -1; });
  canvas.after(el("div", { class: "keys" }, ...purposes.map((purpose) => el("span", {}, swatch(purpose), purpose))));
};

const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const colour = (share) => {
  const at = Math.max(0, Math.min(0.9999, share)) * (SCALE.length - 1), k = Math.floor(at), part = at - k;
  return `rgb(${SCALE[k].map((low, n) => Math.round(low + (SCALE[k + 1][n] - low) * part)).join(" ")})`;
};

const heat = (holder, chart) => {
  const known = chart.values.flat().filter((value) => value !== null);
  const low = least(known, chart.top === null ? Infinity : 0);
  const high = chart.top === null ? most(known, -Infinity) : chart.top;
  const columns = chart.columns.length, rows = chart.rows_named.length;
  let frame = {}, at = null, groups = 1;
  // Columns that would be less than three pixels wide are put together, and their mean is shown.
  const cell = (row, group) => {
    const part = chart.values[row].slice(group * groups, (group + 1) * groups).filter((value) => value !== null);
    return part.length ? part.reduce((a, b) => a + b, 0) / part.length : null;
  };
  const tall = () => (rows > 24 ? 14 : 20);
  const draw = (pen, width, height) => {
    const left = Math.min(width * 0.42, 26 + Math.max(...chart.rows_named.map((name) => pen.measureText(name).width)));
    frame = { left, right: width - 8, top: 4, bottom: 4 + rows * tall() };
    groups = Math.ceil(columns / Math.max(1, Math.floor((frame.right - frame.left) / 3)));
    const count = Math.ceil(columns / groups), each = (frame.right - frame.left) / count;
    chart.rows_named.forEach((name, row) => {
      const y = frame.top + row * tall(), marked = chart.marked.includes(row);
      pen.fillStyle = ink(marked ? "control" : "soft");
      pen.textAlign = "right";
      pen.fillText(clipped(pen, name, left - 24), left - 14, y + tall() / 2);
      if (marked) pen.fillRect(left - 9, y + 1, 5, tall() - 2);
      for (let group = 0; group < count; group += 1) {
        const value = cell(row, group);
        pen.fillStyle = value === null ? ink("grid") : colour(high > low ? (value - low) / (high - low) : 0.5);
        pen.fillRect(left + group * each, y, Math.max(1, each - (each > 6 ? 1 : 0)), tall() - 1);
      }
    });
    pen.fillStyle = ink("soft");
    pen.textAlign = "center";
    const widest = Math.max(...chart.columns.map((name) => pen.measureText(name).width)) + 10, skip = Math.ceil(widest / each);
    for (let group = 0; group < count; group += skip) {
      const word = chart.columns[group * groups];
      pen.fillText(word, within(pen, word, left + (group + 0.5) * each, frame.right + 6), frame.bottom + 10);
    }
    pen.fillText(chart.x, (frame.left + frame.right) / 2, frame.bottom + 26);
    const bar = { left: Math.round(frame.left), width: Math.min(160, frame.right - frame.left - 90), y: height - 16 };
    for (let k = 0; k < bar.width; k += 1) { pen.fillStyle = colour(k / bar.width); pen.fillRect(bar.left + k, bar.y, 1, 9); }
    pen.fillStyle = ink("soft");
    pen.textAlign = "right";
    pen.fillText(number(low), bar.left - 6, bar.y + 5);
    pen.textAlign = "left";
    pen.fillText(`${number(high)} ${chart.label}`, bar.left + bar.width + 6, bar.y + 5);
    if (!at) return;
    pen.strokeStyle = ink("ink");
    pen.lineWidth = 2;
    pen.strokeRect(left + at[1] * each, frame.top + at[0] * tall(), each, tall() - 1);
  };
  const told = () => {
    if (!at) return null;
    const each = (frame.right - frame.left) / Math.ceil(columns / groups);
    const from = chart.columns[at[1] * groups], to = chart.columns[Math.min(columns, (at[1] + 1) * groups) - 1];
    const value = cell(...at), where = from === to ? from : `${from} to ${to}, mean`;
    const rows = [[`${chart.x} ${where}`, value === null ? "no value" : `${number(value)} ${chart.label}`]];
    if (chart.marked.includes(at[0])) rows.push([chart.mark, ""]);
    return [frame.left + (at[1] + 1) * each, frame.top + at[0] * tall(), chart.rows_named[at[0]], rows];
  };
  const { canvas, later } = surface(holder, `${chart.title}; arrow keys give values`, () => rows * tall() + 66, draw);
  explore(canvas, later, (x, y) => {
    const row = Math.floor((y - frame.top) / tall()), count = Math.ceil(columns / groups);
    const group = Math.floor(((x - frame.left) / (frame.right - frame.left)) * count);
    at = row >= 0 && row < rows && group >= 0 && group < count ? [row, group] : null;
    return told();
  }, (dx, dy) => {
    const [row, group] = at || [0, -dx];
    at = [Math.max(0, Math.min(rows - 1, row + dy)), Math.max(0, Math.min(Math.ceil(columns / groups) - 1, group + dx))];
    return told();
  }, () => { at = null; });
  if (chart.marked.length) canvas.after(el("div", { class: "keys" }, el("span", {}, swatch("control"), chart.mark)));
};

const KINDS = { curves, bars, heat };
const charts = embedded("charts");
document.querySelectorAll("[data-chart]").forEach((holder) => {
  const chart = charts[Number(holder.dataset.chart)];
  KINDS[chart.kind](holder, chart);
});
