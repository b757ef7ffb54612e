// The log: new lines, following its end, finding text on the server, choosing lines, wrapping.
import { copyText } from "./clipboard.js";
import { announce, announceError, navigate } from "./live.js";

const MAX_LINES = 5000;
const logBox = () => document.getElementById("lines");
const tool = (name) => document.querySelector(`[data-${name}]`);
let unreadLines = 0;

const following = () => tool("follow")?.getAttribute("aria-pressed") === "true";
const hasEnd = () => logBox()?.dataset.end === "1";

function follow(on) {
  tool("follow")?.setAttribute("aria-pressed", String(on));
  if (on) {
    unreadLines = 0;
    logBox()?.scrollTo({ top: logBox().scrollHeight });
  }
  updateFollowLabel();
}

function updateFollowLabel() {
  const button = tool("follow");
  if (!button) return;
  // There is nothing to follow in the log of a stage that has ended, unless a line comes late.
  button.hidden = !hasEnd() || (logBox().dataset.grows === "0" && !unreadLines);
  button.textContent = unreadLines ? `${unreadLines} new ${unreadLines === 1 ? "line" : "lines"}` : "Follow";
}

export const logCursor = () => logBox()?.dataset.cursor ?? "";

// Which log the page has and how far, so that the server sends only new lines.
export const logState = () => (logBox() ? `${encodeURIComponent(logBox().dataset.preserve)} ${hasEnd() ? logCursor() : "-"}` : "");

const number = (line) => Number(line.id.slice(1));

// Appends lines of the stream or of a fetched page, without those that are shown already.
export function append(lines, cursor) {
  const list = logBox();
  if (!list || !lines.length || !hasEnd()) return;
  if (cursor) list.dataset.cursor = cursor;
  const last = list.querySelector("li[id]:last-of-type");
  const find = tool("find")?.getAttribute("value")?.toLowerCase() ?? "";
  const isMatch = (line) => Boolean(find) && line.querySelector("code").textContent.toLowerCase().includes(find);
  const isError = (line) => line.dataset.sev === "error";
  const isShown = (line) => (list.dataset.only !== "errors" || isError(line)) && (!list.dataset.only || !find || isMatch(line));
  const newLines = lines.filter((line) => line.id && (!last || number(line) > number(last)));
  addErrors(newLines.filter(isError).length);
  addMatches(newLines.filter(isMatch).length);
  const shown = newLines.filter(isShown);
  if (!shown.length) return;
  list.querySelector(".empty-log")?.remove();
  list.append(...shown);
  trim(list);
  if (following()) list.scrollTo({ top: list.scrollHeight });
  else unreadLines += shown.length;
  updateFollowLabel();
}

function addErrors(more) {
  const counter = tool("error-count");
  if (counter && more) counter.textContent = (Number(counter.textContent.replaceAll(",", "")) + more).toLocaleString("en");
}

// A stream brings more matches: they are counted, and the match after the last one is not the first.
function addMatches(more) {
  const counter = tool("match-total");
  if (!counter || !more) return;
  const [at, total] = [Number(counter.dataset.matchAt) || 1, Number(counter.dataset.matchTotal) + more];
  Object.assign(counter.dataset, { matchAt: at, matchTotal: total });
  counter.textContent = `${at.toLocaleString("en")} of ${total.toLocaleString("en")}`;
  for (const part of document.querySelectorAll("[data-if-found]")) part.hidden = false;
  const point = (name, match) => document.querySelector(`[data-match=${name}]`).setAttribute("href", withParams({ match, from: "", at: "" }).href);
  point("next", at < total ? at + 1 : 1);
  point("previous", at > 1 ? at - 1 : total);
}

// Keeps the page small; the lines that go can be shown again.
function trim(list) {
  const all = list.querySelectorAll("li[id]");
  const excess = all.length - MAX_LINES;
  if (excess <= 0) return;
  for (let i = 0; i < excess; i += 1) all[i].remove();
  const first = number(all[excess]);
  let note = list.querySelector("[data-side=before]");
  if (!note) {
    note = document.createElement("li");
    note.className = "omitted";
    note.dataset.side = "before";
    list.prepend(note);
  }
  const link = document.createElement("a");
  link.href = withParams({ from: Math.max(1, first - 1000), at: "", match: "" });
  link.dataset.more = "before";
  link.textContent = "Show earlier lines";
  note.replaceChildren(link);
}

function withParams(changes) {
  const here = new URL(location);
  for (const [name, value] of Object.entries(changes)) {
    if (value) here.searchParams.set(name, value);
    else here.searchParams.delete(name);
  }
  here.searchParams.delete("cmd");
  return here;
}

