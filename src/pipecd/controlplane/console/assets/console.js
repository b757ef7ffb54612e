// All pages work without scripts; these add live updates, shortcuts and log tools.
import { announce, navigate, startLiveUpdates } from "./live.js";
import { startLog } from "./log.js";
import { startClock } from "./times.js";

document.documentElement.classList.add("js");
document.cookie = `tz=${Intl.DateTimeFormat().resolvedOptions().timeZone}; path=/; max-age=31536000; samesite=strict`;

startClock();
startLog();
startLiveUpdates();

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-swap]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    navigate(link.href);
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    await navigator.clipboard.writeText(copy.dataset.copy);
    announce(`${copy.getAttribute("aria-label").replace("Copy ", "")} copied`.replace(/^./, (c) => c.toUpperCase()));
  }
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

// Disables the buttons of a submitted form, so that it is sent once.
document.addEventListener("submit", (event) => {
  if (event.target.method === "post") setTimeout(() => { for (const b of event.target.querySelectorAll("button")) b.disabled = true; });
});
document.addEventListener("change", (event) => { if (event.target.matches("[data-autosubmit] select")) event.target.form.requestSubmit(); });
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// Keyboard shortcuts; off while an input has the focus.
let previousKey = "";
const GO_TO = { a: "/applications", d: "/deployments", s: "/settings" };
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = false;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  if (event.key === "/") {
    event.preventDefault();
    (document.querySelector("main input[type=search]:not([data-find])") ?? document.querySelector("[data-key='/']"))?.focus();
  } else if (event.key === "f") {
    document.querySelector("[data-follow]")?.click();
  } else if (event.key === "[" || event.key === "]") {
    const stages = [...document.querySelectorAll(".stage")];
    const at = stages.findIndex((stage) => stage.hasAttribute("aria-current"));
    stages[at + (event.key === "]" ? 1 : -1)]?.click();
  } else if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll(".list .row-link")];
    const at = rows.indexOf(document.activeElement);
    rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)))]?.focus();
  } else if (previousKey === "g" && GO_TO[event.key]) {
    location.assign(GO_TO[event.key]);
  }
  previousKey = event.key;
});
