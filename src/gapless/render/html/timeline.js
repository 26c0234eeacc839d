"use strict";
/* The timeline of a profile: lanes of boxes, from coarse windows to fine ones. Times are nanoseconds. */
for (const root of document.querySelectorAll(".timeline")) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const { names, kinds } = data.lanes;
  const whole = data.lanes.windows.length
    ? [data.lanes.windows[0].start, data.lanes.windows[0].end]
    : [0, Math.max(data.span[1], 1)];
  const stops = data.findings
    .filter((one) => one.end > 0)
    .map((one) => ({ ...one, label: findingName(one) }))
    .sort((a, b) => a.start - b.start);
  const { bytes } = window.gaplessStage;
  let rows = [];

  function findingName(one) {
    return one ? one.code + " " + one.name + ", " + one.where : "sync, no finding";
  }

  /* Data ------------------------------------------------------------------------------------------------- */

  function columns(boxes, start) {
    const count = boxes.start.length;
    const one = { start: new Float64Array(count), end: new Float64Array(count), reach: new Float64Array(count) };
    let at = start;
    let reach = -Infinity;
    for (let i = 0; i < count; i++) {
      at += boxes.start[i];
      one.start[i] = at;
      one.end[i] = at + boxes.length[i];
      reach = Math.max(reach, one.end[i]);
      one.reach[i] = reach;
    }
    one.what = boxes.what;
    one.count = boxes.count || new Array(count).fill(1);
    one.busy = new Float64Array(count);
    one.launch = new Float64Array(count);
    one.thread = new Int32Array(count).fill(-1);
    let several = 0;
    for (let i = 0; i < count; i++) {
      one.busy[i] = one.count[i] > 1 ? boxes.busy[several++] : boxes.length[i];
      if (!boxes.launch || one.count[i] > 1) continue;
      one.launch[i] = boxes.launch[i - several];
      one.thread[i] = boxes.thread[i - several];
    }
    return one;
  }

  const windows = data.lanes.windows.map((one) => ({
    start: one.start,
    end: one.end,
    finest: one.finest,
    rows: new Map(one.boxes.map((boxes) => [boxes.lane + ":" + boxes.row, columns(boxes, one.start)])),
  }));
  const brief = names.map(shorten);

  function shorten(name) {
    const text = name.replace(/^void /, "").replace(/\(anonymous namespace\)::/g, "");
    const file = /([^/\\]+)\((\d+)\): (.*)$/.exec(text);
    if (file) return file[3] + " · " + file[1] + ":" + file[2];
    return text.split(/[<(]/, 1)[0].replace(/^(?!aten::|autograd::)(?:\w+::)+/, "") || text;
  }

  /** The position of the first box that ends after `time`. */
  function first(boxes, time) {
    let low = 0;
    let high = boxes.reach.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (boxes.reach[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /* Places ----------------------------------------------------------------------------------------------- */

  /** Every box once, as the finest window has it: [lane:row, box, its columns]. */
  function* everything() {
    for (const [number, one] of windows.entries()) {
      const finer = windows.slice(number + 1).filter((other) => other.start >= one.start && other.end <= one.end);
      for (const [key, boxes] of one.rows) {
        for (let i = 0; i < boxes.start.length; i++) {
          if (!finer.some((other) => other.start <= boxes.start[i] && boxes.start[i] < other.end)) yield [key, i, boxes];
        }
      }
    }
  }

  const kindOf = (key) => data.lanes.lanes[Number(key.split(":")[0])].kind;
  const held = (key, i, boxes) => ({ key, start: boxes.start[i], end: boxes.end[i], what: boxes.what[i], count: boxes.count[i] });

  /** Each sync by itself, and what each launch began: from the call to the work, by the call's start. */
  const syncs = [];
  const launches = [];
  for (const [key, i, boxes] of everything()) {
    if (kindOf(key) === "waits") {
      const finding = data.findings[data.waits[boxes.what[i]]];
      const many = boxes.count[i] > 1 ? boxes.count[i].toLocaleString("en") + " syncs" : "sync";
      syncs.push({ id: finding && finding.id, start: boxes.start[i], end: boxes.end[i], finding, box: held(key, i, boxes), label: many + " of " + told(boxes.end[i] - boxes.start[i]) + ": " + findingName(finding) });
    } else if (boxes.thread[i] >= 0) {
      launches.push({ key, start: boxes.start[i], from: boxes.start[i] - boxes.launch[i], lane: boxes.thread[i] });
    }
  }
  syncs.sort((a, b) => a.start - b.start);
  launches.sort((a, b) => a.from - b.from);

  /* A finding is gone to where it costs most, and there to its sync: the last that began before that ends. */
  for (const one of stops) {
    const close = syncs.findLast((each) => each.finding && each.finding.id === one.id && each.start < one.end);
    if (close) Object.assign(one, { box: close.box, from: Math.min(close.start, one.start), to: Math.max(close.end, one.end) });
  }

  /** The deepest span of a thread around `time`, or the row of the lane where there is none. */
  function row(lane, time) {
    for (let deep = data.lanes.lanes[lane].rows - 1; deep >= 0; deep--) {
      for (let number = windows.length - 1; number >= 0; number--) {
        const found = windows[number].rows.get(lane + ":" + deep);
        if (!found || time < windows[number].start || time >= windows[number].end) continue;
        const i = first(found, time);
        if (i < found.start.length && found.start[i] <= time) return lane + ":" + deep;
      }
    }
    return lane + ":0";
  }

  let [arrows, arrowsOf] = [[], ""];
  const ARROWS = 60;

  /** What is pointed at, or else was picked, gets its arrows; whether they are others than before. */
  function pointed(one, picked) {
    const of = one && one.key ? one : picked;
    const now = of && of.key ? of.key + "@" + of.start : "";
    if (now === arrowsOf) return false;
    arrowsOf = now;
    arrows = now ? launched(of).slice(0, ARROWS).map((each) => ({ ...each, row: row(each.lane, each.from) })) : [];
    return true;
  }

  /** The launches of a span of a thread, or the one of a kernel. */
  function launched(one) {
    if (kindOf(one.key) === "stream") return launches.filter((each) => each.key === one.key && each.start === one.start);
    if (kindOf(one.key) !== "thread") return [];
    const lane = Number(one.key.split(":")[0]);
    return launches.filter((each) => each.lane === lane && each.from >= one.start && each.from < one.end);
  }

  /* Searching: the spans whose name has the text in it. */
  let wanted = null;
  const waitNames = Object.fromEntries(
    Object.entries(data.waits).map(([cost, number]) => [cost, findingName(data.findings[number])]),
  );

  function find(text) {
    wanted = null;
    if (!text) return [];
    const called = new Set(names.flatMap((name, i) => (name.toLowerCase().includes(text) ? [i] : [])));
    const waits = new Set(Object.keys(waitNames).filter((cost) => waitNames[cost].toLowerCase().includes(text)).map(Number));
    wanted = (kind, what) => (kind === "waits" ? waits : called).has(what);
    const found = [];
    for (const [key, i, boxes] of everything()) {
      const kind = kindOf(key);
      if (kind === "idle" || !wanted(kind, boxes.what[i])) continue;
      const box = held(key, i, boxes);
      found.push({ ...box, box, label: (kind === "waits" ? waitNames : names)[box.what] });
    }
    return found.sort((a, b) => a.start - b.start);
  }

  /* Layout ----------------------------------------------------------------------------------------------- */

  const HEIGHTS = { idle: 18, stream: 18, waits: 13, thread: 14 };

  function layout() {
    rows = [];
    let y = 28;
    if (data.steps.start.length > 1) {
      rows.push({ kind: "steps", y, height: 16, label: "steps" });
      y += 20;
    }
    data.lanes.lanes.forEach((lane, number) => {
      const before = data.lanes.lanes[number - 1];
      y += lane.kind === "thread" && before && before.kind === "waits" ? 1 : 7;
      for (let row = 0; row < lane.rows; row++) {
        const label = row ? "" : lane.kind === "waits" ? "syncs" : lane.name;
        rows.push({ kind: lane.kind, key: number + ":" + row, y, height: HEIGHTS[lane.kind], label, lane });
        y += HEIGHTS[lane.kind] + 1;
      }
    });
    if (data.memory.time.length > 1) {
      rows.push({ kind: "memory", y: y + 7, height: 46, label: "memory" });
      y += 54;
    }
    return y + 8;
  }

  const palette = {
    match: "match",
    "box:operator": "b-operator", "box:call": "b-call", "box:frame": "b-frame", "box:annotation": "b-annotation",
    "box:kernel": "busy", "box:communication": "c-communication", "box:copy": "b-copy", "box:waits": "c-wait",
  };
  for (const cause of Object.keys(data.causes)) palette["idle:" + cause] = "c-" + cause;

  function color({ colors }, row, what) {
    if (row.kind === "waits") return colors["box:waits"];
    if (row.kind === "idle") return colors["idle:" + kinds[what]] || colors.dim;
    return colors["box:" + kinds[what]] || colors.dim;
  }

  /* Drawing ---------------------------------------------------------------------------------------------- */

  function draw(pad) {
    const { view, x } = pad;
    const shown = windows.filter(
      (one, number) => one.end > view.from && one.start < view.to && (!number || x(one.end) - x(one.start) > 24),
    );
    for (const row of rows) {
      if (row.kind === "steps") steps(pad, row);
      else if (row.kind === "memory") memory(pad, row);
      else shown.forEach((one, number) => boxes(pad, row, one, shown.slice(number + 1)));
    }
    pad.pen.fillStyle = pad.colors.fine;
    for (const one of shown.slice(1)) pad.pen.fillRect(x(one.start), 23.5, Math.max(x(one.end) - x(one.start), 2), 2);
    for (const one of arrows) arrow(pad, one);
    if (pad.picked && pad.picked.key) outlined(pad, pad.picked);
  }

  function outlined({ pen, colors, x }, one) {
    const place = rows.find((row) => row.key === one.key);
    pen.strokeStyle = colors.ink;
    pen.lineWidth = 2;
    pen.strokeRect(x(one.start) - 1, place.y - 1, Math.max(x(one.end) - x(one.start), 2) + 2, place.height + 2);
    pen.lineWidth = 1;
  }

  /** From the call that launched it to the work. */
  function arrow({ pen, colors, view, x }, one) {
    const call = rows.find((place) => place.key === one.row);
    const work = rows.find((place) => place.key === one.key);
    if (!call || !work || one.start < view.from || one.from > view.to) return;
    const [left, top, right, bottom] = [x(one.from), call.y + 1, x(one.start), work.y + work.height];
    pen.strokeStyle = pen.fillStyle = colors.ink;
    pen.globalAlpha = 0.7;
    pen.beginPath();
    pen.moveTo(left, top);
    pen.bezierCurveTo(left, (top + bottom) / 2, right, (top + bottom) / 2, right, bottom + 5);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(right, bottom);
    pen.lineTo(right - 3, bottom + 6);
    pen.lineTo(right + 3, bottom + 6);
    pen.fill();
    pen.globalAlpha = 1;
  }

  function boxes(pad, row, from, finer) {
    const { pen, view, size, colors, x } = pad;
    const found = from.rows.get(row.key);
    const left = Math.max(x(from.start), size.gutter);
    const right = Math.min(x(from.end), size.width);
    if (from !== windows[0]) {
      pen.fillStyle = colors.raised;
      pen.fillRect(left, row.y, right - left, row.height);
    }
    if (!found) return;
    const low = Math.max(view.from, from.start);
    const high = Math.min(view.to, from.end);
    let last = -1;
    for (let i = first(found, low); i < found.start.length && found.start[i] < high; i++) {
      const begin = Math.max(x(found.start[i]), left);
      const end = Math.min(x(found.end[i]), right);
      const width = end - begin;
      if (width < 0.7) {
        const pixel = Math.floor(begin);
        if (pixel === last) continue;
        last = pixel;
      }
      const many = found.count[i] > 1;
      const length = found.end[i] - found.start[i];
      pen.globalAlpha = many ? 0.3 + 0.6 * Math.min(found.busy[i] / Math.max(length, 1), 1) : 1;
      const match = wanted && wanted(row.kind, found.what[i]);
      if (wanted && !match) pen.globalAlpha *= 0.22;
      pen.fillStyle = match ? colors.match : color(pad, row, found.what[i]);
      pen.fillRect(begin, row.y, Math.max(width - (width > 3 ? 0.6 : 0), match ? 1.6 : 0.8), row.height);
      if (width > 30) write(pad, row, found, i, ...clear(pad, begin, end, finer));
    }
    pen.globalAlpha = 1;
  }

  /** The first stretch of a box over which no finer window is drawn: where text stays whole. */
  function clear({ x }, begin, end, finer) {
    let left = begin;
    for (let round = 0; round < finer.length; round++) {
      for (const one of finer) if (x(one.start) <= left + 1 && x(one.end) > left) left = x(one.end);
    }
    return [left, Math.min(end, ...finer.map((one) => x(one.start)).filter((at) => at > left)) - left];
  }

  function write(pad, row, found, i, begin, width) {
    const { pen, colors } = pad;
    const text = found.count[i] > 1 ? found.count[i].toLocaleString("en") + " spans" : title(row, found.what[i], true);
    pen.globalAlpha = 1;
    const strong = row.kind === "waits" || row.kind === "idle" || kinds[found.what[i]] === "kernel";
    if (wanted && !wanted(row.kind, found.what[i])) pen.globalAlpha = 0.3;
    pen.fillStyle = strong && found.count[i] === 1 ? colors.paper : colors.ink;
    pad.write(text, begin + 3.5, row.y + row.height / 2 + 0.5, width - 7);
  }

  function title(row, what, short) {
    if (row.kind === "idle") return "idle: " + (data.causes[kinds[what]] || kinds[what]);
    if (row.kind !== "waits") return short ? brief[what] : names[what];
    const one = data.findings[data.waits[what]];
    return one ? one.code + " " + (short ? one.where.split("/").pop() : one.where) : "sync";
  }

  function steps(pad, row) {
    const { pen, view, size, colors, x } = pad;
    const { start, end, names: called } = data.steps;
    let last = -9;
    for (let i = 0; i < start.length; i++) {
      if (end[i] < view.from || start[i] > view.to) continue;
      const begin = x(start[i]);
      const width = x(end[i]) - begin;
      if (width < 1 && Math.floor(begin) === last) continue;
      last = Math.floor(begin);
      pen.fillStyle = i % 2 ? colors.sunk : colors.rule;
      pen.fillRect(begin, row.y, Math.max(width, 1), row.height);
      if (width > 44) {
        pen.fillStyle = colors.dim;
        const text = (called[i] || "step " + (i + 1)) + " · " + told(end[i] - start[i]);
        const left = Math.max(begin, size.gutter);
        pad.write(text, left + 4, row.y + row.height / 2 + 0.5, begin + width - left - 8);
      }
    }
  }

  function memory(pad, row) {
    const { pen, colors, x } = pad;
    const { time: when, allocated, reserved } = data.memory;
    const most = Math.max(...reserved, ...allocated, 1);
    for (const [curve, alpha] of [[reserved, 0.22], [allocated, 0.6]]) {
      pen.beginPath();
      pen.moveTo(x(when[0]), row.y + row.height);
      let level = 0;
      for (let i = 0; i < when.length; i++) {
        const at = x(when[i]);
        pen.lineTo(at, row.y + row.height - level);
        level = (curve[i] / most) * row.height;
        pen.lineTo(at, row.y + row.height - level);
      }
      pen.lineTo(x(whole[1]), row.y + row.height - level);
      pen.lineTo(x(whole[1]), row.y + row.height);
      pen.globalAlpha = alpha;
      pen.fillStyle = colors["idle:host"];
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  function labels(pad) {
    for (const row of rows) {
      const text = pad.size.gutter < 100 ? row.label.replace(/^thread /, "") : row.label;
      if (text) pad.label(text, row.y + Math.min(row.height, 16) / 2 + 0.5, row.kind === "waits" && pad.colors.accent);
    }
  }

  /** How busy the GPU is, over all of the profile. */
  function strip({ size, colors }, pen) {
    const { busy } = data.lanes;
    const room = size.width - size.gutter;
    pen.fillStyle = colors.fine;
    pen.globalAlpha = 0.75;
    busy.forEach((percent, i) => {
      const height = (percent / 100) * 30;
      pen.fillRect(size.gutter + (i / busy.length) * room, 36 - height, room / busy.length + 0.3, height);
    });
  }

  function told(ns, step) {
    const scale = step === undefined ? Math.abs(ns) : Math.max(Math.abs(ns), step);
    const [unit, length] = scale >= 1e9 ? ["s", 1e9] : scale >= 1e6 ? ["ms", 1e6] : ["µs", 1e3];
    const digits = step === undefined ? 3 - String(Math.floor(scale / length)).length : -Math.floor(Math.log10(step / length) + 1e-9);
    return (ns / length).toFixed(Math.min(Math.max(digits, 0), 6)) + " " + unit;
  }

  /* Pointing --------------------------------------------------------------------------------------------- */

  function at({ size, view, x, value }, px, py) {
    const row = rows.find((one) => py >= one.y && py < one.y + one.height);
    if (!row) return null;
    const when = value(px);
    if (row.kind === "steps") {
      const i = data.steps.start.findIndex((start, n) => start <= when && when < data.steps.end[n]);
      return i < 0 ? null : { row, fits: true, start: data.steps.start[i], end: data.steps.end[i], name: data.steps.names[i] || "step " + (i + 1) };
    }
    if (row.kind === "memory") return remembered(row, when);
    const slack = (1.5 / (size.width - size.gutter)) * (view.to - view.from);
    for (let number = windows.length - 1; number >= 0; number--) {
      const one = windows[number];
      if (when < one.start || when >= one.end || (number && x(one.end) - x(one.start) <= 24)) continue;
      const found = one.rows.get(row.key);
      if (!found) return null;
      for (let i = first(found, when - slack); i < found.start.length && found.start[i] <= when + slack; i++) {
        if (found.end[i] < when - slack) continue;
        const what = found.what[i];
        const finding = row.kind === "waits" ? data.findings[data.waits[what]] : null;
        return { row, ...held(row.key, i, found), name: title(row, what), busy: found.busy[i], finding };
      }
      return null;
    }
    return null;
  }

  function remembered(row, when) {
    const { time: times, allocated, reserved } = data.memory;
    let i = times.findIndex((one) => one > when) - 1;
    if (i < -1) i = times.length - 1;
    if (i < 0) return null;
    return { row, start: times[i], end: times[i], name: bytes(allocated[i]) + " allocated of " + bytes(reserved[i]) + " reserved" };
  }

  function described(one) {
    const parts = [one.name];
    if (one.end > one.start) parts.push(told(one.end - one.start) + " from " + told(one.start - whole[0]));
    else parts.push("at " + told(one.start - whole[0]));
    if (one.count > 1) parts.push(one.count.toLocaleString("en") + " spans in " + told(one.busy) + "; the longest is named");
    if (one.key && one.count === 1) {
      const begun = launched(one);
      if (kindOf(one.key) === "stream" && begun.length) parts.push("launched " + told(Math.abs(one.start - begun[0].from)) + (begun[0].from > one.start ? " later, by the clocks" : " before"));
      if (kindOf(one.key) === "thread" && begun.length) parts.push(begun.length.toLocaleString("en") + (begun.length > 1 ? " launches in it" : " launch in it") + (begun.length > ARROWS ? ", arrows from the first " + ARROWS : ""));
    }
    if (one.finding) parts.push(one.finding.name + ": click for the finding");
    return parts;
  }

  /* Beside it -------------------------------------------------------------------------------------------- */

  function legend() {
    const seen = new Set(kinds);
    const entries = [["c-wait", "sync: the CPU waits for the GPU"]];
    for (const [kind, name] of [["kernel", "kernel"], ["communication", "communication"], ["copy", "copy"], ["operator", "operator"], ["call", "driver call"], ["frame", "Python"], ["annotation", "annotation"]]) {
      if (seen.has(kind)) entries.push([palette["box:" + kind], name]);
    }
    for (const [cause, name] of Object.entries(data.causes)) {
      if (seen.has(cause)) entries.push(["c-" + cause, "idle: " + name]);
    }
    return entries;
  }

  function cells(kind, ...texts) {
    const line = document.createElement("tr");
    texts.forEach((text, i) => {
      const cell = document.createElement(kind);
      if (i) cell.className = "num";
      cell.append(text);
      line.append(cell);
    });
    return line;
  }

  function table() {
    const place = root.querySelector(".told");
    const lanes = document.createElement("table");
    lanes.createTHead().append(cells("th", "lane", "spans", "time covered", "share"));
    const body = lanes.createTBody();
    data.lanes.lanes.forEach((lane, number) => {
      const found = windows[0] && windows[0].rows.get(number + ":0");
      if (!found) return;
      const spans = found.count.reduce((a, b) => a + b, 0);
      const busy = found.busy.reduce((a, b) => a + b, 0);
      const name = lane.kind === "waits" ? "syncs of " + lane.name : lane.name;
      body.append(cells("td", name, spans.toLocaleString("en"), told(busy), ((100 * busy) / (whole[1] - whole[0])).toFixed(1) + " %"));
    });
    const list = document.createElement("table");
    list.createTHead().append(cells("th", "finding, where it costs most", "from", "length"));
    const rows = list.createTBody();
    for (const one of stops) {
      const link = document.createElement("a");
      link.href = "#" + one.id;
      link.textContent = one.code + " " + one.where;
      rows.append(cells("td", link, told(one.start - whole[0]), told(one.end - one.start)));
    }
    place.replaceChildren(lanes, list);
  }

  const api = window.gaplessStage(root, {
    whole, stops, palette, layout, draw, labels, strip, told, at, described, find, pointed,
    tours: [{ key: "n", back: "p", stops: syncs.length ? syncs : stops }, { key: "f", back: "F", stops }],
    held: (one) => one.box,
    closest: 500,
    margin: 20000,
    title: ["GPU busy", "GPU"],
    chosen: (one) => one.finding && one.finding.id,
  });
  api.legend(legend());
  table();
  for (const bar of document.querySelectorAll(`.steps[data-of="${CSS.escape(root.id)}"] > [data-from]`)) {
    bar.addEventListener("click", () => api.visit(Number(bar.dataset.from), Number(bar.dataset.to)));
  }
}