// Inserts the lines before or after those that are shown, where the reader stays.
async function showMore(link) {
  const list = logBox();
  const side = link.dataset.more;
  const response = await fetch(link.href, { headers: { "HX-Request": "true" } });
  if (!response.ok || !list.isConnected) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("lines");
  if (!fresh) return;
  const lines = [...fresh.querySelectorAll("li[id]")].filter((line) => !document.getElementById(line.id));
  const note = list.querySelector(`[data-side=${side}]`);
  const next = fresh.querySelector(`[data-side=${side}]`);
  const [height, top] = [list.scrollHeight, list.scrollTop];
  if (side === "before") note.after(...lines);
  else note.before(...lines);
  if (next) note.replaceWith(next);
  else note.remove();
  if (side === "before") list.scrollTop = top + list.scrollHeight - height;
  if (side === "after" && !next) {
    list.dataset.end = "1";
    list.dataset.cursor = fresh.dataset.cursor;
    navigate(location.href, false);
  }
  updateFollowLabel();
  (lines[side === "before" ? lines.length - 1 : 0]?.querySelector(".n"))?.focus({ preventScroll: true });
}

// Lines that a permalink or the reader has chosen: #L10 or #L10-L20.
const RANGE = /^#L(\d+)(?:-L(\d+))?$/;
let firstChosen = 0;

function chosenRange() {
  const found = RANGE.exec(location.hash);
  if (!found) return null;
  const [a, b] = [Number(found[1]), Number(found[2] ?? found[1])];
  return [Math.min(a, b), Math.max(a, b)];
}

const chosenLines = () => [...(logBox()?.querySelectorAll("li.chosen") ?? [])];

function showChosen() {
  const range = chosenRange();
  for (const line of chosenLines()) line.classList.remove("chosen");
  const bar = tool("chosen");
  if (bar) bar.hidden = !range;
  if (!range || !logBox()) return;
  for (const line of logBox().querySelectorAll("li[id]")) if (number(line) >= range[0] && number(line) <= range[1]) line.classList.add("chosen");
  tool("chosen-text").textContent = range[0] === range[1] ? `Line ${range[0]}` : `Lines ${range[0]} to ${range[1]}`;
}

function choose(line, extend) {
  const at = number(line);
  const range = chosenRange();
  if (!extend || !range) firstChosen = at;
  else if (firstChosen < range[0] || firstChosen > range[1]) firstChosen = range[0];
  const [from, to] = [Math.min(firstChosen, at), Math.max(firstChosen, at)];
  history.replaceState(history.state, "", from === to ? `#L${from}` : `#L${from}-L${to}`);
  follow(false);
  showChosen();
}

// Shows the chosen lines or the current match; the page may have to fetch them.
function showTarget() {
  const range = chosenRange();
  const list = logBox();
  showChosen();
  if (!list) return;
  const target = range ? document.getElementById(`L${range[0]}`) : list.querySelector("li.current");
  if (range && !target && new URL(location).searchParams.get("at") !== range.join("-")) {
    navigate(withParams({ at: range.join("-"), from: "", match: "", find: "", only: "" }).href, true, true);
    return;
  }
  if (!target) return;
  follow(false);
  list.scrollTop += target.getBoundingClientRect().top - list.getBoundingClientRect().top - list.clientHeight / 3;
  target.scrollIntoView({ block: "nearest" });
}

// The server has all the lines, of which the page may show only a part.
async function chosenText([first, last]) {
  const lines = chosenLines();
  if (lines.length === last - first + 1) return lines.map((line) => line.querySelector("code").textContent).join("\n");
  const response = await fetch(`${logBox().dataset.file}?times=0&lines=${first}-${last}`);
  return response.ok ? (await response.text()).replace(/\n$/, "") : undefined;
}

async function copyLines() {
  const text = await chosenText(chosenRange()).catch(() => undefined);
  if (text === undefined || !(await copyText(text))) return announceError("The lines could not be copied");
  const count = text.split("\n").length;
  return announce(count === 1 ? "Line copied" : `${count.toLocaleString("en")} lines copied`);
}

async function copyLink() {
  const range = chosenRange();
  const link = withParams({ stage: document.querySelector(".stage[aria-current]")?.dataset.stageId, at: range.join("-"), from: "", find: "", match: "", only: "" });
  if (await copyText(link.href)) announce("Link copied");
  else announceError("The link could not be copied");
}

let typingTimer;

// Spaces count, as in "batch 5 ", but nothing else than spaces is nothing to find.
const textToFind = (input) => input.value.trim() && input.value;

