"use strict";
/* A run's memory over its events: who asked for it, what is reserved, and when the driver was called. */
for (const root of document.querySelectorAll(".memory-track")) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const summed = (deltas, unit) => {
    const column = new Float64Array(deltas.length);
    let at = 0;
    deltas.forEach((delta, i) => (column[i] = at += delta * unit));
    return column;
  };
  const windows = data.windows.map((one) => ({
    event: summed(one.event, 1),
    allocated: summed(one.allocated, data.unit),
    reserved: summed(one.reserved, data.unit),
    time: one.time.length ? summed(one.time, 1000) : null,
    layers: one.layers.map((layer) => summed(layer, 1)),
  }));
  const others = data.others.map((one) => ({ ...one, event: summed(one.event, 1), reserved: summed(one.reserved, data.unit) }));
  const calls = { ...data.calls, event: summed(data.calls.event, 1) };
  const all = windows[0];
  const whole = [all.event[0], Math.max(all.event[all.event.length - 1], all.event[0] + 1)];
  const most = Math.max(...all.reserved, ...others.flatMap((one) => (one.shown ? [...one.reserved] : [])), 1);
  const near = data.limit > 0 && data.limit < 1.6 * most;
  const scale = unit(near ? Math.max(most, data.limit) : most);
  const { bytes } = window.gaplessStage;
  const KINDS = [
    ["driver alloc", ["malloc", "map"], "c-launch"],
    ["driver free", ["free", "unmap", "collect"], "c-host"],
    ["GPU full", ["retry", "failed"], "accent"],
  ];
  const NAMES = { malloc: "cudaMalloc", free: "cudaFree", map: "mapping", unmap: "unmapping", retry: "found the GPU full, emptied the cache", collect: "garbage collection", failed: "failed request" };
  const ticks = KINDS.map(([label, what, color]) => ({ kind: "calls", label, color, rows: [...calls.what.keys()].filter((i) => what.includes(calls.what[i])) })).filter((one) => one.rows.length);
  let chart = { y: 0, height: 0 };
  let steps = null;

  /** The top of the scale and its steps, round numbers of KiB, MiB or GiB. */
  function unit(bytes) {
    const base = 1024 ** Math.floor(Math.log2(bytes) / 10);
    const power = 10 ** Math.floor(Math.log10(bytes / base));
    const step = [0.1, 0.2, 0.25, 0.5, 1, 2].map((one) => one * power * base).find((one) => bytes / one <= 6);
    return { top: Math.max(bytes * 1.04, step), step };
  }

  /* Layout ----------------------------------------------------------------------------------------------- */

  function layout(pad) {
    let y = 28;
    steps = null;
    if (data.steps.length > 1) {
      steps = { y, height: 16 };
      y += 20;
    }
    chart = { y, height: pad.size.width < 640 ? 180 : 260 };
    y += chart.height + 8;
    for (const one of ticks) {
      one.y = y;
      one.height = 12;
      y += 15;
    }
    return y + 4;
  }

  const palette = { "b-frame": "b-frame" };
  for (const name of [...data.layers.map((one) => one.color), ...others.map((one) => one.color), ...ticks.map((one) => one.color)]) palette[name] = name;

  const level = (bytes) => chart.y + chart.height * (1 - bytes / scale.top);

  /** The position of the first point at or behind `event`. */
  function first(points, event) {
    let low = 0;
    let high = points.event.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points.event[middle] >= event) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** Stretches of the view, each with the points that tell it best. */
  function pieces({ view, x }) {
    const found = [];
    let at = view.from;
    for (const one of windows.slice(1)) {
      const start = one.event[0];
      const end = one.event[one.event.length - 1];
      if (end <= at || start >= view.to || x(end) - x(start) < 24) continue;
      if (start > at) found.push({ points: all, from: at, to: start });
      found.push({ points: one, from: Math.max(at, start), to: Math.min(end, view.to) });
      at = Math.min(end, view.to);
    }
    if (at < view.to) found.push({ points: all, from: at, to: view.to });
    return found;
  }

  /** Edges lie on pixels: what is half clear would show its seams. */
  function snap(px) {
    const ratio = window.devicePixelRatio || 1;
    return Math.round(px * ratio) / ratio;
  }

  /** What is drawn: one column for each point, or of many in one pixel for their highest. */
  function columns(pad, points, from, to, value) {
    const found = [];
    const begin = first(points, from);
    for (let i = begin; i < points.event.length; i++) {
      const start = i ? points.event[i - 1] : points.event[0];
      if (start >= to) break;
      const left = snap(pad.x(Math.max(start, from)));
      const right = snap(pad.x(Math.min(points.event[i], to)));
      const before = found[found.length - 1];
      if (before && right - before.left < 1) {
        if (value[i] > value[before.i]) before.i = i;
        before.low = Math.min(before.low, value[i]);
        before.right = right;
      } else found.push({ left, right, i, low: value[i] });
    }
    return found;
  }

  /* Drawing ---------------------------------------------------------------------------------------------- */

  function draw(pad) {
    const { pen, colors, size } = pad;
    grid(pad);
    if (steps) drawSteps(pad);
    for (const { points, from, to } of pieces(pad)) {
      const reserved = columns(pad, points, from, to, points.reserved);
      area(pad, reserved, reserved.map((one) => points.reserved[one.i]), null, colors["b-frame"], 0.45);
      const shown = columns(pad, points, from, to, points.allocated);
      area(pad, shown, shown.map((one) => points.allocated[one.i]), null, colors.dim, 0.35);
      let base = shown.map(() => 0);
      points.layers.forEach((layer, number) => {
        const top = shown.map((one, at) => base[at] + layer[one.i]);
        area(pad, shown, top, base, colors[data.layers[number].color], 0.82);
        base = top;
      });
    }
    for (const one of others) if (one.shown) line(pad, [{ points: one, from: pad.view.from, to: pad.view.to }], colors[one.color], one.best ? 2 : 1.3, one.best ? [] : [5, 3]);
    line(pad, pieces(pad), colors.accent, 1.6, []);
    if (near) limit(pad);
    peak(pad);
    for (const row of ticks) drawCalls(pad, row);
    pen.fillStyle = colors.rule;
    pen.fillRect(size.gutter, chart.y + chart.height, size.width, 1);
  }

  function grid({ pen, colors, size }) {
    pen.fillStyle = colors.rule;
    for (let at = scale.step; at < scale.top; at += scale.step) pen.fillRect(size.gutter, level(at), size.width, 1);
  }

  /** The stretch between two lines of columns, `low` null for the ground. */
  function area({ pen }, shown, high, low, color, alpha) {
    if (!shown.length) return;
    pen.fillStyle = color;
    pen.globalAlpha = alpha;
    pen.beginPath();
    shown.forEach((one, at) => {
      pen.lineTo(one.left, level(high[at]));
      pen.lineTo(one.right, level(high[at]));
    });
    if (low) {
      for (let at = shown.length - 1; at >= 0; at--) {
        pen.lineTo(shown[at].right, level(low[at]));
        pen.lineTo(shown[at].left, level(low[at]));
      }
    } else {
      pen.lineTo(shown[shown.length - 1].right, level(0));
      pen.lineTo(shown[0].left, level(0));
    }
    pen.fill();
    pen.globalAlpha = 1;
  }

  /** Reserved memory as a line; where a pixel holds many points it goes through their lowest and highest. */
  function line(pad, parts, color, width, dash) {
    const { pen } = pad;
    pen.strokeStyle = color;
    pen.lineWidth = width;
    pen.setLineDash(dash);
    pen.beginPath();
    let begun = false;
    for (const { points, from, to } of parts) {
      for (const one of columns(pad, points, from, to, points.reserved)) {
        const high = level(points.reserved[one.i]);
        if (begun) pen.lineTo(one.left, high);
        else pen.moveTo(one.left, high);
        begun = true;
        if (one.low < points.reserved[one.i]) pen.lineTo(one.left, level(one.low));
        pen.lineTo(one.left, high);
        pen.lineTo(one.right, high);
      }
    }
    pen.stroke();
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  function limit({ pen, colors, size }) {
    const y = level(data.limit);
    pen.strokeStyle = colors.ink;
    pen.setLineDash([2, 3]);
    pen.beginPath();
    pen.moveTo(size.gutter, y);
    pen.lineTo(size.width, y);
    pen.stroke();
    pen.setLineDash([]);
    note(pen, colors, bytes(data.limit) + " at most", size.gutter + 8, y + 9);
  }

  /** Words over the picture. */
  function note(pen, colors, text, left, middle) {
    pen.fillStyle = colors.raised;
    pen.globalAlpha = 0.85;
    pen.fillRect(left - 4, middle - 8, pen.measureText(text).width + 8, 16);
    pen.globalAlpha = 1;
    pen.fillStyle = colors.ink;
    pen.fillText(text, left, middle + 0.5);
  }

  /** Where most is allocated: the line that those who hold it are told of. */
  function peak({ pen, colors, size, x }) {
    const at = x(data.peak.event);
    if (at < size.gutter || at > size.width) return;
    pen.fillStyle = colors.ink;
    pen.fillRect(at - 0.5, level(data.peak.allocated), 1, chart.y + chart.height - level(data.peak.allocated));
    pen.beginPath();
    pen.arc(at, level(data.peak.allocated), 3.5, 0, 7);
    pen.fill();
    const text = "peak " + bytes(data.peak.allocated);
    const width = pen.measureText(text).width;
    const left = at + width + 16 > size.width ? at - width - 10 : at + 8;
    const low = level(data.peak.allocated) + 13;
    note(pen, colors, text, left, low > chart.y + chart.height - 9 ? low - 28 : Math.max(low, chart.y + 10));
  }

  function drawSteps(pad) {
    const { pen, colors, size, view, x } = pad;
    let last = -9;
    data.steps.forEach((end, i) => {
      const start = i ? data.steps[i - 1] : whole[0];
      if (end < view.from || start > view.to) return;
      const left = Math.max(x(start), size.gutter);
      const width = x(end) - left;
      if (width < 1 && Math.floor(left) === last) return;
      last = Math.floor(left);
      pen.fillStyle = i % 2 ? colors.sunk : colors.rule;
      pen.fillRect(left, steps.y, Math.max(width, 1), steps.height);
      pen.fillStyle = colors.dim;
      if (width > 44) pad.write(data.noun + " " + (i * data.each + 1), left + 4, steps.y + 8.5, width - 8);
    });
  }

  function drawCalls({ pen, colors, size, view, x }, row) {
    pen.fillStyle = colors[row.color];
    let last = -1;
    for (const i of row.rows) {
      const event = calls.event[i];
      if (event < view.from || event > view.to) continue;
      const at = Math.floor(x(event));
      if (at === last) continue;
      last = at;
      pen.fillRect(Math.max(at - 1, size.gutter), row.y, 1.6, row.height);
    }
  }

  function labels(pad) {
    const { size, colors } = pad;
    for (let at = 0; at < scale.top; at += scale.step) {
      if (level(at) > chart.y + 6) pad.label(at ? bytes(at) : "0", Math.min(level(at), chart.y + chart.height - 5));
    }
    if (steps) pad.label(data.nouns, steps.y + 8.5);
    for (const row of ticks) pad.label(size.gutter < 100 ? row.label.split(" ").pop() : row.label, row.y + 6.5, row.color === "accent" && colors.accent);
  }

  function strip({ size, colors }, pen, at) {
    for (const [column, color, alpha] of [[all.reserved, colors["b-frame"], 1], [all.allocated, colors.fine, 0.75]]) {
      pen.fillStyle = color;
      pen.globalAlpha = alpha;
      let high = 0;
      let left = size.gutter;
      for (let i = 1; i < column.length; i++) {
        high = Math.max(high, column[i]);
        const right = snap(at(all.event[i]));
        if (right - left < 1 && i < column.length - 1) continue;
        pen.fillRect(left, 36 - (high / scale.top) * 30, right - left, (high / scale.top) * 30);
        left = right;
        high = 0;
      }
    }
  }

  function told(event, step) {
    return step === undefined ? "event " + Math.round(event).toLocaleString("en") : Math.round(event).toLocaleString("en");
  }

  /* Pointing --------------------------------------------------------------------------------------------- */

  function at(pad, px, py) {
    const event = pad.value(px);
    const row = ticks.find((one) => py >= one.y - 1 && py < one.y + one.height + 2);
    if (row) return called(pad, row, event);
    if (steps && py >= steps.y && py < steps.y + steps.height) {
      const i = data.steps.findIndex((end) => event <= end);
      return i < 0 ? null : { kind: "step", fits: true, i, start: i ? data.steps[i - 1] : whole[0], end: data.steps[i] };
    }
    if (py < chart.y || py > chart.y + chart.height) return null;
    const piece = pieces(pad).find((one) => event <= one.to) || { points: all };
    const i = first(piece.points, event);
    const start = piece.points.event[Math.max(i - 1, 0)];
    const id = Math.abs(pad.x(data.peak.event) - px) < 5 ? data.peak.id : "";
    return { kind: "memory", points: piece.points, i, start, end: piece.points.event[i], id };
  }

  function called(pad, row, event) {
    const slack = (3 / (pad.size.width - pad.size.gutter)) * (pad.view.to - pad.view.from);
    const close = row.rows.filter((i) => Math.abs(calls.event[i] - event) <= slack);
    return close.length ? { kind: "calls", close, start: calls.event[close[0]], end: calls.event[close[close.length - 1]] } : null;
  }

  function described(one) {
    if (one.kind === "step") return [data.noun + " " + (one.i * data.each + 1), (one.end - one.start).toLocaleString("en") + " events"];
    if (one.kind === "calls") {
      const texts = one.close.slice(0, 6).map((i) => {
        const times = calls.count[i] > 1 ? calls.count[i] + " × " : "";
        const size = calls.size[i] ? ", " + bytes(calls.size[i]) : "";
        return times + NAMES[calls.what[i]] + size + (calls.place[i] < 0 ? "" : " for " + data.places[calls.place[i]]);
      });
      if (one.close.length > 6) texts.push("… and " + (one.close.length - 6) + " more: zoom in");
      return ["event " + (one.start + 1).toLocaleString("en"), ...texts];
    }
    const { points, i } = one;
    const texts = [where(one)];
    const held = points.layers.map((layer, number) => [layer[i], data.layers[number].name]).filter(([size]) => size > 0);
    held.sort((a, b) => b[0] - a[0]);
    for (const [size, name] of held.slice(0, 5)) texts.push(bytes(size) + " " + name);
    if (one.id) texts.push("the peak: click for who holds it");
    return [bytes(points.allocated[i]) + " allocated of " + bytes(points.reserved[i]) + " reserved", ...texts];
  }

  function where({ points, i, start, end }) {
    const parts = [end - start > 1 ? "maximum of events " + (start + 2).toLocaleString("en") + " to " + (end + 1).toLocaleString("en") : "event " + (end + 1).toLocaleString("en")];
    const step = data.steps.findIndex((last) => end <= last);
    if (data.steps.length && step >= 0) parts.push(data.noun + " " + (step * data.each + 1));
    if (points.time) parts.push("after " + (points.time[i] / 1e6).toFixed(1) + " ms");
    return parts.join(", ");
  }

  const api = window.gaplessStage(root, {
    whole, palette, layout, draw, labels, strip, told, at, described,
    stops: data.stops,
    tours: [{ key: "n", back: "p", stops: data.stops }],
    closest: 8,
    grain: 1,
    margin: Math.max(40, (whole[1] - whole[0]) / 60),
    title: ["the whole run", "all"],
    chosen: (one) => one.id,
  });
  api.legend([["accent", "reserved"], ["b-frame", "reserved, idle"], ...data.layers.map((one) => [one.color, one.name])]);

  /* The settings that were tried: each is drawn or not, as its box below the picture says. */
  for (const one of others) {
    const label = document.createElement("label");
    const box = document.createElement("input");
    const swatch = document.createElement("i");
    swatch.style.background = "var(--" + one.color + ")";
    box.type = "checkbox";
    box.checked = one.shown;
    box.addEventListener("change", () => {
      one.shown = box.checked;
      api.schedule();
    });
    label.append(box, swatch, "reserved with " + one.name);
    root.querySelector(".legend").append(label);
  }
}
