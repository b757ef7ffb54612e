// The log: new lines, following its end, finding text, wrapping.
const MOST_LINES = 5000;
const box = () => document.getElementById("lines");
const tool = (name) => document.querySelector(`[data-${name}]`);
let unseen = 0;

const following = () => tool("follow")?.getAttribute("aria-pressed") === "true";

function follow(on) {
  tool("follow")?.setAttribute("aria-pressed", String(on));
  if (on) {
    unseen = 0;
    box()?.scrollTo({ top: box().scrollHeight });
  }
  label();
}

function label() {
  const button = tool("follow");
  if (button) button.textContent = unseen ? `${unseen} new ${unseen === 1 ? "line" : "lines"}` : "Follow";
}

export const place = () => box()?.dataset.place ?? "";

// What this page has of which log, so that the server sends only the rest.
export const have = () => (box() ? `${encodeURIComponent(box().dataset.keep)} ${place()}` : "");

const number = (line) => Number(line.id.slice(1));

// Takes lines from wherever they come; those that are there already do not count.
export function append(lines, at) {
  const into = box();
  if (!into || !lines.length) return;
  const last = into.querySelector("li[id]:last-of-type");
  const fresh = lines.filter((line) => line.id && (!last || number(line) > number(last)));
  if (!fresh.length) return;
  into.querySelector(".none")?.remove();
  into.append(...fresh);
  if (at) into.dataset.place = at;
  const all = into.querySelectorAll("li[id]");
  for (let i = 0; i < all.length - MOST_LINES; i += 1) all[i].remove();
  if (following()) into.scrollTo({ top: into.scrollHeight });
  else unseen += fresh.length;
  label();
  if (tool("find")?.value) find(0);
}

let found = [];
let current = -1;

function find(step, isTyped = false) {
  const text = tool("find").value.toLowerCase();
  for (const line of found) line.classList.remove("found");
  found = text ? [...box().querySelectorAll("li[id]")].filter((line) => line.textContent.toLowerCase().includes(text)) : [];
  current = found.length ? (Math.max(current, 0) + step + found.length) % found.length : -1;
  tool("found").textContent = text ? `${current + 1} of ${found.length}` : "";
  for (const line of found) line.classList.add("found");
  if (!(step || isTyped) || !found[current]) return;
  follow(false);
  found[current].scrollIntoView({ block: "nearest" });
}

export function startLog() {
  const url = new URL(location);
  follow(!location.hash.startsWith("#L") && url.searchParams.get("follow") !== "0");
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-follow], [data-wrap]");
    if (!button) return;
    if (button.matches("[data-follow]")) return follow(!following() || unseen > 0);
    const wraps = box().classList.toggle("nowrap") === false;
    button.setAttribute("aria-pressed", String(wraps));
    const here = new URL(location);
    here.searchParams.set("wrap", wraps ? "1" : "0");
    history.replaceState(history.state, "", here);
  });
  document.addEventListener("input", (event) => { if (event.target.matches("[data-find]")) { current = -1; find(0, true); } });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches?.("[data-find]")) return;
    if (event.key === "Enter") find(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { event.target.value = ""; find(0); }
  });
  // Scrolling up means reading; scrolling back to the end means following again.
  document.addEventListener("wheel", (event) => { if (event.deltaY < 0 && event.target.closest?.("#lines")) follow(false); }, { passive: true });
  document.addEventListener("scroll", (event) => {
    const lines = event.target;
    if (lines.id !== "lines") return;
    const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 4;
    if (atEnd && !following()) follow(true);
  }, true);
}

export const resetLog = () => { unseen = 0; found = []; current = -1; follow(true); };
