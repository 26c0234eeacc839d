"use strict";
/* Around what is drawn: light and dark, folding, filtering, and a hash that holds all of it. */
(function () {
  const root = document.documentElement;
  const stages = window.gaplessStages || [];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  /* A page may tell of several runs: each has its own findings and its own filter. */
  const scopes = [...document.querySelectorAll(".scope")].map((scope, number) => {
    const articles = [...scope.querySelectorAll(".finding")];
    const words = new Map(articles.map((one) => [one, one.textContent.toLowerCase()]));
    return { form: scope.querySelector(".filter"), none: scope.querySelector(".none"), articles, words, key: number ? String(number + 1) : "" };
  });
  const state = { at: "", more: new URLSearchParams() };
  const redraw = () => stages.forEach((one) => one.redraw());

  /* Light and dark: as the system has it, until the button says otherwise. */
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);

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
  function filter({ form, none, articles, words, key }) {
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
    none.hidden = shown > 0;
    const all = shown === articles.length;
    form.querySelector("output").textContent = all ? "" : shown + " of " + articles.length;
    set("q" + key, form.elements.q.value);
    set("kind" + key, family);
    set("code" + key, library);
  }

  const filtered = scopes.filter((one) => one.form);

  function restore() {
    for (const one of filtered) {
      const { elements } = one.form;
      elements.q.value = state.more.get("q" + one.key) || "";
      elements.family.value = state.more.get("kind" + one.key) || "";
      if (elements.library) elements.library.value = state.more.get("code" + one.key) || "";
      filter(one);
    }
  }

  for (const one of filtered) {
    one.form.addEventListener("submit", (event) => event.preventDefault());
    one.form.addEventListener("input", () => {
      filter(one);
      soon();
    });
    for (const button of one.form.querySelectorAll("[data-fold]")) {
      button.addEventListener("click", () => {
        for (const article of one.articles) article.firstElementChild.open = button.dataset.fold === "open";
      });
    }
  }

  /* Going to a place in the page: what hides it is unfolded, and no filter keeps it away. */
  function go(id, quick) {
    const target = id && document.getElementById(id);
    for (const { articles } of scopes) for (const one of articles) one.classList.toggle("at", one === target);
    if (!target) return;
    const hides = target.hidden && filtered.find((one) => one.articles.includes(target));
    if (hides) {
      hides.form.reset();
      filter(hides);
    }
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    const folded = target.querySelector(":scope > details");
    if (folded && target.classList.contains("finding")) folded.open = true;
    target.scrollIntoView(quick ? { behavior: "instant", block: "start" } : undefined);
    const focus = (target.matches(".finding, details") && target.querySelector("summary")) || target;
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
    if (link.classList.contains("show")) stages.some((one) => one.look(article.id));
    follow(id);
  });

  stages.forEach((one, number) => {
    const key = number ? String(number + 1) : "";
    one.open = follow;
    one.visit = (from, to) => {
      one.show(from, to);
      follow(one.id);
    };
    one.changed((from, to, all) => {
      set("from" + key, all ? "" : String(Math.round(from)));
      set("to" + key, all ? "" : String(Math.round(to)));
      soon();
    });
    one.arrive = () => {
      const from = Number(state.more.get("from" + key));
      const to = Number(state.more.get("to" + key));
      if (to > from) one.show(from, to, true);
    };
  });

  function arrive() {
    read();
    restore();
    for (const one of stages) one.arrive();
    go(state.at, true);
  }

  window.addEventListener("popstate", arrive);
  /* On paper it is light, and what matters is unfolded. */
  let screen;
  window.addEventListener("beforeprint", () => {
    screen = root.dataset.theme;
    root.dataset.theme = "light";
    for (const one of document.querySelectorAll(".run, .finding:not(.minor) > details")) one.open = true;
    redraw();
  });
  window.addEventListener("afterprint", () => {
    if (screen) root.dataset.theme = screen;
    else delete root.dataset.theme;
    redraw();
  });
  if (location.hash) arrive();
  root.dataset.ready = "yes";
})();
