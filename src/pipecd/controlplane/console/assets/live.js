// The server says what changed, and the page fetches itself again.
import { openGraph } from "./graph.js";
import { append, logCursor, logState, resetLog } from "./log.js";
import { morph } from "./morph.js";
import { isWatching, news, notifyIfNew, showToggle, startNotifications } from "./notify.js";
import { openStream } from "./stream.js";

const STATE_TEXTS = { live: "Live", reconnecting: "Reconnecting", polling: "Polling", paused: "Paused" };
const UNREACHABLE = "The control plane is unreachable; this page shows the last known state.";
const FAILED_UPDATE = "This page could not be updated and may be out of date. Reload it.";
const RETRY_INTERVAL = 5000;
// A shared worker answers sooner than this, even if the control plane does not.
const WORKER_TIMEOUT = 10000;
const main = () => document.getElementById("main");
// What the server is asked for: the fragment of an address is of no concern to it.
const requestedPage = () => location.pathname + location.search;
let stream, isFollowing = false, pollTimer, isFetching = false, fetchAgain = false, lastFetch = 0;
let retryTimer, focusAfter = "";

function showConnection(state) {
  const dot = document.querySelector(".live");
  if (!dot) return;
  dot.hidden = !state;
  dot.dataset.state = state;
  dot.lastElementChild.textContent = STATE_TEXTS[state] ?? "";
}

const currentStage = () => document.querySelector(".stage[aria-current]");

// Scrolls a long pipeline, never the page, so that the selected stage is visible.
export function showCurrentStage() {
  const stage = currentStage();
  const strip = stage?.closest(".pipeline");
  if (!strip) return;
  const [outer, inner] = [strip.getBoundingClientRect(), stage.getBoundingClientRect()];
  if (inner.left < outer.left || inner.right > outer.right) strip.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2;
}

// The bar above the page says why it may be out of date; without a reason it goes away.
function showOutdated(reason) {
  const bar = document.getElementById("offline");
  bar.hidden = !reason;
  if (reason) bar.querySelector("span").textContent = reason;
}

export function announce(text) {
  const toast = document.createElement("p");
  toast.textContent = text;
  // The newest only: two about one thing would contradict each other.
  document.getElementById("toasts").replaceChildren(toast);
  setTimeout(() => toast.remove(), 5000);
}

// What went wrong stays until it is closed, or until there is something newer to say.
export function announceError(text) {
  const toast = document.getElementById("error-toast").content.firstElementChild.cloneNode(true);
  toast.querySelector("span").textContent = text;
  toast.querySelector("button").addEventListener("click", () => toast.remove());
  document.getElementById("toasts").replaceChildren(toast);
}

function apply(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("main");
  if (!fresh) return;
  const [old, active] = [main(), document.activeElement];
  const { topics, title } = old.dataset;
  const [oldNews, wasWatching] = [news(), isWatching()];
  const shownLog = document.getElementById("lines")?.dataset.preserve;
  const lines = fresh.querySelector("#lines");
  const more = lines && lines.dataset.preserve === shownLog ? [...lines.children] : [];
  const cursor = lines?.dataset.cursor;
  const stage = currentStage()?.dataset.stageId;
  morph(old, fresh);
  append(more, cursor);
  if (lines && lines.dataset.preserve !== shownLog) resetLog();
  if (stage !== currentStage()?.dataset.stageId) showCurrentStage();
  openGraph();
  if (active !== document.activeElement && active?.isConnected) active.focus({ preventScroll: true });
  document.title = main().dataset.title;
  if (title !== main().dataset.title) announce(main().dataset.title.replace(" · PipeCD", ""));
  notifyIfNew(oldNews, wasWatching);
  showToggle();
  if (topics !== main().dataset.topics) connect();
}

function retryLater(reason) {
  showOutdated(reason);
  clearTimeout(retryTimer);
  retryTimer = setTimeout(refresh, RETRY_INTERVAL);
}

// Moves the focus to what a link has opened, or back to where a closed part was opened from.
function moveFocus() {
  if (!focusAfter) return;
  // The graph is there twice, and one of them is hidden.
  [...document.querySelectorAll(focusAfter)].find((each) => each.getClientRects().length)?.focus();
  focusAfter = "";
  if (document.activeElement === document.body) main().focus({ preventScroll: true });
}

