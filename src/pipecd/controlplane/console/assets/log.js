// The log: new lines, following its end, finding text, wrapping.
const MAX_LINES = 5000;
const logBox = () => document.getElementById("lines");
const tool = (name) => document.querySelector(`[data-${name}]`);
let unreadLines = 0;

const following = () => tool("follow")?.getAttribute("aria-pressed") === "true";

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
  if (button) button.textContent = unreadLines ? `${unreadLines} new ${unreadLines === 1 ? "line" : "lines"}` : "Follow";
}

export const logCursor = () => logBox()?.dataset.cursor ?? "";

// Which log the page has and how far, so that the server sends only new lines.
export const logState = () => (logBox() ? `${encodeURIComponent(logBox().dataset.preserve)} ${logCursor()}` : "");

const number = (line) => Number(line.id.slice(1));

// Appends lines of the stream or of a fetched page, without those that are shown already.
export function append(lines, cursor) {
  const list = logBox();
  if (!list || !lines.length) return;
  const last = list.querySelector("li[id]:last-of-type");
  const newLines = lines.filter((line) => line.id && (!last || number(line) > number(last)));
  if (!newLines.length) return;
  list.querySelector(".empty-log")?.remove();
  list.append(...newLines);
  if (cursor) list.dataset.cursor = cursor;
  const all = list.querySelectorAll("li[id]");
  for (let i = 0; i < all.length - MAX_LINES; i += 1) all[i].remove();
  if (following()) list.scrollTo({ top: list.scrollHeight });
  else unreadLines += newLines.length;
  updateFollowLabel();
  if (tool("find")?.value) find(0);
}

let matches = [];
let currentMatch = -1;

function find(step, isTyped = false) {
  const text = tool("find").value.toLowerCase();
  for (const line of matches) line.classList.remove("found");
  matches = text ? [...logBox().querySelectorAll("li[id]")].filter((line) => line.textContent.toLowerCase().includes(text)) : [];
  currentMatch = matches.length ? (Math.max(currentMatch, 0) + step + matches.length) % matches.length : -1;
  tool("match-count").textContent = text ? `${currentMatch + 1} of ${matches.length}` : "";
  for (const line of matches) line.classList.add("found");
  if (!(step || isTyped) || !matches[currentMatch]) return;
  follow(false);
  matches[currentMatch].scrollIntoView({ block: "nearest" });
}

export function startLog() {
  const url = new URL(location);
  follow(!location.hash.startsWith("#L") && url.searchParams.get("follow") !== "0");
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-follow], [data-wrap]");
    if (!button) return;
    if (button.matches("[data-follow]")) return follow(!following() || unreadLines > 0);
    const wraps = logBox().classList.toggle("nowrap") === false;
    button.setAttribute("aria-pressed", String(wraps));
    const here = new URL(location);
    here.searchParams.set("wrap", wraps ? "1" : "0");
    history.replaceState(history.state, "", here);
  });
  document.addEventListener("input", (event) => { if (event.target.matches("[data-find]")) { currentMatch = -1; find(0, true); } });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches?.("[data-find]")) return;
    if (event.key === "Enter") find(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { event.target.value = ""; find(0); }
  });
  // Scrolling up stops following; scrolling to the end starts it again.
  document.addEventListener("wheel", (event) => { if (event.deltaY < 0 && event.target.closest?.("#lines")) follow(false); }, { passive: true });
  document.addEventListener("scroll", (event) => {
    const list = event.target;
    if (list.id !== "lines") return;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 4;
    if (atEnd && !following()) follow(true);
  }, true);
}

export const resetLog = () => { unreadLines = 0; matches = []; currentMatch = -1; follow(true); };
