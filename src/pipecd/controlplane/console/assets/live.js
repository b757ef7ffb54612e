// One stream per page: the server says what changed and the page fetches itself anew.
import { append, have, place, resetLog } from "./log.js";
import { morph, morphRows } from "./morph.js";

const WORDS = { live: "Live", reconnecting: "Reconnecting", polling: "Polling", paused: "Paused" };
const SILENCE = 45000;
const main = () => document.getElementById("main");
let source, failures = 0, retry, silence, poll, busy = false, again = false, last = 0;

function show(state) {
  const dot = document.querySelector(".live");
  if (!dot) return;
  dot.hidden = !state;
  dot.dataset.state = state;
  dot.lastElementChild.textContent = WORDS[state] ?? "";
}

const offline = (is) => { document.getElementById("offline").hidden = !is; };

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
    const button = document.getElementById("fresh");
    const added = morphRows(rows, newRows);
    for (const part of [".reason", ".foot"]) if (old.querySelector(part) && fresh.querySelector(part)) morph(old.querySelector(part), fresh.querySelector(part));
    button.hidden = added === 0;
    button.onclick = () => { button.hidden = true; morph(rows, newRows); };
  } else {
    const kept = document.getElementById("lines")?.dataset.keep;
    const lines = fresh.querySelector("#lines");
    const more = lines && lines.dataset.keep === kept ? [...lines.children] : [];
    const at = lines?.dataset.place;
    morph(old, fresh);
    append(more, at);
    if (lines && lines.dataset.keep !== kept) resetLog();
  }
  if (active !== document.activeElement && active?.isConnected) active.focus({ preventScroll: true });
  document.title = main().dataset.title;
  if (title !== main().dataset.title) announce(main().dataset.title.replace(" · PipeCD", ""));
  if (topics !== main().dataset.topics) open();
}

// At most two requests per second, and never two at once.
export async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  await new Promise((done) => setTimeout(done, Math.max(0, last + 500 - Date.now())));
  last = Date.now();
  const address = location.href;
  const late = setTimeout(() => main().setAttribute("aria-busy", "true"), 400);
  try {
    const answer = await fetch(address, { headers: { "HX-Request": "true", "HX-Log": have() } });
    if (answer.status === 401) { location.reload(); return; }
    if (answer.ok && address === location.href) { apply(await answer.text()); offline(!navigator.onLine); }
  } catch {
    offline(true);
  } finally {
    clearTimeout(late);
    main().removeAttribute("aria-busy");
    busy = false;
    if (again) { again = false; refresh(); }
  }
}

export async function visit(address, push = true) {
  if (push) history.pushState(null, "", address);
  await refresh();
}

function close() {
  source?.close();
  source = undefined;
  for (const timer of [retry, silence]) clearTimeout(timer);
}

function heard() {
  clearTimeout(silence);
  silence = setTimeout(lost, SILENCE);
}

function lost() {
  close();
  failures += 1;
  show(failures < 3 ? "reconnecting" : "polling");
  if (failures >= 3 && !poll) poll = setInterval(refresh, 1000 * Number(main().dataset.poll ?? 15));
  if (failures >= 3) refresh();
  const wait = failures === 1 ? 1000 : Math.min(3000 * 2 ** (failures - 2), failures < 3 ? 30000 : 60000);
  retry = setTimeout(open, wait * (0.75 + Math.random() / 2));
}

function open() {
  close();
  const topics = main()?.dataset.topics;
  if (!topics) return show("");
  if (document.hidden) return show("paused");
  const stream = new EventSource(`/_/stream?t=${encodeURIComponent(topics)}&after=${encodeURIComponent(place())}`);
  source = stream;
  silence = setTimeout(lost, 5000);
  stream.onerror = lost;
  stream.addEventListener("hello", () => {
    failures = 0;
    clearInterval(poll);
    poll = undefined;
    show("live");
    heard();
    refresh();
  });
  stream.addEventListener("beat", heard);
  stream.addEventListener("change", () => { heard(); refresh(); });
  stream.addEventListener("log", (event) => {
    heard();
    const part = document.createElement("template");
    part.innerHTML = event.data;
    append([...part.content.children], event.lastEventId);
  });
  stream.addEventListener("bye", (event) => {
    if (event.data === "restarting") return lost();
    close();
    show("paused");
    if (event.data !== "replaced") location.reload();
  });
}

export function startLive() {
  const comeBack = () => { failures = 0; open(); };
  open();
  document.addEventListener("visibilitychange", () => { if (document.hidden) { close(); show("paused"); } else { comeBack(); } });
  window.addEventListener("offline", () => offline(true));
  window.addEventListener("online", comeBack);
  window.addEventListener("focus", () => { if (!source) comeBack(); });
  window.addEventListener("popstate", () => visit(location.href, false));
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-retry]")) return;
    comeBack();
    refresh();
  });
}