async function fetchPage() {
  const address = requestedPage();
  let response, html;
  try {
    response = await fetch(address, { headers: { "HX-Request": "true", "HX-Log": logState() } });
    html = await response.text();
  } catch {
    return retryLater(UNREACHABLE);
  }
  // The session has ended, or the page may no longer be shown: a reload says which.
  if ([401, 403, 404].includes(response.status)) return location.reload();
  if (!response.ok) return retryLater(`The control plane answers with an error (${response.status}); this page shows the last known state.`);
  if (address !== requestedPage()) return undefined;
  clearTimeout(retryTimer);
  try {
    apply(html);
    showOutdated(navigator.onLine ? "" : UNREACHABLE);
  } catch (error) {
    showOutdated(FAILED_UPDATE);
    reportError(error);
  }
  return moveFocus();
}

// At most two updates per second, and never two at once; what a user asks for does not wait.
export async function refresh(isUrgent = false) {
  if (isFetching) { fetchAgain = true; return; }
  isFetching = true;
  if (isUrgent !== true) await new Promise((done) => setTimeout(done, Math.max(0, lastFetch + 500 - Date.now())));
  lastFetch = Date.now();
  const busyTimer = setTimeout(() => main().setAttribute("aria-busy", "true"), 400);
  await fetchPage();
  clearTimeout(busyTimer);
  main().removeAttribute("aria-busy");
  isFetching = false;
  if (fetchAgain) { fetchAgain = false; refresh(); }
}

export async function navigate(address, push = true, replace = false) {
  if (push) history[replace ? "replaceState" : "pushState"](null, "", address);
  await refresh(true);
}

// Follows a link within the page; `data-focus` is a selector of what gets the focus then.
export function followLink(link) {
  focusAfter = link.dataset.focus ?? "";
  navigate(link.getAttribute("href"));
}

// All windows of a session share one stream, which a worker holds; without one each has its own.
let worker = openWorker(), workerTimer;

function openWorker() {
  const { worker: address, session } = document.documentElement.dataset;
  if (!address || !globalThis.SharedWorker) return undefined;
  try {
    const shared = new SharedWorker(address, { name: `pipecd ${session}`, type: "module" });
    shared.onerror = abandonWorker;
    shared.port.onmessage = ({ data }) => { clearTimeout(workerTimer); if (data.kind !== "received") onReport(data); };
    return shared.port;
  } catch {
    return undefined;
  }
}

// The worker did not start, or does not answer: this window follows by itself.
function abandonWorker() {
  if (!worker) return;
  clearTimeout(workerTimer);
  worker.onmessage = null;
  worker = undefined;
  if (isFollowing) connect();
}

function poll(isOn) {
  if (isOn === Boolean(pollTimer)) return;
  clearInterval(pollTimer);
  pollTimer = isOn ? setInterval(refresh, 1000 * Number(main().dataset.poll ?? 15)) : undefined;
  if (isOn) refresh();
}

function onReport(report) {
  if (!isFollowing) return;
  if (report.kind === "state") {
    // What the stream may not follow is polled.
    const state = report.refused?.length ? "polling" : report.state;
    showConnection(state);
    poll(state === "polling");
    if (state === "live") refresh();
  } else if (report.kind === "change") {
    refresh();
  } else if (report.kind === "log") {
    const part = document.createElement("template");
    part.innerHTML = report.html;
    append([...part.content.children], report.cursor);
  } else {
    // The session has ended, or one of the windows may no longer follow what it shows.
    disconnect();
    showConnection("reconnecting");
    refresh();
    setTimeout(connect, 1000);
  }
}

function disconnect() {
  isFollowing = false;
  poll(false);
  clearTimeout(workerTimer);
  stream?.close();
  stream = undefined;
  worker?.postMessage({ topics: [] });
}

function connect(isRetry = false) {
  const topics = main()?.dataset.topics;
  if (!topics || (document.hidden && !isWatching())) {
    disconnect();
    return showConnection(topics ? "paused" : "");
  }
  isFollowing = true;
  if (worker) {
    clearTimeout(workerTimer);
    workerTimer = setTimeout(abandonWorker, WORKER_TIMEOUT);
    return worker.postMessage({ topics: topics.split(","), cursor: logCursor(), isRetry });
  }
  stream?.close();
  stream = openStream(topics, logCursor(), onReport);
}

export function startLiveUpdates() {
  const reconnect = () => connect(true);
  startNotifications(announce, announceError);
  connect();
  setInterval(() => { if (isFollowing) worker?.postMessage({ isAlive: true }); }, 30000);
  document.addEventListener("visibilitychange", () => connect());
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("offline", () => showOutdated(UNREACHABLE));
  window.addEventListener("online", () => { reconnect(); refresh(); });
  window.addEventListener("focus", () => connect());
  window.addEventListener("popstate", () => navigate(location.href, false));
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-retry]")) return;
    reconnect();
    refresh(true);
  });
}