function find(text) {
  clearTimeout(typingTimer);
  const only = logBox()?.dataset.only === "errors" ? "errors" : "";
  const address = withParams({ find: text, only, match: "", from: "", at: "", stage: document.querySelector("[data-find-form] [name=stage]").value });
  address.hash = "";
  navigate(address.href, true, true);
}

function onFindKey(event) {
  const input = event.target;
  const text = textToFind(input);
  if (event.key === "Escape") { input.value = ""; find(""); }
  if (event.key !== "Enter") return;
  event.preventDefault();
  if (text !== (new URL(location).searchParams.get("find") ?? "")) return find(text);
  document.querySelector(`[data-match=${event.shiftKey ? "previous" : "next"}]`)?.click();
}

// Switches that only change how the lines look: `data-line-style` is the class of lines without it.
function setLineStyle(button, isOn) {
  logBox().classList.toggle(button.dataset.lineStyle, !isOn);
  if (isOn) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
}

function toggleLineStyle(button) {
  const { param } = button.dataset;
  const isOn = !button.hasAttribute("aria-current");
  setLineStyle(button, isOn);
  const isUsual = isOn !== (param === "times" && isNarrow());
  history.replaceState(history.state, "", withParams({ [param]: isUsual ? "" : Number(isOn).toString() }));
}

// A phone has no room for times: there they are off unless the address asks for them.
const isNarrow = () => matchMedia("(max-width: 760px)").matches;

function showUsualTimes() {
  const button = document.querySelector("[data-param=times]");
  if (button && isNarrow() && logBox()) setLineStyle(button, new URL(location).searchParams.get("times") === "1");
}

function showFullScreen(isFull) {
  document.documentElement.classList.toggle("full-log", isFull);
  tool("full-screen")?.setAttribute("aria-pressed", String(isFull));
  if (following()) follow(true);
}

const isFullScreen = () => document.documentElement.classList.contains("full-log");

export function startLog() {
  const params = new URL(location).searchParams;
  const isPlaced = RANGE.test(location.hash) || ["at", "from", "find"].some((name) => params.get(name)) || params.get("follow") === "0";
  showUsualTimes();
  follow(!isPlaced && hasEnd());
  showTarget();
  window.addEventListener("hashchange", showTarget);
  document.addEventListener("click", (event) => {
    const line = event.target.closest(".lines .n");
    if (line && !event.ctrlKey && !event.metaKey) { event.preventDefault(); return choose(line.parentElement, event.shiftKey); }
    const more = event.target.closest("[data-more]");
    if (more && !event.ctrlKey && !event.metaKey) { event.preventDefault(); return showMore(more); }
    const button = event.target.closest("[data-follow], [data-line-style], [data-full-screen], [data-copy-lines], [data-copy-link], [data-forget]");
    if (!button) return;
    if (button.matches("[data-line-style]")) { event.preventDefault(); return toggleLineStyle(button); }
    if (button.matches("[data-full-screen]")) return showFullScreen(!isFullScreen());
    if (button.matches("[data-copy-lines]")) return copyLines();
    if (button.matches("[data-copy-link]")) return copyLink();
    if (button.matches("[data-forget]")) { history.replaceState(history.state, "", location.pathname + location.search); return showChosen(); }
    follow(!following() || unreadLines > 0);
    // The end of the log may be below the window.
    if (following()) logBox()?.lastElementChild?.scrollIntoView({ block: "nearest" });
  });
  document.addEventListener("submit", (event) => { if (event.target.matches("[data-find-form]")) { event.preventDefault(); find(textToFind(tool("find"))); } });
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-find]")) return;
    clearTimeout(typingTimer);
    typingTimer = setTimeout(() => find(textToFind(event.target)), 300);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches?.("[data-find]")) onFindKey(event);
    else if (event.key === "Escape" && !document.querySelector("dialog[open]")) showFullScreen(false);
  });
  // Scrolling up stops following; scrolling to the end starts it again.
  document.addEventListener("wheel", (event) => { if (event.deltaY < 0 && event.target.closest?.("#lines")) follow(false); }, { passive: true });
  document.addEventListener("scroll", (event) => {
    const list = event.target;
    if (list.id !== "lines") return;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 4;
    if (atEnd && !following() && hasEnd() && !chosenRange() && !list.querySelector("li.current")) follow(true);
  }, true);
}

// Other lines are shown now: those of another stage, or what was found.
export function resetLog() {
  showUsualTimes();
  if (isFullScreen()) showFullScreen(Boolean(logBox()));
  unreadLines = 0;
  const input = tool("find");
  if (input && input !== document.activeElement) input.value = input.getAttribute("value") ?? "";
  const isPlaced = chosenRange() || logBox()?.querySelector("li.current");
  follow(!isPlaced && hasEnd());
  showTarget();
}
