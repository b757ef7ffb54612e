// The server says what changed, and the page fetches itself again.
import { append, logCursor, logState, resetLog } from "./log.js";
import { morph } from "./morph.js";
import { isWatching, news, notifyIfNew, showToggle, startNotifications } from "./notify.js";
import { openStream } from "./stream.js";

const STATE_TEXTS = { live: "Live", reconnecting: "Reconnecting", polling: "Polling", paused: "Paused" };
const main = () => document.getElementById("main");
let stream, isFollowing = false, pollTimer, isFetching = false, fetchAgain = false, lastFetch = 0;

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

const showOffline = (isOffline) => { document.getElementById("offline").hidden = !isOffline; };

export function announce(text) {
  const toast = document.createElement("p");
  toast.textContent = text;
  document.getElementById("toasts").append(toast);
  setTimeout(() => toast.remove(), 5000);
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
  if (active !== document.activeElement && active?.isConnected) active.focus({ preventScroll: true });
  document.title = main().dataset.title;
  if (title !== main().dataset.title) announce(main().dataset.title.replace(" · PipeCD", ""));
  notifyIfNew(oldNews, wasWatching);
  showToggle();
  if (topics !== main().dataset.topics) connect();
}

// At most two requests per second, and never two at once.
export async function refresh() {
  if (isFetching) { fetchAgain = true; return; }
  isFetching = true;
  await new Promise((done) => setTimeout(done, Math.max(0, lastFetch + 500 - Date.now())));
  lastFetch = Date.now();
  const address = location.href;
  const busyTimer = setTimeout(() => main().setAttribute("aria-busy", "true"), 400);
  try {
    const response = await fetch(address, { headers: { "HX-Request": "true", "HX-Log": logState() } });
    // The session has ended, or the page may no longer be shown: a reload says which.
    if ([401, 403, 404].includes(response.status)) { location.reload(); return; }
    if (response.ok && address === location.href) { apply(await response.text()); showOffline(!navigator.onLine); }
  } catch {
    showOffline(true);
  } finally {
    clearTimeout(busyTimer);
    main().removeAttribute("aria-busy");
    isFetching = false;
    if (fetchAgain) { fetchAgain = false; refresh(); }
  }
}

export async function navigate(address, push = true, replace = false) {
  if (push) history[replace ? "replaceState" : "pushState"](null, "", address);
  await refresh();
}

// All windows of a session share one stream, which a worker holds; without one each has its own.
const worker = (() => {
  const { worker: address, session } = document.documentElement.dataset;
  if (!address || !globalThis.SharedWorker) return undefined;
  const { port } = new SharedWorker(address, { name: `pipecd ${session}`, type: "module" });
  port.onmessage = ({ data }) => onReport(data);
  return port;
})();

function poll(isOn) {
  if (isOn === Boolean(pollTimer)) return;
  clearInterval(pollTimer);
  pollTimer = isOn ? setInterval(refresh, 1000 * Number(main().dataset.poll ?? 15)) : undefined;
  if (isOn) refresh();
}

function onReport(report) {
  if (!isFollowing) return;
  if (report.kind === "state") {
    showConnection(report.state);
    poll(report.state === "polling");
    if (report.state === "live") refresh();
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
  if (worker) return worker.postMessage({ topics: topics.split(","), cursor: logCursor(), isRetry });
  stream?.close();
  stream = openStream(topics, logCursor(), onReport);
}

export function startLiveUpdates() {
  const reconnect = () => connect(true);
  startNotifications(announce);
  connect();
  if (worker) setInterval(() => { if (isFollowing) worker.postMessage({ isAlive: true }); }, 30000);
  document.addEventListener("visibilitychange", () => connect());
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("offline", () => showOffline(true));
  window.addEventListener("online", () => { reconnect(); refresh(); });
  window.addEventListener("focus", () => connect());
  window.addEventListener("popstate", () => navigate(location.href, false));
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-retry]")) return;
    reconnect();
    refresh();
  });
}
