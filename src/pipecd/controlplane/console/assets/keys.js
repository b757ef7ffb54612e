// Keys without Ctrl: off in fields, behind dialogs, and for those who have switched them off.
import { openHelp } from "./palette.js";

const SWITCH = "letter keys";
const GO_TO = { o: "/overview", a: "/applications", d: "/deployments", c: "/chains", t: "/deployment-traces", i: "/insights", e: "/events", s: "/settings" };
let previousKey = "";

const areOn = () => localStorage.getItem(SWITCH) !== "off";

function focusSearch() {
  (document.querySelector("main input[type=search]:not([data-find])") ?? document.querySelector("[data-key='/']"))?.focus();
}

function selectStage(step) {
  const stages = [...document.querySelectorAll(".stage[data-stage-id]")];
  const at = stages.findIndex((stage) => stage.hasAttribute("aria-current"));
  stages[at + step]?.click();
}

function focusRow(step) {
  const rows = [...document.querySelectorAll(".list .row-link")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + step))]?.focus();
}

async function showHelp() {
  await openHelp();
  showKeySwitch();
}

const KEY_ACTIONS = {
  "/": focusSearch,
  "?": showHelp,
  f: () => document.querySelector("[data-follow]")?.click(),
  "[": () => selectStage(-1),
  "]": () => selectStage(1),
  j: () => focusRow(1),
  k: () => focusRow(-1),
};

// Menus close, and the focus returns to the button that has opened them.
function closeMenus() {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    const hadFocus = menu.contains(document.activeElement);
    menu.open = false;
    if (hadFocus) menu.querySelector("summary").focus();
  }
}

function onKey(event) {
  if (event.key === "Escape") closeMenus();
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  if (!areOn() || document.querySelector("dialog[open]")) return;
  const isSecond = previousKey === "g" && GO_TO[event.key];
  previousKey = isSecond ? "" : event.key;
  if (isSecond) { location.assign(GO_TO[event.key]); return; }
  if (!KEY_ACTIONS[event.key]) return;
  event.preventDefault();
  KEY_ACTIONS[event.key]();
}

// The switch is part of the list of keys, on the page of the documentation and in the dialog.
function showKeySwitch() {
  for (const box of document.querySelectorAll("[data-letter-keys]")) box.checked = areOn();
}

export function startKeys() {
  showKeySwitch();
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", (event) => { if (event.target.closest("[data-help]")) { event.preventDefault(); showHelp(); } });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-letter-keys]")) return;
    if (event.target.checked) localStorage.removeItem(SWITCH);
    else localStorage.setItem(SWITCH, "off");
    showKeySwitch();
  });
}
