// All pages work without scripts; these add live updates, shortcuts and log tools.
import { announce, announceError, followLink, refresh, showCurrentStage, startLiveUpdates } from "./live.js";
import { startApiBrowser } from "./api.js";
import { copyText } from "./clipboard.js";
import { startGraph } from "./graph.js";
import { startLog } from "./log.js";
import { startKeys } from "./keys.js";
import { startPalette } from "./palette.js";
import { rememberZone, startClock } from "./times.js";

document.documentElement.classList.add("js");
const isOtherZone = rememberZone();

startClock();
startLog();
startApiBrowser();
startGraph();
startLiveUpdates();
startPalette();
startKeys();
showCurrentStage();
// A phone that is turned has the stages in a line that may begin with others.
matchMedia("(max-width: 760px)").addEventListener("change", showCurrentStage);
// The first page that this browser opens; others, such as one with a new key, have no second view.
if (isOtherZone && document.querySelector("main[data-poll]")) refresh();
// On a phone the navigation scrolls.
const nav = document.querySelector(".topbar > nav");
if (nav && nav.scrollWidth > nav.clientWidth) nav.scrollLeft = (nav.querySelector("[aria-current]")?.offsetLeft ?? 0) - nav.clientWidth / 3;

// A link to what is folded opens it.
const linked = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
if (linked && linked.matches("details")) linked.open = true;

// The lines of a listing are elements of their own.
const codeBeside = (button) => {
  const code = button.parentElement.querySelector("pre, .listing");
  return code.matches("pre") ? code.textContent : [...code.children].map((line) => line.textContent).join("\n");
};

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-swap]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    followLink(link);
  }
  const copy = event.target.closest("[data-copy], [data-copy-code]");
  if (copy) {
    const name = (copy.dataset.copyName ?? copy.getAttribute("aria-label")).replace("Copy ", "").replace(/^./, (c) => c.toUpperCase());
    if (await copyText(copy.dataset.copy ?? codeBeside(copy))) announce(`${name} copied`);
    else announceError(`${name} could not be copied: the browser does not allow it`);
  }
  const reveal = event.target.closest("[data-reveal]");
  if (reveal) {
    const field = document.getElementById(reveal.dataset.reveal);
    field.type = field.type === "password" ? "text" : "password";
    reveal.setAttribute("aria-pressed", String(field.type === "text"));
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
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-autosubmit] select")) event.target.form.requestSubmit();
  // An application has deploy targets, or explicitly none.
  if (!event.target.matches(".targets :checked")) return;
  const isNone = event.target.matches(".no-target *");
  for (const box of event.target.closest(".targets").querySelectorAll("input")) if (box.matches(".no-target *") !== isNone) box.checked = false;
});
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
