// Pages work without this file. It replaces the main part instead of the whole page, and follows a slider as it moves.
"use strict";

let latest = 0;

async function show(url, keepsFocus) {
  const number = ++latest;
  const response = await fetch(url, { headers: { "X-Part": "main" }, redirect: "follow" });
  const text = await response.text();
  if (number !== latest) return; // a later move of the slider was faster
  const page = new DOMParser().parseFromString(text, "text/html");
  const part = page.querySelector("main");
  if (!part) { location.assign(url); return; }
  const active = keepsFocus ? document.activeElement && document.activeElement.id : "";
  document.querySelector("main").replaceWith(part);
  document.title = page.title;
  const again = active && document.getElementById(active);
  if (again) again.focus(); else if (!keepsFocus) part.focus();
}

function urlOf(form) {
  const query = new URLSearchParams(new FormData(form));
  return form.getAttribute("action") + "?" + query.toString();
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.confirm && !window.confirm(form.dataset.confirm)) { event.preventDefault(); return; }
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

window.addEventListener("popstate", () => show(location.href, false));
