// Lanes of clients over time. All bars are in memory; what is drawn is what is in view, a pixel column once.

const drawTimeline = (holder, doc) => {
  const LANE = doc.clients.length > 8 ? 30 : 42, BAR = doc.clients.length > 8 ? 20 : 28, TOP = 44, FOOT = 14, MOST = 24, IN_TABLE = 200;
  const COLOURS = ["down", "train", "up"], WORDS = ["download", "training and waiting", "upload"];
  const BAD = new Set(["cut", "rejected", "late", "declined"]);
  const lanes = doc.clients.map(() => []);
  for (const [client, round, up, attempt, start, end, answered, announced, skipped, outcome, apart, sizes, reason, stalls, progress] of doc.transfers) {
    lanes[client].push({
      client, round, kind: up ? 2 : 0, attempt, start, end: Math.max(end, start), answered, announced, skipped,
      outcome: doc.outcomes[outcome], apart, sizes, reason, stalls, progress, carried: progress.length ? progress[progress.length - 1][1] : 0,
    });
  }
  for (const [client, round, start, end] of doc.training) lanes[client].push({ client, round, kind: 1, start, end, stalls: [] });
  lanes.forEach((lane) => lane.sort((a, b) => a.start - b.start));
  const longest = lanes.map((lane) => lane.reduce((most, bar) => Math.max(most, bar.end - bar.start), 0));
  const whole = Math.max(doc.seconds, 0.001), shown = Math.min(MOST, doc.clients.length);
  let from = 0, until = whole, first = 0, picked = null, left = 100, right = 800;
  const toX = (time) => left + ((time - from) / (until - from)) * (right - left);
  const toTime = (x) => from + ((x - left) / (right - left)) * (until - from);

  // The first bar of a lane that may reach into the view.
  const begin = (lane, client) => {
    let low = 0, high = lane.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane[middle].start < from - longest[client]) low = middle + 1; else high = middle;
    }
    return low;
  };
  const inView = function* inView(client) {
    const lane = lanes[client];
    for (let k = begin(lane, client); k < lane.length && lane[k].start <= until; k += 1) if (lane[k].end >= from) yield lane[k];
  };

  const hatch = (pen, x, y, width, height, colour) => {
    pen.save();
    pen.beginPath(); pen.rect(x, y, width, height); pen.clip();
    pen.strokeStyle = colour;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (let at = x - height; at < x + width; at += 5) { pen.moveTo(at, y + height); pen.lineTo(at + height, y); }
    pen.stroke();
    pen.restore();
  };
  const bar = (pen, each, y, colours) => {
    const x = Math.max(left, toX(each.start)), end = Math.min(right, toX(each.end)), width = Math.max(1, end - x);
    pen.fillStyle = colours[COLOURS[each.kind]];
    if (each.kind === 1) { pen.globalAlpha = 0.38; pen.fillRect(x, y + BAR / 2 - 4, width, 8); pen.globalAlpha = 1; return; }
    const steps = width > 14 && each.progress.length > 2;
    pen.globalAlpha = steps ? 0.35 : each.apart ? 0.5 : 1;
    pen.fillRect(x, y, width, BAR);
    pen.globalAlpha = 1;
    if (steps) {
      const full = Math.max(1, each.announced), height = (count) => y + BAR * (1 - Math.min(1, (each.skipped + count) / full));
      pen.save();
      pen.beginPath(); pen.rect(x, y, width, BAR); pen.clip();
      pen.beginPath(); pen.moveTo(toX(each.start), y + BAR);
      for (const [time, count] of each.progress) pen.lineTo(toX(time), height(count));
      pen.lineTo(toX(each.end), y + BAR);
      pen.fill();
      pen.restore();
    }
    for (const [a, b] of each.stalls) hatch(pen, Math.max(x, toX(a)), y, Math.max(3, toX(b) - Math.max(x, toX(a))), BAR, colours.bad);
    if (each.skipped) { pen.fillStyle = colours.ink; pen.beginPath(); pen.moveTo(x, y); pen.lineTo(x + 7, y + BAR / 2); pen.lineTo(x, y + BAR); pen.fill(); }
    else if (each.attempt > 1) { pen.fillStyle = colours.ink; pen.fillRect(x, y - 3, 2.5, BAR + 6); }
    if (each.outcome === "duplicate") { pen.strokeStyle = colours.warn; pen.setLineDash([3, 3]); pen.lineWidth = 2; pen.strokeRect(x, y, width, BAR); pen.setLineDash([]); }
    if (BAD.has(each.outcome)) {
      pen.strokeStyle = colours.bad;
      pen.lineWidth = 2.5;
      pen.beginPath(); pen.moveTo(end - 4, y - 3); pen.lineTo(end + 4, y + 5); pen.moveTo(end + 4, y - 3); pen.lineTo(end - 4, y + 5); pen.stroke();
      pen.strokeRect(x, y, width, BAR);
    }
  };
  const marked = (each) => each.kind !== 1 && (each.stalls.length || each.skipped || each.attempt > 1 || BAD.has(each.outcome) || each.outcome === "duplicate");

  const lane = (pen, client, y, colours) => {
    let lastX = -1, lastKind = -1;
    for (const each of inView(client)) {
      const end = Math.floor(toX(each.end));
      if (end === lastX && each.kind === lastKind && !marked(each)) continue;
      bar(pen, each, y + (LANE - BAR) / 2, colours);
      [lastX, lastKind] = [end, each.kind];
    }
  };
  const scale = (pen, width, height, colours) => {
    doc.rounds.forEach(([round, start, end], k) => {
      const next = k + 1 < doc.rounds.length ? doc.rounds[k + 1][1] : end, x = Math.max(left, toX(start)), stop = Math.min(right, toX(next));
      if (stop < left || x > right) return;
      if (k % 2 === 0) { pen.fillStyle = colours.shade; pen.fillRect(x, 0, stop - x, height - FOOT); }
      const word = stop - x > 70 ? `round ${round}` : String(round);
      pen.fillStyle = colours.soft;
      pen.textAlign = "left";
      if (pen.measureText(word).width + 6 < stop - x) pen.fillText(word, x + 4, 11);
      if (stop - x > 3) { pen.strokeStyle = colours.line; pen.lineWidth = 1; pen.beginPath(); pen.moveTo(Math.round(toX(start)) + 0.5, 2); pen.lineTo(Math.round(toX(start)) + 0.5, height - FOOT); pen.stroke(); }
    });
    const [marks, step] = ticks(from, until, (right - left) / 95);
    pen.textAlign = "center";
    pen.fillStyle = colours.soft;
    for (const time of marks) {
      pen.fillText(seconds(time, step), Math.min(right - 16, toX(time)), 30);
      pen.fillRect(toX(time), 38, 1, 4);
    }
    pen.fillStyle = colours.grid;
    pen.fillRect(left, height - 8, right - left, 4);
    pen.fillStyle = colours.soft;
    pen.fillRect(left + (from / whole) * (right - left), height - 8, Math.max(4, ((until - from) / whole) * (right - left)), 4);
  };
  const events = (pen, height, colours) => {
    for (const [kind, client, , start, end] of doc.findings) {
      if (end < from || start > until || kind === "slow link") continue;
      const x = Math.max(left, toX(start)), stop = Math.min(right, Math.max(toX(end), x + 2));
      if (client === null) {
        pen.globalAlpha = 0.18; pen.fillStyle = colours.bad; pen.fillRect(x, TOP, stop - x, height - TOP - FOOT); pen.globalAlpha = 1;
        pen.fillStyle = colours.bad; pen.fillRect(x, TOP, 1.5, height - TOP - FOOT);
      } else if (/restarted|lost|back|gone/.test(kind) && client >= first && client < first + shown) {
        const y = TOP + (client - first) * LANE + LANE / 2;
        pen.strokeStyle = pen.fillStyle = colours.bad;
        pen.lineWidth = 2; pen.setLineDash([2, 3]);
        pen.beginPath(); pen.moveTo(x, y); pen.lineTo(stop, y); pen.stroke(); pen.setLineDash([]);
        if (kind !== "gone") { pen.beginPath(); pen.moveTo(stop - 5, y - 5); pen.lineTo(stop, y); pen.lineTo(stop - 5, y + 5); pen.fill(); }
      }
    }
  };
  const draw = (pen, width, height) => {
    const colours = Object.fromEntries(["down", "train", "up", "ink", "soft", "line", "grid", "shade", "bad", "warn", "accent"].map((name) => [name, ink(name)]));
    left = Math.min(width * 0.28, 22 + Math.max(40, ...doc.clients.slice(first, first + shown).map((name) => pen.measureText(name).width)));
    right = width - 6;
    scale(pen, width, height, colours);
    for (let k = 0; k < shown; k += 1) {
      const y = TOP + k * LANE;
      pen.fillStyle = picked && picked.client === first + k ? colours.accent : colours.ink;
      pen.textAlign = "right";
      pen.fillText(clipped(pen, doc.clients[first + k], left - 12), left - 8, y + LANE / 2);
      pen.fillStyle = colours.grid;
      pen.fillRect(0, y, width, 1);
      lane(pen, first + k, y, colours);
    }
    events(pen, height, colours);
    if (picked && picked.client >= first && picked.client < first + shown) {
      pen.strokeStyle = colours.ink; pen.lineWidth = 2;
      const x = Math.max(left, toX(picked.start));
      pen.strokeRect(x - 1.5, TOP + (picked.client - first) * LANE + 2.5, Math.max(4, Math.min(right, toX(picked.end)) - x + 3), LANE - 5);
    }
  };

  const facts = (each) => {
    const rows = [["from", `${each.start.toFixed(3)} s`], ["takes", seconds(each.end - each.start)]];
    if (each.kind === 1) return rows;
    const past = each.end - each.start;
    rows.push(["tensors", `${bytes(each.skipped + each.carried)} of ${bytes(each.announced)}`]);
    if (past > 0 && each.carried) rows.push(["speed", `${scaled((8 * each.carried) / past, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"], 1000)}`]);
    each.sizes.forEach((size, k) => { if (size) rows.push([doc.purposes[k], bytes(size), doc.purposes[k]]); });
    if (each.answered !== null && each.answered >= 0) rows.push(["answered after", seconds(each.answered - each.end)]);
    rows.push(["outcome", doc.explained[each.outcome] || each.outcome]);
    if (each.attempt > 1) rows.push(["attempt", each.skipped ? `${each.attempt}, goes on from ${bytes(each.skipped)}` : each.attempt]);
    for (const [a, b] of each.stalls) rows.push(["nothing moved for", seconds(b - a)]);
    if (each.reason) rows.push(["said", each.reason]);
    return rows;
  };
  const title = (each) => `${doc.clients[each.client]}, ${each.apart ? each.apart : `round ${each.round}`}: ${WORDS[each.kind]}`;

  const height = () => TOP + shown * LANE + FOOT;
  const label = `Transfers of ${doc.clients.length} clients over ${seconds(whole)}. Arrow keys choose a transfer, plus and minus zoom, shift with arrows pans, 0 shows all; a table is below.`;
  const tools = el("div", { class: "tools" }), box = el("div");
  holder.append(tools, box);
  const { canvas, later } = surface(box, label, height, draw);
  let timer = 0;
  const changed = () => { later(); clearTimeout(timer); timer = setTimeout(fill, 150); };
  const view = (a, b) => {
    const span = Math.min(whole, Math.max(b - a, 1e-5));
    from = Math.max(0, Math.min(whole - span, a));
    until = from + span;
    changed();
  };
  const zoom = (factor, time) => view(time - (time - from) * factor, time + (until - time) * factor);
  const pan = (share) => view(from + share * (until - from), until + share * (until - from));
  const rows = (step) => { first = Math.max(0, Math.min(doc.clients.length - shown, first + step)); changed(); };
  const reveal = (each) => {
    if (each.client < first) first = each.client;
    if (each.client >= first + shown) first = each.client - shown + 1;
    if (each.end < from || each.start > until) view(each.start - (until - from) / 2, each.start + (until - from) / 2);
  };
  const tell = (each, aloud) => {
    picked = each;
    later();
    if (!each) { hideTip(); return; }
    const at = canvas.getBoundingClientRect();
    if (aloud) {
      reveal(each);
      showTip(at.left + Math.max(left, Math.min(right, toX(each.start))), at.top + TOP + (each.client - first + 1) * LANE, title(each), facts(each));
      say(title(each), facts(each));
    }
  };
  const hit = (x, y) => {
    const client = first + Math.floor((y - TOP) / LANE);
    if (y < TOP || client >= first + shown || !lanes[client]) return null;
    let best = null;
    for (const each of inView(client)) {
      if (x < toX(each.start) - 3 || x > toX(each.end) + 3) continue;
      if (!best || (each.kind !== 1 && best.kind === 1) || (each.kind !== 1 && each.end - each.start < best.end - best.start)) best = each;
    }
    return best;
  };

  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, place(canvas, event)); canvas.setPointerCapture(event.pointerId); });
  const lift = (event) => pointers.delete(event.pointerId);
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointermove", (event) => {
    const now = place(canvas, event), before = pointers.get(event.pointerId);
    if (before && pointers.size === 1) {
      const shift = ((before[0] - now[0]) / (right - left)) * (until - from);
      if (shift) view(from + shift, until + shift);
      const lanesMoved = Math.trunc((before[1] - now[1]) / LANE);
      if (event.pointerType === "mouse" && lanesMoved && doc.clients.length > shown) rows(lanesMoved);
      pointers.set(event.pointerId, lanesMoved ? now : [now[0], before[1]]);
    } else if (before && pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const was = Math.abs(before[0] - other[0]), is = Math.abs(now[0] - other[0]);
      if (was > 5 && is > 5) zoom(was / is, toTime((now[0] + other[0]) / 2));
      pointers.set(event.pointerId, now);
    } else {
      const each = hit(...now);
      tell(each, false);
      if (each) showTip(event.clientX, event.clientY, title(each), facts(each));
    }
  });
  canvas.addEventListener("pointerleave", () => tell(null, false));
  canvas.addEventListener("blur", () => tell(null, false));
  canvas.addEventListener("dblclick", (event) => zoom(0.4, toTime(place(canvas, event)[0])));
  canvas.addEventListener("wheel", (event) => {
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); pan((event.deltaX || event.deltaY) / 1000); return; }
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 180), toTime(place(canvas, event)[0]));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const middle = picked ? (picked.start + picked.end) / 2 : (from + until) / 2;
    const step = (dx) => {
      const client = picked ? picked.client : first, all = lanes[client];
      const now = picked ? all.indexOf(picked) : all.findIndex((each) => each.end >= from) - dx;
      tell(all[Math.max(0, Math.min(all.length - 1, now + dx))] || null, true);
    };
    const climb = (dy) => {
      const client = Math.max(0, Math.min(lanes.length - 1, (picked ? picked.client : first - dy) + dy)), all = lanes[client];
      if (all.length) tell(all.reduce((a, b) => (Math.abs(b.start - middle) < Math.abs(a.start - middle) ? b : a)), true);
    };
    const keys = {
      ArrowLeft: () => (event.shiftKey ? pan(-0.2) : step(-1)), ArrowRight: () => (event.shiftKey ? pan(0.2) : step(1)),
      ArrowUp: () => climb(-1), ArrowDown: () => climb(1), "+": () => zoom(0.6, middle), "=": () => zoom(0.6, middle), "-": () => zoom(1 / 0.6, middle),
      0: () => view(0, whole), Home: () => view(0, whole), PageUp: () => rows(-shown), PageDown: () => rows(shown),
      Enter: () => picked && view(picked.start - (picked.end - picked.start), picked.end + (picked.end - picked.start)),
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); keys[event.key](); }
  });

  const button = (word, name, act) => {
    const made = el("button", { type: "button", "aria-label": name, title: name }, word);
    made.addEventListener("click", act);
    return made;
  };
  tools.append(
    button("+", "zoom in", () => zoom(0.5, (from + until) / 2)), button("\u2212", "zoom out", () => zoom(2, (from + until) / 2)),
    button("\u25c0", "earlier", () => pan(-0.4)), button("\u25b6", "later", () => pan(0.4)), button("all", "show all of it", () => view(0, whole)),
  );
  if (doc.rounds.length > 1) {
    const choice = el("select", { "aria-label": "go to a round" }, el("option", { value: "" }, "round\u2026"));
    doc.rounds.forEach(([round], k) => choice.append(el("option", { value: String(k) }, `round ${round}`)));
    choice.addEventListener("change", () => {
      if (choice.value === "") { view(0, whole); return; }
      const [, start, end] = doc.rounds[Number(choice.value)];
      view(start - 0.03 * (end - start), end + 0.03 * (end - start));
    });
    tools.append(choice);
  }
  if (doc.clients.length > shown) tools.append(button("\u25b2", "clients before", () => rows(-shown)), button("\u25bc", "clients after", () => rows(shown)));
  const status = el("span", { class: "soft" });
  tools.append(status);

  const table = el("table"), folded = el("details", {}, el("summary", {}, "transfers in view, as a table"), el("div", { class: "scroll" }, table));
  const legend = COLOURS.map((name, k) => el("span", {}, swatch(name), WORDS[k]));
  box.after(el("div", { class: "keys" }, ...legend), folded);
  folded.addEventListener("toggle", () => fill());
  const COLUMNS = ["client", "round", "what", "attempt", "from", "takes", "tensors", "of", ...doc.purposes, "outcome", "said"];
  function fill() {
    const found = [];
    for (let client = first; client < first + shown; client += 1) for (const each of inView(client)) if (each.kind !== 1) found.push(each);
    const who = doc.clients.length > shown ? `; clients ${first + 1} to ${first + shown} of ${doc.clients.length}` : "";
    status.textContent = `${seconds(from)} to ${seconds(until)} of ${seconds(whole)}: ${found.length} transfers${who}`;
    if (!folded.open) return;
    found.sort((a, b) => a.start - b.start);
    const word = (k) => (k === 0 || k === COLUMNS.length - 1 ? { class: "word" } : {});
    const head = el("tr", {}, ...COLUMNS.map((name, k) => el("th", { scope: "col", ...word(k) }, name)));
    const body = found.slice(0, IN_TABLE).map((each) => el("tr", {}, ...[
      doc.clients[each.client], each.round, WORDS[each.kind], each.attempt, `${each.start.toFixed(3)} s`, seconds(each.end - each.start),
      NUMBER.format(each.skipped + each.carried), NUMBER.format(each.announced), ...each.sizes.map((size) => NUMBER.format(size)), each.outcome, each.reason,
    ].map((cell, k) => el("td", word(k), String(cell)))));
    const rest = found.length > IN_TABLE ? `The first ${IN_TABLE} of ${found.length} transfers in view; zoom in for the others.` : `${found.length} transfers.`;
    table.replaceChildren(el("caption", {}, rest), el("thead", {}, head), el("tbody", {}, ...body));
  }
  fill();

  document.querySelectorAll("[data-notice]").forEach((item) => {
    const found = doc.findings[Number(item.dataset.notice)];
    if (!found) return;
    const [kind, client, , start, end] = found;
    item.append(button("show", `show in the timeline: ${kind}`, () => {
      const room = Math.max((end - start) * 1.5, whole / 60);
      if (client !== null) { first = Math.max(0, Math.min(doc.clients.length - shown, client - Math.floor(shown / 2))); }
      view(start - room, end + room);
      holder.scrollIntoView({ block: "center" });
    }));
  });
};
drawTimeline(document.getElementById("place-timeline"), embedded("timeline"));
