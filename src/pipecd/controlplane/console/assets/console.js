// All pages work without scripts; these add live updates, shortcuts and log tools.
import { announce, navigate, showCurrentStage, startLiveUpdates } from "./live.js";
import { startApiBrowser } from "./api.js";
import { startGraph } from "./graph.js";
import { startLog } from "./log.js";
import { openHelp, startPalette } from "./palette.js";
import { startClock } from "./times.js";

document.documentElement.classList.add("js");
document.cookie = `tz=${Intl.DateTimeFormat().resolvedOptions().timeZone}; path=/; max-age=31536000; samesite=strict`;

startClock();
startLog();
startApiBrowser();
startGraph();
startLiveUpdates();
startPalette();
showCurrentStage();
// On a phone the navigation scrolls.
const nav = document.querySelector(".topbar nav");
if (nav && nav.scrollWidth > nav.clientWidth) nav.scrollLeft = (nav.querySelector("[aria-current]")?.offsetLeft ?? 0) - nav.clientWidth / 3;

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-swap]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    navigate(link.getAttribute("href"));
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    await navigator.clipboard.writeText(copy.dataset.copy);
    announce(`${copy.getAttribute("aria-label").replace("Copy ", "")} copied`.replace(/^./, (c) => c.toUpperCase()));
  }
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

// The theme of the system, or the chosen one in this browser; the server reads it from the cookie.
document.addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-choose-theme]");
  if (!chosen) return;
  const theme = chosen.dataset.chooseTheme;
  document.cookie = `theme=${theme}; path=/; max-age=${theme ? 31536000 : 0}; samesite=lax`;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  for (const button of chosen.parentElement.children) button.setAttribute("aria-pressed", String(button === chosen));
});

// Disables the buttons of a submitted form, so that it is sent once.
document.addEventListener("submit", (event) => {
  if (event.target.method === "post" && event.submitter?.formTarget !== "_blank") setTimeout(() => { for (const b of event.target.querySelectorAll("button")) b.disabled = true; });
});
document.addEventListener("change", (event) => { if (event.target.matches("[data-autosubmit] select")) event.target.form.requestSubmit(); });
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// Keyboard shortcuts; off while an input has the focus.
let previousKey = "";
const GO_TO = { o: "/overview", a: "/applications", d: "/deployments", i: "/insights", e: "/events", s: "/settings" };
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = false;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  if (event.key === "/") {
    event.preventDefault();
    (document.querySelector("main input[type=search]:not([data-find])") ?? document.querySelector("[data-key='/']"))?.focus();
  } else if (event.key === "?") {
    openHelp();
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
