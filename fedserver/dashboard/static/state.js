// What the stream has told so far, run by run.
const MOST_POINTS = 1600;
const MOST_EVENTS = 1500;

export class Run {
  constructor(number) {
    this.number = number;
    this.forget();
  }
  forget() {
    Object.assign(this, { name: "", alive: null, finished: false, seconds_left: null, closed: 0, head: null,
      live: null, best: null, layers: [], points: new Map(), standings: new Map(), bytes: null, events: [],
      trouble: "", offset: 0, version: (this.version ?? 0) + 1 });
  }
  hear(news) {
    if (news.whole) this.forget();
    this.offset = news.now - Date.now() / 1000;
    Object.assign(this, { name: news.name, alive: news.alive ?? null, finished: news.finished, closed: news.closed, down: news.down, up: news.up,
      seconds_left: news.seconds_left ?? null, best: news.best ?? null, trouble: news.trouble });
    for (const key of ["head", "live", "layers", "bytes"]) if (news[key]) this[key] = news[key];
    for (const point of news.points) this.points.set(point.round, point);
    if (news.points.length) this.thin();
    if (news.standings) this.standings = new Map(news.standings.map((each) => [each.name, each]));
    this.events.push(...news.events);
    this.events.splice(0, Math.max(0, this.events.length - MOST_EVENTS));
    this.version += 1;
  }
  // A page that stays open for days must not grow for ever.
  thin() {
    if (this.points.size > MOST_POINTS) {
      const kept = this.curve().filter((_, k, all) => k % 2 === 1 || k > all.length - 200);
      this.points = new Map(kept.map((point) => [point.round, point]));
    }
  }
  curve() { return [...this.points.values()].sort((a, b) => a.round - b.round); }
  get last() { let last = null; for (const p of this.points.values()) if (!last || p.round > last.round) last = p; return last; }
  get rounds() { return this.live?.rounds ?? this.head?.rounds ?? 0; }
  get title() { return this.head?.algorithm ?? this.live?.algorithm ?? ""; }
  // On another machine a process cannot be seen; then the server's last word counts.
  get goesOn() { return this.alive !== false && this.live != null && this.live.ended == null; }
  now() { return Date.now() / 1000 + this.offset; }
}

export const ABSENT = new Set(["left", "stopped", "gone", "not heard of", "not connected"]);
export const WORKING = new Set(["preparing", "training", "uploading"]);
const KINDS = { training: "busy", uploading: "busy", preparing: "busy", answered: "ok", waiting: "ok", held: "warn",
  stopped: "warn", left: "bad", gone: "bad", "not heard of": "bad", "not connected": "bad" };

// A client as the page shows it: live.json where the server runs, else what the records say.
export function clients(run) {
  const shards = new Map((run.head?.shards ?? []).map((each) => [each.name, each]));
  const live = run.live?.clients ?? [];
  const names = live.length ? live.map((each) => each.name) : [...shards.keys()];
  const known = new Map(live.map((each) => [each.name, each]));
  return names.map((name) => {
    const row = known.get(name);
    const over = !run.goesOn || run.live?.phase === "finished";
    const state = over && !ABSENT.has(row?.state) ? "over" : row?.state ?? "over";
    return { name, row, state, kind: KINDS[state] ?? "quiet", absent: ABSENT.has(state),
      examples: row?.examples ?? shards.get(name)?.examples, standing: run.standings.get(name),
      seen: row ? (row.heard_at == null ? (over ? null : 0) : Math.max(0, run.now() - row.heard_at)) : null };
  });
}

export const DOING = {
  preparing: "preparing", waiting: "waiting", training: "training", uploading: "uploading", answered: "has answered",
  held: "its site has yet to decide", over: "run is over",
};
