"use strict";
/* A stage: a canvas that shows a stretch of something long, and a strip that shows all of it. Moving, zooming
   and pointing are the same whatever is drawn; what that is, a drawing says:

     whole [from, to], closest (the shortest stretch), margin (around a stop that is looked at)
     stops [{id, start, end, label}] in order, marked above; palette {name: variable of the style}
     tours [{key, back, stops}]: what a key goes to, one after the other, there and back
     layout(pad) -> height, draw(pad), strip(pad, pen, scale), told(value, step) -> text
     at(pad, x, y) -> {start, end, …} or null, described(one) -> [title, text, …], chosen(one) -> id or null
     and where it can: find(text) -> stops, held(stop) -> what at() would give of it, pointed(one, picked)

   and gets a pad: pen, view {from, to}, size {width, height, gutter}, colors, x(value), value(px), write(),
   picked (what was clicked, or gone to). */
window.gaplessStages = [];
window.gaplessStage = function (root, drawing) {
  const stage = root.querySelector(".canvas");
  const canvas = stage.querySelector(".main");
  const strip = stage.querySelector(".whole");
  const tip = stage.querySelector(".tip");
  const help = root.querySelector(".help");
  const seek = root.querySelector(".seek");
  const pen = canvas.getContext("2d");
  const stripPen = strip.getContext("2d");
  const { whole, stops, tours } = drawing;
  const view = { from: whole[0], to: whole[1] };
  const size = { width: 0, height: 0, gutter: 0 };
  const colors = {};
  const STRIP = 40;
  let pointed = null;
  let pending = false;
  let last = null;
  let matches = [];
  let listener = () => {};

  const x = (value) => size.gutter + ((value - view.from) / (view.to - view.from)) * (size.width - size.gutter);
  const value = (px) => view.from + ((px - size.gutter) / (size.width - size.gutter)) * (view.to - view.from);
  const pad = { pen, view, whole, size, colors, x, value, write, label, picked: null };

  /* Drawing ---------------------------------------------------------------------------------------------- */

  function layout() {
    size.width = stage.clientWidth;
    size.gutter = size.width < 640 ? 64 : 148;
    size.height = drawing.layout(pad);
    fit(canvas, pen, size.height);
    fit(strip, stripPen, STRIP);
  }

  function fit(element, context, height) {
    const ratio = window.devicePixelRatio || 1;
    element.width = Math.round(size.width * ratio);
    element.height = Math.round(height * ratio);
    element.style.height = height + "px";
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  const PALETTE = { paper: "paper", raised: "raised", sunk: "sunk", ink: "ink", dim: "dim", rule: "rule", accent: "accent", fine: "busy" };

  function paint() {
    const probe = document.createElement("i");
    stage.append(probe);
    for (const [name, variable] of Object.entries({ ...PALETTE, ...drawing.palette })) {
      probe.style.color = "var(--" + variable + ")";
      colors[name] = getComputedStyle(probe).color;
    }
    probe.remove();
  }

  function schedule() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      draw();
    });
  }

  function font(size) {
    return size + "px " + getComputedStyle(document.body).fontFamily;
  }

  /** Text that fits into so many pixels, or nothing: it is measured, so that none runs into its neighbour. */
  function cut(context, text, room) {
    if (room < 12) return "";
    let most = Math.min(text.length, Math.ceil(room / 3));
    for (let round = 0; round < 4 && most > 1; round++) {
      const shown = most < text.length ? text.slice(0, most - 1) + "…" : text;
      const width = measured(context, shown);
      if (width <= room) return shown;
      most = Math.min(most - 1, Math.floor((most * room) / width));
    }
    return "";
  }

  /** Widths are remembered: of one font that is drawn with, and of few thousand texts. */
  const widths = new Map();
  function measured(context, text) {
    const key = context.font + text;
    let width = widths.get(key);
    if (width === undefined) {
      if (widths.size > 5000) widths.clear();
      width = context.measureText(text).width;
      widths.set(key, width);
    }
    return width;
  }

  function write(text, left, middle, room) {
    const shown = cut(pen, text, room);
    if (shown) pen.fillText(shown, left, middle);
  }

  function draw() {
    if (!size.width) return;
    pen.fillStyle = colors.raised;
    pen.fillRect(0, 0, size.width, size.height);
    pen.save();
    pen.beginPath();
    pen.rect(size.gutter, 0, size.width - size.gutter, size.height);
    pen.clip();
    ruler();
    drawing.draw(pad);
    pen.restore();
    pen.fillStyle = colors.raised;
    pen.fillRect(0, 0, size.gutter - 1, size.height);
    pen.fillStyle = colors.rule;
    pen.fillRect(size.gutter - 1, 0, 1, size.height);
    pen.font = font(11);
    drawing.labels(pad);
    brush();
  }

  /** A word in the margin. */
  function label(text, middle, color) {
    pen.fillStyle = color || colors.dim;
    pen.fillText(cut(pen, text, size.gutter - 14), 9, middle);
  }

  function ruler() {
    const unit = (view.to - view.from) / Math.max((size.width - size.gutter) / 120, 1);
    const power = 10 ** Math.floor(Math.log10(unit));
    const step = Math.max([1, 2, 5, 10].map((one) => one * power).find((one) => one >= unit), drawing.grain || 0);
    pen.font = font(11);
    pen.textBaseline = "middle";
    for (let at = Math.ceil((view.from - whole[0]) / step) * step + whole[0]; at < view.to; at += step) {
      pen.fillStyle = colors.rule;
      pen.fillRect(x(at), 0, 1, size.height);
      pen.fillStyle = colors.dim;
      const text = drawing.told(at - whole[0], step);
      if (x(at) + 6 + measured(pen, text) < Math.min(x(at + step), size.width)) pen.fillText(text, x(at) + 4, 8);
    }
    pen.font = font(10.5);
    pen.fillStyle = colors.accent;
    for (const one of stops) {
      const at = x(one.start);
      if (one.start < view.from || one.start > view.to) continue;
      pen.beginPath();
      pen.moveTo(at - 3.5, 16);
      pen.lineTo(at + 3.5, 16);
      pen.lineTo(at, 23);
      pen.fill();
    }
  }

  /** The whole above: what the drawing shows of it, and which part is shown below. */
  function brush() {
    const room = size.width - size.gutter;
    const scale = (at) => size.gutter + ((at - whole[0]) / (whole[1] - whole[0])) * room;
    stripPen.fillStyle = colors.raised;
    stripPen.fillRect(0, 0, size.width, STRIP);
    drawing.strip(pad, stripPen, scale);
    stripPen.globalAlpha = 1;
    stripPen.fillStyle = colors.accent;
    for (const one of stops) stripPen.fillRect(scale(one.start), 2, 2, 4);
    stripPen.font = font(11);
    stripPen.textBaseline = "middle";
    stripPen.fillStyle = colors.dim;
    stripPen.fillText(drawing.title[size.gutter < 100 ? 1 : 0], 9, 21);
    if (view.from > whole[0] || view.to < whole[1]) {
      const left = scale(view.from);
      const width = Math.max(scale(view.to) - left, 2);
      stripPen.fillStyle = colors.raised;
      stripPen.globalAlpha = 0.65;
      stripPen.fillRect(size.gutter, 0, left - size.gutter, STRIP);
      stripPen.fillRect(left + width, 0, size.width, STRIP);
      stripPen.globalAlpha = 1;
      stripPen.strokeStyle = colors.ink;
      stripPen.strokeRect(left + 0.5, 0.5, width, STRIP - 1);
    }
  }

  /* Moving ----------------------------------------------------------------------------------------------- */

  function show(from, to, quiet) {
    const length = Math.min(Math.max(to - from, drawing.closest), whole[1] - whole[0]);
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
    if (length < drawing.closest && factor < 1) return;
    const from = at - (at - view.from) * factor;
    show(from, from + length);
  }

  /** To the next stop to the right (or left): behind the one that was gone to, or what is shown. */
  function next(list, direction) {
    if (!list.length) return;
    const seen = last && last.end >= view.from && last.start <= view.to;
    let to = seen ? list.indexOf(last) : -1;
    if (to >= 0) to += direction;
    else if (direction > 0) to = Math.max(list.findIndex((one) => one.start >= view.from), 0);
    else to = list.findLastIndex((one) => one.start <= view.to);
    look(list.at(to % list.length));
    say(last.label + (list.length > 1 ? " · " + (list.indexOf(last) + 1) + " of " + list.length.toLocaleString("en") : ""));
  }

  function look(one) {
    last = one;
    pick(drawing.held ? drawing.held(one) : null);
    const { from = one.start, to = one.end } = one;
    const around = Math.max(0.6 * (to - from), drawing.margin);
    show(from - around, to + around);
  }

  function pick(one) {
    pad.picked = one;
    if (drawing.pointed) drawing.pointed(null, one);
    schedule();
  }

  /* Pointing --------------------------------------------------------------------------------------------- */

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const px = event.clientX - box.left;
    return px < size.gutter ? null : drawing.at(pad, px, event.clientY - box.top);
  }

  function point(event) {
    pointed = under(event);
    if (drawing.pointed && drawing.pointed(pointed, pad.picked)) schedule();
    canvas.style.cursor = pointed && drawing.chosen(pointed) ? "pointer" : "";
    if (!pointed) {
      tip.hidden = true;
      return;
    }
    const [title, ...texts] = drawing.described(pointed);
    const name = document.createElement("b");
    name.textContent = title;
    tip.replaceChildren(name, ...texts.flatMap((text) => [document.createElement("br"), text]));
    tip.hidden = false;
    const outer = stage.getBoundingClientRect();
    const left = Math.min(event.clientX - outer.left + 14, size.width - tip.offsetWidth - 8);
    const below = event.clientY - outer.top + 18;
    const top = below + tip.offsetHeight > outer.height ? event.clientY - outer.top - tip.offsetHeight - 12 : below;
    tip.style.left = Math.max(left, 4) + "px";
    tip.style.top = Math.max(top, 4) + "px";
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
      if (pinch) zoom(pinch / apart, value((a + b) / 2 - canvas.getBoundingClientRect().left));
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
    const id = pointed && drawing.chosen(pointed);
    if (id) api.open(id);
    else if (pointed && pointed.fits) show(pointed.start, pointed.end);
    else pick(pointed);
  }
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
    if (drawing.pointed && drawing.pointed(null, pad.picked)) schedule();
  });
  canvas.addEventListener("dblclick", (event) => {
    const one = under(event);
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
      else zoom(Math.exp(Math.max(-1, Math.min(1, (event.deltaY * scale) / 300))), value(event.clientX - canvas.getBoundingClientRect().left));
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
    Enter: () => last && last.id && api.open(last.id),
    Escape: () => {
      tip.hidden = true;
      pick(null);
    },
    "?": () => (help.open = !help.open),
    "/": () => seek && seek.elements[0].focus(),
  };
  for (const { key, back, stops } of tours) {
    KEYS[key] = () => next(stops, 1);
    KEYS[back] = () => next(stops, -1);
  }
  canvas.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  let brushing = null;
  const wholeValue = (event) => {
    const share = (event.clientX - strip.getBoundingClientRect().left - size.gutter) / (size.width - size.gutter);
    return whole[0] + Math.min(Math.max(share, 0), 1) * (whole[1] - whole[0]);
  };
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    brushing = { from: wholeValue(event), x: event.clientX };
  });
  strip.addEventListener("pointermove", (event) => {
    if (!brushing || Math.abs(event.clientX - brushing.x) < 4) return;
    const to = wholeValue(event);
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

  for (const button of root.querySelectorAll("[data-key]")) {
    button.addEventListener("click", KEYS[button.dataset.key]);
  }

  function search() {
    matches = drawing.find(seek.elements[0].value.trim().toLowerCase());
    seek.querySelector("output").textContent = seek.elements[0].value.trim() ? matches.length.toLocaleString("en") + " found" : "";
    schedule();
  }

  if (seek) {
    const input = seek.elements[0];
    seek.addEventListener("submit", (event) => event.preventDefault());
    input.addEventListener("input", search);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") next(matches, event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") {
        input.value = "";
        search();
        canvas.focus();
      } else return;
      event.preventDefault();
    });
  }

  /** Names beside colours, below the canvas: [variable of the style, name]. */
  function legend(entries) {
    for (const [variable, name] of entries) {
      const item = document.createElement("span");
      const swatch = document.createElement("i");
      swatch.style.background = "var(--" + variable + ")";
      item.append(swatch, name);
      root.querySelector(".legend").append(item);
    }
  }

  function redraw() {
    paint();
    layout();
    draw();
  }

  const api = {
    id: root.id,
    show,
    look: (id) => {
      const one = stops.find((stop) => stop.id === id);
      if (one) look(one);
      return Boolean(one);
    },
    range: () => [view.from, view.to],
    whole,
    schedule,
    redraw,
    legend,
    open: () => {},
    visit: show,
    changed: (call) => (listener = call),
  };
  window.gaplessStages.push(api);
  new ResizeObserver(() => {
    layout();
    schedule();
  }).observe(stage);
  redraw();
  return api;
};
/** Bytes as torch writes them. */
window.gaplessStage.bytes = function (bytes) {
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(bytes, 1) / 0.9995) / 10), 0), 4);
  const amount = bytes / 1024 ** power;
  const digits = amount >= 99.95 ? 0 : amount >= 9.995 ? 1 : 2;
  return amount.toLocaleString("en", { maximumFractionDigits: digits }) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][power];
};
