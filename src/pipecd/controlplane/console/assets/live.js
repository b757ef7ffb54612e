// One event stream per page: the server says what changed, and the page fetches itself again.
import { append, logCursor, logState, resetLog } from "./log.js";
import { morph, morphRows } from "./morph.js";

const STATE_TEXTS = { live: "Live", reconnecting: "Reconnecting", polling: "Polling", paused: "Paused" };
const SILENCE_TIMEOUT = 45000;
const main = () => document.getElementById("main");
let source, failures = 0, retryTimer, silenceTimer, pollTimer, isFetching = false, fetchAgain = false, lastFetch = 0;

function showConnection(state) {
  const dot = document.querySelector(".live");
  if (!dot) return;
  dot.hidden = !state;
  dot.dataset.state = state;
  dot.lastElementChild.textContent = STATE_TEXTS[state] ?? "";
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
  const rows = old.querySelector("[data-rows]");
  const newRows = fresh.querySelector("[data-rows]");
  if (rows && newRows) {
    const button = document.getElementById("new-rows");
    const added = morphRows(rows, newRows);
    for (const part of [".reason", ".foot"]) if (old.querySelector(part) && fresh.querySelector(part)) morph(old.querySelector(part), fresh.querySelector(part));
    button.hidden = added === 0;
    button.onclick = () => { button.hidden = true; morph(rows, newRows); };
  } else {
    const shownLog = document.getElementById("lines")?.dataset.preserve;
    const lines = fresh.querySelector("#lines");
    const more = lines && lines.dataset.preserve === shownLog ? [...lines.children] : [];
    const cursor = lines?.dataset.cursor;
    morph(old, fresh);
    append(more, cursor);
    if (lines && lines.dataset.preserve !== shownLog) resetLog();
  }
  if (active !== document.activeElement && active?.isConnected) active.focus({ preventScroll: true });
  document.title = main().dataset.title;
  if (title !== main().dataset.title) announce(main().dataset.title.replace(" · PipeCD", ""));
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
    if (response.status === 401) { location.reload(); return; }
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

export async function navigate(address, push = true) {
  if (push) history.pushState(null, "", address);
  await refresh();
}

function disconnect() {
  source?.close();
  source = undefined;
  for (const timer of [retryTimer, silenceTimer]) clearTimeout(timer);
}

function onEvent() {
  clearTimeout(silenceTimer);
  silenceTimer = setTimeout(onConnectionLost, SILENCE_TIMEOUT);
}

function onConnectionLost() {
  disconnect();
  failures += 1;
  showConnection(failures < 3 ? "reconnecting" : "polling");
  if (failures >= 3 && !pollTimer) pollTimer = setInterval(refresh, 1000 * Number(main().dataset.poll ?? 15));
  if (failures >= 3) refresh();
  const wait = failures === 1 ? 1000 : Math.min(3000 * 2 ** (failures - 2), failures < 3 ? 30000 : 60000);
  retryTimer = setTimeout(connect, wait * (0.75 + Math.random() / 2));
}

function connect() {
  disconnect();
  const topics = main()?.dataset.topics;
  if (!topics) return showConnection("");
  if (document.hidden) return showConnection("paused");
  const stream = new EventSource(`/_/stream?t=${encodeURIComponent(topics)}&after=${encodeURIComponent(logCursor())}`);
  source = stream;
  silenceTimer = setTimeout(onConnectionLost, 5000);
  stream.onerror = onConnectionLost;
  stream.addEventListener("hello", () => {
    failures = 0;
    clearInterval(pollTimer);
    pollTimer = undefined;
    showConnection("live");
    onEvent();
    refresh();
  });
  stream.addEventListener("heartbeat", onEvent);
  stream.addEventListener("change", () => { onEvent(); refresh(); });
  stream.addEventListener("log", (event) => {
    onEvent();
    const part = document.createElement("template");
    part.innerHTML = event.data;
    append([...part.content.children], event.lastEventId);
  });
  stream.addEventListener("close", (event) => {
    if (event.data === "restarting") return onConnectionLost();
    disconnect();
    showConnection("paused");
    if (event.data !== "replaced") location.reload();
  });
}

export function startLiveUpdates() {
  const reconnect = () => { failures = 0; connect(); };
  connect();
  document.addEventListener("visibilitychange", () => { if (document.hidden) { disconnect(); showConnection("paused"); } else { reconnect(); } });
  window.addEventListener("offline", () => showOffline(true));
  window.addEventListener("online", reconnect);
  window.addEventListener("focus", () => { if (!source) reconnect(); });
  window.addEventListener("popstate", () => navigate(location.href, false));
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-retry]")) return;
    reconnect();
    refresh();
  });
}
