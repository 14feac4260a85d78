// Pages work without this file. It replaces the main part instead of the whole page, follows a slider as it moves, adds
// detail to pictures (window-bar) and to the byte that moved (byte-diff), and follows what happens on the server.
"use strict";

// -- the main part of a page

let latest = 0;

async function show(url, keepsPlace) {
  const number = ++latest;
  let text;
  try {
    const response = await fetch(url, { headers: { "X-Part": "main" }, redirect: "follow" });
    text = await response.text();
  } catch {
    return false; // the server does not answer: what is shown stays
  }
  if (number !== latest) return false; // a later move of the slider was faster
  const page = new DOMParser().parseFromString(text, "text/html");
  const part = page.querySelector("main");
  if (!part) { location.assign(url); return false; }
  const active = keepsPlace && document.activeElement ? document.activeElement.id : "";
  const open = keepsPlace ? [...document.querySelectorAll("main details[open]")].map(placeOf) : [];
  document.querySelector("main").replaceWith(part);
  document.title = page.title;
  for (const place of open) { const again = atPlace(part, place); if (again) again.open = true; }
  const again = active && document.getElementById(active);
  if (again) again.focus({ preventScroll: true }); else if (!keepsPlace) part.focus();
  follow();
  return true;
}

function placeOf(details) {
  return [...document.querySelectorAll("main details")].indexOf(details);
}

function atPlace(part, place) {
  return part.querySelectorAll("details")[place];
}

function urlOf(form) {
  const query = new URLSearchParams(new FormData(form));
  return form.getAttribute("action") + "?" + query.toString();
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-swap]") || form.method !== "get") return;
  event.preventDefault();
  const url = urlOf(form);
  history.pushState({}, "", url);
  show(url, true);
});

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (event.target.type !== "range" || !form || !form.matches("[data-swap]")) return;
  const url = urlOf(form);
  history.replaceState({}, "", url);
  show(url, true);
});

window.addEventListener("popstate", () => show(location.href, false));

// -- a file that is dropped

document.addEventListener("dragover", (event) => {
  if (document.querySelector("[data-drop]")) event.preventDefault();
});

document.addEventListener("drop", (event) => {
  const input = document.querySelector("[data-drop]");
  if (!input || !event.dataTransfer.files.length) return;
  event.preventDefault();
  input.files = event.dataTransfer.files;
  input.form.requestSubmit();
});

// -- the day as of which facts are shown, dragged in the picture; the slider above is the same for the keyboard

function stopAt(svg, x) {
  const slider = document.getElementById("known");
  if (!slider) return;
  const box = svg.getBoundingClientRect();
  const part = ((x - box.left) / box.width - Number(svg.dataset.from)) / Number(svg.dataset.room);
  const first = Number(svg.dataset.first);
  const at = first + Math.min(Math.max(part, 0), 1) * (Number(svg.dataset.last) - first);
  const stops = slider.dataset.stops.split(" ").map(Number);
  let best = 0;
  stops.forEach((stop, number) => { if (stop <= at + 1) best = number; });
  if (String(best) === slider.value) return;
  slider.value = best;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}

let dragged = false;
document.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest && event.target.closest("svg.lives");
  if (!svg || event.button !== 0) return;
  const box = svg.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width;
  if (!event.target.closest(".known") && event.target.closest("a")) return; // a fact is a link
  if (x < Number(svg.dataset.from) - 0.02) return;
  dragged = true;
  event.preventDefault();
  stopAt(svg, event.clientX);
});
document.addEventListener("pointermove", (event) => {
  const svg = dragged && [...document.querySelectorAll("svg.lives")].find((one) => one.getBoundingClientRect().width);
  if (svg) stopAt(svg, event.clientX);
});
for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => { dragged = false; });

// -- <window-bar>: the parts of a picture one by one, by mouse or by arrow keys, with what each is in words

class WindowBar extends HTMLElement {
  connectedCallback() {
    const pictures = [...this.querySelectorAll("svg")]; // of one for wide and one for narrow screens, one is shown
    if (this.detail || !pictures.length) return;
    this.parts = [...this.querySelectorAll("svg title")].map((title) => title.closest("a") || title.parentNode);
    if (!this.parts.length) return;
    this.detail = document.createElement("p");
    this.detail.className = "detail";
    this.detail.setAttribute("role", "status");
    pictures[pictures.length - 1].after(this.detail);
    for (const part of this.parts) {
      if (part.tagName !== "a") {
        part.setAttribute("role", "img");
        part.setAttribute("aria-label", this.words(part));
      }
      part.setAttribute("tabindex", "-1");
    }
    for (const svg of pictures) {
      if (svg.getAttribute("role") === "img") svg.setAttribute("role", "group");
      const first = this.parts.find((part) => svg.contains(part));
      if (first) first.setAttribute("tabindex", "0");
    }
    this.addEventListener("keydown", (event) => this.move(event));
    this.addEventListener("focusin", (event) => this.tell(event.target));
    this.addEventListener("pointerover", (event) => this.tell(event.target));
    this.addEventListener("pointerleave", () => { this.detail.textContent = ""; });
  }

