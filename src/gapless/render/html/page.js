"use strict";
/* Around the timeline: light and dark, folding, filtering, and a hash that holds all of it. */
(function () {
  const root = document.documentElement;
  const timeline = window.gaplessTimeline;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const form = document.querySelector(".filter");
  const articles = [...document.querySelectorAll(".finding")];
  const words = new Map(articles.map((one) => [one, one.textContent.toLowerCase()]));
  const state = { at: "", more: new URLSearchParams() };

  /* Light and dark: as the system has it, until the button says otherwise. */
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    if (timeline) timeline.redraw();
  });
  dark.addEventListener("change", () => timeline && timeline.redraw());

  /* The hash: where the reader is, and after a question mark what is filtered and shown. */
  function read() {
    const hash = location.hash.slice(1);
    const cut = hash.indexOf("?");
    state.at = cut < 0 ? hash : hash.slice(0, cut);
    state.more = new URLSearchParams(cut < 0 ? "" : hash.slice(cut + 1));
  }

  function write(push) {
    const more = state.more.toString();
    const hash = "#" + state.at + (more ? "?" + more : "");
    if (hash === location.hash) return;
    history[push ? "pushState" : "replaceState"](null, "", hash === "#" ? location.pathname + location.search : hash);
  }

  let writing = 0;
  function soon() {
    clearTimeout(writing);
    writing = setTimeout(write, 200);
  }

  function set(key, value) {
    if (value) state.more.set(key, value);
    else state.more.delete(key);
  }

  /* Filtering. */
  function filter() {
    if (!form) return;
    const wanted = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const family = form.elements.family.value;
    const library = form.elements.library ? form.elements.library.value : "";
    let shown = 0;
    for (const one of articles) {
      const fits =
        (!family || one.dataset.family === family) &&
        (!library || one.dataset.library === library) &&
        wanted.every((word) => words.get(one).includes(word));
      one.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    document.querySelector(".none").hidden = shown > 0;
    const all = shown === articles.length;
    form.querySelector("output").textContent = all ? "" : shown + " of " + articles.length;
    set("q", form.elements.q.value);
    set("kind", family);
    set("code", library);
  }

  function restore() {
    if (!form) return;
    form.elements.q.value = state.more.get("q") || "";
    form.elements.family.value = state.more.get("kind") || "";
    if (form.elements.library) form.elements.library.value = state.more.get("code") || "";
    filter();
  }

  if (form) {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      filter();
      soon();
    });
    for (const button of form.querySelectorAll("[data-fold]")) {
      button.addEventListener("click", () => {
        for (const one of articles) one.firstElementChild.open = button.dataset.fold === "open";
      });
    }
  }

  /* Going to a place in the page: what hides it is unfolded, and no filter keeps it away. */
  function go(id, quick) {
    const target = id && document.getElementById(id);
    for (const one of articles) one.classList.toggle("at", one === target);
    if (!target) return;
    if (target.hidden && form) {
      form.reset();
      filter();
    }
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    const folded = target.querySelector(":scope > details");
    if (folded && target.classList.contains("finding")) folded.open = true;
    target.scrollIntoView(quick ? { behavior: "instant", block: "start" } : undefined);
    const focus = target.querySelector("summary") || target;
    if (focus === target && !target.hasAttribute("tabindex")) target.tabIndex = -1;
    focus.focus({ preventScroll: true });
  }

  function follow(id) {
    state.at = id;
    write(true);
    go(id);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const id = link.getAttribute("href").slice(1);
    const article = link.closest(".finding");
    if (timeline && link.classList.contains("show")) timeline.look(article.id);
    follow(id);
  });

  if (timeline) {
    timeline.open = follow;
    timeline.visit = (from, to) => {
      timeline.show(from, to);
      follow("timeline");
    };
    timeline.changed((from, to, all) => {
      set("from", all ? "" : String(Math.round(from)));
      set("to", all ? "" : String(Math.round(to)));
      soon();
    });
  }

  function arrive() {
    read();
    restore();
    if (timeline) {
      const from = Number(state.more.get("from"));
      const to = Number(state.more.get("to"));
      if (to > from) timeline.show(from, to, true);
    }
    go(state.at, true);
  }

  window.addEventListener("popstate", arrive);
  /* On paper it is light, and what matters is unfolded. */
  let screen;
  window.addEventListener("beforeprint", () => {
    screen = root.dataset.theme;
    root.dataset.theme = "light";
    if (timeline) timeline.redraw();
    for (const one of document.querySelectorAll(".finding:not(.minor) > details")) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    if (screen) root.dataset.theme = screen;
    else delete root.dataset.theme;
    if (timeline) timeline.redraw();
  });
  if (location.hash) arrive();
  root.dataset.ready = "yes";
})();
