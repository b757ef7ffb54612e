// The palette (Ctrl-K) and the help (?): dialogs with what /search and /help show as pages.
let dialog, request, typed;
const SEARCH_DELAY = 80;

// The event of the close comes later; until then a field in the dialog would take the next key.
function closeDialog() {
  dialog.close();
  dialog.remove();
}

function openDialog(name, label, content) {
  if (dialog?.open) { const isSame = dialog.dataset.name === name; closeDialog(); if (isSame) return undefined; }
  const opened = document.createElement("dialog");
  opened.className = "dialog";
  opened.dataset.name = name;
  opened.dataset.testid = name;
  opened.setAttribute("aria-label", label);
  opened.append(...content);
  opened.addEventListener("close", () => opened.remove());
  opened.addEventListener("click", (event) => { if (event.target === opened) opened.close(); });
  document.body.append(opened);
  opened.showModal();
  dialog = opened;
  return opened;
}

async function part(address, selector, signal) {
  const response = await fetch(address, { headers: { "HX-Request": "true" }, signal });
  if (response.status === 401) location.reload();
  const found = new DOMParser().parseFromString(await response.text(), "text/html").querySelector(selector);
  found?.removeAttribute("id");
  return found ?? "";
}

// Shows what the text finds; returns whether it is shown, as a later text replaces an earlier one.
async function search(text, results) {
  clearTimeout(typed);
  request?.abort();
  request = new AbortController();
  try {
    results.replaceChildren(await part(`/search?q=${encodeURIComponent(text)}`, "#results", request.signal));
    results.dataset.of = text;
    return true;
  } catch (error) {
    if (error.name !== "AbortError") results.textContent = "The control plane is unreachable.";
    return false;
  }
}

// Opens the first result of what is in the field now, which may not be what is shown yet.
async function openFirst(input, results) {
  const text = input.value;
  if (results.dataset.of !== text && !(await search(text, results))) return;
  if (input.isConnected && input.value === text) results.querySelector(".result")?.click();
}

function onPaletteKey(event, input, results) {
  const found = [...results.querySelectorAll(".result")];
  const at = found.indexOf(document.activeElement);
  if (event.key === "ArrowDown") found[Math.min(at + 1, found.length - 1)]?.focus();
  else if (event.key === "ArrowUp") (at > 0 ? found[at - 1] : input).focus();
  // In a search field the browser would only clear it.
  else if (event.key === "Escape") closeDialog();
  else if (event.key === "Enter" && at < 0) openFirst(input, results);
  else if (at >= 0 && event.key.length === 1 && !event.ctrlKey && !event.metaKey && event.key !== " ") { input.focus(); return; }
  else return;
  event.preventDefault();
}

export function openPalette() {
  const input = document.createElement("input");
  Object.assign(input, { type: "search", className: "input", placeholder: innerWidth > 760 ? "Application, deployment, piped, page or action" : "Find anything", autocomplete: "off" });
  input.setAttribute("aria-label", "Find anything");
  const results = document.createElement("div");
  results.setAttribute("aria-live", "polite");
  const opened = openDialog("palette", "Find anything", [input, results]);
  if (!opened) return;
  input.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(() => search(input.value, results), SEARCH_DELAY); });
  opened.addEventListener("keydown", (event) => onPaletteKey(event, input, results));
  search("", results);
}

export async function openHelp() {
  const close = document.createElement("form");
  close.method = "dialog";
  close.innerHTML = '<button class="btn small">Close</button> <a class="btn small" href="/help">Documentation</a>';
  const keys = await part("/help", "#keys");
  // The focus on a control below would scroll the first keys away.
  keys.tabIndex = -1;
  keys.autofocus = true;
  openDialog("help", "Keyboard shortcuts", [keys, close]);
}

export function startPalette() {
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-palette]")) { event.preventDefault(); openPalette(); }
  });
}