  words(part) {
    return part.querySelector("title").textContent;
  }

  partOf(target) {
    return this.parts.find((part) => part.contains(target));
  }

  tell(target) {
    const part = this.partOf(target);
    if (part) this.detail.textContent = this.words(part);
  }

  move(event) {
    const svg = event.target.closest("svg");
    const parts = this.parts.filter((part) => svg && svg.contains(part));
    const at = parts.indexOf(this.partOf(event.target));
    if (at < 0) return;
    const last = parts.length - 1;
    const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = parts[Math.min(Math.max(steps[event.key], 0), last)];
    parts[at].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }
}

// -- <byte-diff>: two texts around the first byte that differs

class ByteDiff extends HTMLElement {
  connectedCallback() {
    if (this.tools) return;
    this.tools = document.createElement("div");
    this.tools.className = "tools";
    this.button("Jump to byte " + Number(this.dataset.byte).toLocaleString("en"), () => this.jump());
    this.button("Show spaces and line ends", (button) => this.reveal(button)).setAttribute("aria-pressed", "false");
    const more = this.querySelector("a.more");
    if (more) {
      this.button("More context", () => this.widen(more.getAttribute("href")));
      more.parentNode.remove();
    }
    this.prepend(this.tools);
  }

  button(text, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", () => act(made));
    this.tools.append(made);
    return made;
  }

  jump() {
    for (const mark of this.querySelectorAll("del, ins")) {
      const box = mark.closest("pre");
      box.scrollTop = mark.offsetTop - box.offsetTop - box.clientHeight / 3;
    }
    const first = this.querySelector("del, ins");
    if (!first) return;
    first.scrollIntoView({ block: "center" });
    first.closest("pre").focus({ preventScroll: true });
  }

  reveal(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const pre of this.querySelectorAll("pre")) {
      const walker = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const node = walker.currentNode;
        node.kept = node.kept ?? node.data;
        const visible = node.kept.replaceAll(" ", "\u00b7").replaceAll("\t", "\u2192\t").replaceAll("\n", "\u21b5\n");
        node.data = shown ? visible : node.kept;
      }
    }
  }

  async widen(href) {
    const response = await fetch(href);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const wider = page.querySelector("byte-diff");
    if (!wider) return;
    this.replaceWith(wider);
    const again = [...wider.querySelectorAll("button")].find((one) => one.textContent === "More context");
    (again || wider.querySelector("button")).focus();
    wider.jump();
  }
}

customElements.define("window-bar", WindowBar);
customElements.define("byte-diff", ByteDiff);

// -- what happens on the server, as it happens

let source = null;
let followed = "";
let paused = false;
let waiting = 0;

function follow() {
  const main = document.querySelector("main");
  const url = main && main.dataset.follow;
  if (!url || !window.EventSource) { stop(); return; }
  if (paused) { status("Paused"); return; }
  if (source && followed === url && source.readyState !== EventSource.CLOSED) return;
  stop();
  followed = url;
  source = new EventSource(url);
  source.addEventListener("ready", () => status("Live"));
  for (const name of ["session", "memory", "message", "compaction", "recorded", "checkpoint", "rewound", "reset"]) {
    source.addEventListener(name, changed);
  }
  source.addEventListener("end", () => { stop(); waiting = setTimeout(follow, 3000); });
  source.addEventListener("error", () => {
    if (source && source.readyState === EventSource.CLOSED) stop(); // this server does not tell: the page stays as it is
    else status("Reconnecting");
  });
}

function changed() {
  clearTimeout(waiting); // several things that happen together are shown once
  waiting = setTimeout(async () => {
    if (document.querySelector("main form :focus, main svg :focus, byte-diff :focus")) { changed(); return; }
    if (await show(location.href, true)) status("Live, changed just now");
  }, 400);
}

function stop() {
  if (source) source.close();
  source = null;
  clearTimeout(waiting);
  const sign = document.querySelector(".live");
  if (sign) sign.remove();
}

function status(text) {
  let sign = document.querySelector(".live");
  if (!sign) {
    sign = document.createElement("div");
    sign.className = "live";
    const words = document.createElement("span");
    words.setAttribute("role", "status");
    const button = document.createElement("button");
    button.type = "button";
    button.addEventListener("click", () => {
      paused = !paused;
      if (paused && source) { source.close(); source = null; clearTimeout(waiting); }
      follow();
    });
    sign.append(words, button);
    document.querySelector("header").append(sign); // beside the part that is replaced
  }
  sign.querySelector("span").textContent = "\u25cf " + text;
  sign.querySelector("button").textContent = paused ? "Follow" : "Pause";
}

for (const one of document.querySelectorAll("[data-asof]")) one.classList.add("ready");
follow();
