"use strict";
/* The timeline: lanes of boxes on a canvas, from coarse windows to fine ones. Times are nanoseconds. */
(function () {
  const store = document.getElementById("data");
  if (!store) return;
  const data = JSON.parse(store.textContent);
  const stage = document.getElementById("stage");
  const canvas = document.getElementById("lanes");
  const strip = document.getElementById("overview");
  const tip = document.getElementById("tip");
  const pen = canvas.getContext("2d");
  const stripPen = strip.getContext("2d");
  const { names, kinds } = data.lanes;
  const whole = data.lanes.windows.length
    ? [data.lanes.windows[0].start, data.lanes.windows[0].end]
    : [0, Math.max(data.span[1], 1)];
  const CLOSEST = 500;
  const view = { from: whole[0], to: whole[1] };
  const findings = data.findings.filter((one) => one.end > 0).sort((a, b) => a.start - b.start);
  const colors = {};
  let size = { width: 0, height: 0, gutter: 0 };
  let rows = [];
  let hovered = null;
  let pending = false;
  let listener = () => {};

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
    one.count = boxes.count;
    one.busy = boxes.busy;
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

  /* Layout ----------------------------------------------------------------------------------------------- */

  const HEIGHTS = { idle: 18, stream: 18, waits: 13, thread: 14 };

  function layout() {
    const width = stage.clientWidth;
    const gutter = width < 640 ? 64 : 148;
    rows = [];
    let y = 26;
    if (data.steps.start.length > 1) {
      rows.push({ kind: "steps", y, height: 16, label: "steps" });
      y += 20;
    }
    data.lanes.lanes.forEach((lane, number) => {
      const before = data.lanes.lanes[number - 1];
      y += lane.kind === "thread" && before && before.kind === "waits" ? 1 : 7;
      for (let row = 0; row < lane.rows; row++) {
        const label = row ? "" : lane.kind === "waits" ? "waits" : lane.name;
        rows.push({ kind: lane.kind, key: number + ":" + row, y, height: HEIGHTS[lane.kind], label, lane });
        y += HEIGHTS[lane.kind] + 1;
      }
    });
    if (data.memory.time.length > 1) {
      rows.push({ kind: "memory", y: y + 7, height: 46, label: "memory" });
      y += 54;
    }
    size = { width, height: y + 8, gutter };
    fit(canvas, pen, width, size.height);
    fit(strip, stripPen, width, 40);
  }

  function fit(element, context, width, height) {
    const ratio = window.devicePixelRatio || 1;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    element.style.height = height + "px";
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  const PALETTE = {
    paper: "paper", raised: "raised", sunk: "sunk", ink: "ink", dim: "dim", rule: "rule", accent: "accent", fine: "busy",
    "box:operator": "b-operator", "box:call": "b-call", "box:frame": "b-frame", "box:annotation": "b-annotation",
    "box:kernel": "busy", "box:communication": "c-communication", "box:copy": "b-copy", "box:waits": "c-wait",
  };

  function paint() {
    const probe = document.createElement("i");
    stage.append(probe);
    const wanted = { ...PALETTE };
    for (const cause of Object.keys(data.causes)) wanted["idle:" + cause] = "c-" + cause;
    for (const [name, variable] of Object.entries(wanted)) {
      probe.style.color = "var(--" + variable + ")";
      colors[name] = getComputedStyle(probe).color;
    }
    probe.remove();
  }

  function color(row, what) {
    if (row.kind === "waits") return colors["box:waits"];
    if (row.kind === "idle") return colors["idle:" + kinds[what]] || colors.dim;
    return colors["box:" + kinds[what]] || colors.dim;
  }

  const x = (time) => size.gutter + ((time - view.from) / (view.to - view.from)) * (size.width - size.gutter);
  const time = (px) => view.from + ((px - size.gutter) / (size.width - size.gutter)) * (view.to - view.from);

  /* Drawing ---------------------------------------------------------------------------------------------- */

  function schedule() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      draw();
    });
  }

  function draw() {
    pen.fillStyle = colors.raised;
    pen.fillRect(0, 0, size.width, size.height);
    pen.save();
    pen.beginPath();
    pen.rect(size.gutter, 0, size.width - size.gutter, size.height);
    pen.clip();
    ruler();
    const shown = windows.filter(
      (one, number) => one.end > view.from && one.start < view.to && (!number || x(one.end) - x(one.start) > 24),
    );
    for (const row of rows) {
      if (row.kind === "steps") steps(row);
      else if (row.kind === "memory") memory(row);
      else for (const one of shown) boxes(row, one);
    }
    marks(shown);
    pen.restore();
    labels();
    brush();
  }

  function boxes(row, from) {
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
      pen.fillStyle = color(row, found.what[i]);
      pen.fillRect(begin, row.y, Math.max(width - (width > 3 ? 0.6 : 0), 0.8), row.height);
      if (width > 30) write(row, found, i, begin, width);
    }
    pen.globalAlpha = 1;
  }

  function write(row, found, i, begin, width) {
    const room = Math.floor((width - 7) / 5.7);
    const text = found.count[i] > 1 ? found.count[i].toLocaleString("en") + " spans" : title(row, found.what[i], true);
    pen.globalAlpha = 1;
    const strong = row.kind === "waits" || row.kind === "idle" || kinds[found.what[i]] === "kernel";
    pen.fillStyle = strong && found.count[i] === 1 ? colors.paper : colors.ink;
    if (room > 2) pen.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, begin + 3.5, row.y + row.height / 2 + 0.5);
  }

  function title(row, what, short) {
    if (row.kind === "idle") return "idle: " + (data.causes[kinds[what]] || kinds[what]);
    if (row.kind !== "waits") return short ? brief[what] : names[what];
    const one = data.findings[data.waits[what]];
    return one ? one.code + " " + (short ? one.where.split("/").pop() : one.where) : "wait";
  }

  function ruler() {
    const unit = (view.to - view.from) / Math.max((size.width - size.gutter) / 110, 1);
    const power = 10 ** Math.floor(Math.log10(unit));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= unit);
    pen.font = "11px " + getComputedStyle(document.body).fontFamily;
    pen.textBaseline = "middle";
    for (let at = Math.ceil((view.from - whole[0]) / step) * step + whole[0]; at < view.to; at += step) {
      pen.fillStyle = colors.rule;
      pen.fillRect(x(at), 0, 1, size.height);
      pen.fillStyle = colors.dim;
      pen.fillText(told(at - whole[0], step), x(at) + 4, 9);
    }
    pen.font = "10.5px " + getComputedStyle(document.body).fontFamily;
  }

  function marks(shown) {
    for (const one of shown.slice(1)) {
      pen.fillStyle = colors.fine;
      pen.fillRect(x(one.start), 18, Math.max(x(one.end) - x(one.start), 2), 2.5);
    }
    pen.fillStyle = colors.accent;
    for (const one of findings) {
      const at = x(one.start);
      if (one.start < view.from || one.start > view.to) continue;
      pen.beginPath();
      pen.moveTo(at - 3.5, 13);
      pen.lineTo(at + 3.5, 13);
      pen.lineTo(at, 21);
      pen.fill();
    }
  }

  function steps(row) {
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
        pen.fillText(text.slice(0, Math.floor((width - 8) / 5.6)), Math.max(begin, size.gutter) + 4, row.y + row.height / 2 + 0.5);
      }
    }
  }

  function memory(row) {
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

  function labels() {
    pen.fillStyle = colors.raised;
    pen.fillRect(0, 0, size.gutter - 1, size.height);
    pen.fillStyle = colors.rule;
    pen.fillRect(size.gutter - 1, 0, 1, size.height);
    pen.font = "11px " + getComputedStyle(document.body).fontFamily;
    const room = Math.floor((size.gutter - 14) / 5.6);
    for (const row of rows) {
      if (!row.label) continue;
      pen.fillStyle = row.kind === "waits" ? colors.accent : colors.dim;
      const text = row.label.length > room ? row.label.slice(0, room - 1) + "…" : row.label;
      pen.fillText(text, 9, row.y + Math.min(row.height, 16) / 2 + 0.5);
    }
  }

  /** The whole profile above: how busy the GPU is, and which part is shown. */
  function brush() {
    const { busy } = data.lanes;
    const room = size.width - size.gutter;
    const scale = (at) => size.gutter + ((at - whole[0]) / (whole[1] - whole[0])) * room;
    stripPen.fillStyle = colors.raised;
    stripPen.fillRect(0, 0, size.width, 40);
    stripPen.fillStyle = colors.fine;
    stripPen.globalAlpha = 0.75;
    busy.forEach((percent, i) => {
      const height = (percent / 100) * 30;
      stripPen.fillRect(size.gutter + (i / busy.length) * room, 36 - height, room / busy.length + 0.3, height);
    });
    stripPen.globalAlpha = 1;
    stripPen.fillStyle = colors.accent;
    for (const one of findings) stripPen.fillRect(scale(one.start), 2, 2, 4);
    stripPen.font = "11px " + getComputedStyle(document.body).fontFamily;
    stripPen.textBaseline = "middle";
    stripPen.fillStyle = colors.dim;
    stripPen.fillText(size.gutter < 100 ? "GPU" : "GPU utilization", 9, 21);
    if (view.from > whole[0] || view.to < whole[1]) {
      const left = scale(view.from);
      const width = Math.max(scale(view.to) - left, 2);
      stripPen.fillStyle = colors.raised;
      stripPen.globalAlpha = 0.65;
      stripPen.fillRect(size.gutter, 0, left - size.gutter, 40);
      stripPen.fillRect(left + width, 0, size.width, 40);
      stripPen.globalAlpha = 1;
      stripPen.strokeStyle = colors.ink;
      stripPen.strokeRect(left + 0.5, 0.5, width, 39);
    }
  }

  function told(ns, step) {
    const scale = step === undefined ? Math.abs(ns) : Math.max(Math.abs(ns), step);
    const [unit, length] = scale >= 1e9 ? ["s", 1e9] : scale >= 1e6 ? ["ms", 1e6] : ["µs", 1e3];
    const digits = step === undefined ? 3 - String(Math.floor(scale / length)).length : -Math.floor(Math.log10(step / length) + 1e-9);
    return (ns / length).toFixed(Math.min(Math.max(digits, 0), 6)) + " " + unit;
  }

  /* Moving ----------------------------------------------------------------------------------------------- */

  function show(from, to, quiet) {
    const length = Math.min(Math.max(to - from, CLOSEST), whole[1] - whole[0]);
    const middle = (from + to) / 2;
    const start = Math.min(Math.max(middle - length / 2, whole[0]), whole[1] - length);
    view.from = start;
    view.to = start + length;
    schedule();
    if (!quiet) listener(view.from, view.to, view.from <= whole[0] && view.to >= whole[1]);
  }

  const pan = (share) => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));

  function zoom(factor, around) {
    const at = around === undefined ? (view.from + view.to) / 2 : around;
    const length = (view.to - view.from) * factor;
    if (length < CLOSEST && factor < 1) return;
    const from = at - (at - view.from) * factor;
    show(from, from + length);
  }

  /** To the next finding to the right (or left) of what was shown last. */
  function next(direction) {
    if (!findings.length) return null;
    const here = findings.findIndex((one) => one.id === next.last);
    const to = here < 0 ? (direction > 0 ? 0 : findings.length - 1) : (here + direction + findings.length) % findings.length;
    next.last = findings[to].id;
    look(findings[to]);
    say(findings[to].code + " " + findings[to].name + ", " + findings[to].where);
    return findings[to];
  }

  function look(one) {
    next.last = one.id;
    const around = Math.max(0.6 * (one.end - one.start), 20000);
    show(one.start - around, one.end + around);
  }

  /* Pointing --------------------------------------------------------------------------------------------- */

  function at(px, py) {
    const row = rows.find((one) => py >= one.y && py < one.y + one.height);
    if (!row || px < size.gutter) return null;
    const when = time(px);
    if (row.kind === "steps") {
      const i = data.steps.start.findIndex((start, n) => start <= when && when < data.steps.end[n]);
      return i < 0 ? null : { row, start: data.steps.start[i], end: data.steps.end[i], name: data.steps.names[i] || "step " + (i + 1) };
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
        return { row, start: found.start[i], end: found.end[i], name: title(row, what), count: found.count[i], busy: found.busy[i], finding };
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
    const bytes = (one) => (one >= 1e9 ? (one / 1e9).toFixed(2) + " GB" : one >= 1e6 ? (one / 1e6).toFixed(1) + " MB" : (one / 1e3).toFixed(1) + " kB");
    return { row, start: times[i], end: times[i], name: bytes(allocated[i]) + " allocated of " + bytes(reserved[i]) + " reserved" };
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    hovered = at(event.clientX - box.left, event.clientY - box.top);
    canvas.style.cursor = hovered && hovered.finding ? "pointer" : "";
    if (!hovered) {
      tip.hidden = true;
      return;
    }
    tip.replaceChildren(...described(hovered));
    tip.hidden = false;
    const outer = stage.getBoundingClientRect();
    const left = Math.min(event.clientX - outer.left + 14, size.width - tip.offsetWidth - 8);
    const below = event.clientY - outer.top + 18;
    const top = below + tip.offsetHeight > outer.height ? event.clientY - outer.top - tip.offsetHeight - 12 : below;
    tip.style.left = Math.max(left, 4) + "px";
    tip.style.top = Math.max(top, 4) + "px";
  }

  function described(one) {
    const name = document.createElement("b");
    name.textContent = one.name;
    const parts = [name];
    const say = (text) => parts.push(document.createElement("br"), text);
    if (one.end > one.start) say(told(one.end - one.start) + " from " + told(one.start - whole[0]));
    else say("at " + told(one.start - whole[0]));
    if (one.count > 1) say(one.count.toLocaleString("en") + " spans in " + told(one.busy) + "; the longest is named");
    if (one.finding) say(one.finding.name + ": click for the finding");
    return parts;
  }

  function say(text) {
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = size.gutter + 8 + "px";
    tip.style.top = "4px";
  }

  const pointers = new Map();
  let moved = 0;
  let pinch = 0;

  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.clientX);
    canvas.setPointerCapture(event.pointerId);
    moved = 0;
    pinch = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) {
      point(event);
      return;
    }
    const before = pointers.get(event.pointerId);
    pointers.set(event.pointerId, event.clientX);
    tip.hidden = true;
    if (pointers.size === 2) {
      const [a, b] = [...pointers.values()];
      const apart = Math.max(Math.abs(a - b), 1);
      if (pinch) zoom(pinch / apart, time((a + b) / 2 - canvas.getBoundingClientRect().left));
      pinch = apart;
      moved = 9;
      return;
    }
    moved += Math.abs(event.clientX - before);
    if (moved > 3) canvas.classList.add("dragging");
    pan((before - event.clientX) / (size.width - size.gutter));
  });
  function release(event) {
    const mine = pointers.delete(event.pointerId);
    canvas.classList.remove("dragging");
    if (!mine || moved > 3 || event.type !== "pointerup") return;
    point(event);
    if (hovered && hovered.finding) api.open(hovered.finding.id);
    else if (hovered && hovered.row.kind === "steps") show(hovered.start, hovered.end);
  }
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  canvas.addEventListener("dblclick", (event) => {
    const box = canvas.getBoundingClientRect();
    const one = at(event.clientX - box.left, event.clientY - box.top);
    if (one && one.end > one.start) show(one.start, one.end);
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      const zooming = event.ctrlKey || event.metaKey || document.activeElement === canvas;
      if (!sideways && !zooming) return;
      event.preventDefault();
      const scale = event.deltaMode === 1 ? 16 : 1;
      if (sideways) pan(((event.deltaX || event.deltaY) * scale) / (size.width - size.gutter));
      else zoom(Math.exp(Math.max(-1, Math.min(1, (event.deltaY * scale) / 300))), time(event.clientX - canvas.getBoundingClientRect().left));
    },
    { passive: false },
  );
  const KEYS = {
    ArrowLeft: () => pan(-0.15),
    ArrowRight: () => pan(0.15),
    a: () => pan(-0.15),
    d: () => pan(0.15),
    "+": () => zoom(0.7),
    "=": () => zoom(0.7),
    w: () => zoom(0.7),
    "-": () => zoom(1 / 0.7),
    s: () => zoom(1 / 0.7),
    0: () => show(...whole),
    Home: () => show(...whole),
    n: () => next(1),
    p: () => next(-1),
    Enter: () => next.last && api.open(next.last),
    Escape: () => (tip.hidden = true),
  };
  canvas.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  let brushing = null;
  const wholeTime = (event) => {
    const share = (event.clientX - strip.getBoundingClientRect().left - size.gutter) / (size.width - size.gutter);
    return whole[0] + Math.min(Math.max(share, 0), 1) * (whole[1] - whole[0]);
  };
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    brushing = { from: wholeTime(event), x: event.clientX };
  });
  strip.addEventListener("pointermove", (event) => {
    if (!brushing || Math.abs(event.clientX - brushing.x) < 4) return;
    const to = wholeTime(event);
    show(Math.min(brushing.from, to), Math.max(brushing.from, to));
  });
  strip.addEventListener("pointerup", (event) => {
    if (brushing && Math.abs(event.clientX - brushing.x) < 4) {
      const half = (view.to - view.from) / 2;
      show(brushing.from - half, brushing.from + half);
    }
    brushing = null;
  });

  /* Beside it -------------------------------------------------------------------------------------------- */

  const ACTS = { previous: () => next(-1), next: () => next(1), in: () => zoom(0.5), out: () => zoom(2), all: () => show(...whole) };
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", ACTS[button.dataset.do]);
  }
  for (const bar of document.querySelectorAll(".steps > [data-from]")) {
    bar.addEventListener("click", () => api.visit(Number(bar.dataset.from), Number(bar.dataset.to)));
  }

  function legend() {
    const seen = new Set(kinds);
    const entries = [["waits", "wait of the host", "c-wait"]];
    for (const [kind, name] of [["kernel", "kernel"], ["communication", "communication"], ["copy", "copy"], ["operator", "operator"], ["call", "driver call"], ["frame", "Python"], ["annotation", "annotation"]]) {
      if (seen.has(kind)) entries.push([kind, name, PALETTE["box:" + kind]]);
    }
    for (const [cause, name] of Object.entries(data.causes)) {
      if (seen.has(cause)) entries.push([cause, "idle: " + name, "c-" + cause]);
    }
    const place = document.querySelector(".legend");
    for (const [, name, variable] of entries) {
      const item = document.createElement("span");
      const swatch = document.createElement("i");
      swatch.style.background = "var(--" + variable + ")";
      item.append(swatch, name);
      place.append(item);
    }
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
    const place = document.getElementById("timeline-table");
    const lanes = document.createElement("table");
    lanes.createTHead().append(cells("th", "lane", "spans", "time covered", "share"));
    const body = lanes.createTBody();
    data.lanes.lanes.forEach((lane, number) => {
      const found = windows[0] && windows[0].rows.get(number + ":0");
      if (!found) return;
      const spans = found.count.reduce((a, b) => a + b, 0);
      const busy = found.busy.reduce((a, b) => a + b, 0);
      const name = lane.kind === "waits" ? "waits of " + lane.name : lane.name;
      body.append(cells("td", name, spans.toLocaleString("en"), told(busy), ((100 * busy) / (whole[1] - whole[0])).toFixed(1) + " %"));
    });
    const list = document.createElement("table");
    list.createTHead().append(cells("th", "finding, where it costs most", "from", "length"));
    const rows = list.createTBody();
    for (const one of findings) {
      const link = document.createElement("a");
      link.href = "#" + one.id;
      link.textContent = one.code + " " + one.where;
      rows.append(cells("td", link, told(one.start - whole[0]), told(one.end - one.start)));
    }
    place.replaceChildren(lanes, list);
  }

  function redraw() {
    paint();
    layout();
    draw();
  }

  const api = {
    show,
    look: (id) => {
      const one = findings.find((finding) => finding.id === id);
      if (one) look(one);
    },
    range: () => [view.from, view.to],
    whole,
    redraw,
    open: () => {},
    visit: show,
    changed: (call) => (listener = call),
  };
  window.gaplessTimeline = api;
  new ResizeObserver(() => {
    layout();
    schedule();
  }).observe(stage);
  legend();
  table();
  redraw();
})();
