// Notifications of the browser about what somebody waits for.
const storageKey = () => `notify ${location.pathname}`;
const toggle = () => document.querySelector("[data-notify-me]");

// What the page would notify about now; empty if it is nothing.
export const news = () => document.getElementById("main").dataset.news ?? "";

// Chrome on Android has notifications for service workers only: there the constructor throws, and
// without the permission it does nothing where it works.
let canNotify = "Notification" in globalThis && (Notification.permission === "granted" || isConstructible());

function isConstructible() {
  try {
    new Notification("").close();
    return true;
  } catch {
    return false;
  }
}

const isOffered = () => {
  const { page, topics, ended } = document.getElementById("main")?.dataset ?? {};
  return canNotify && Boolean(topics) && ended === undefined && ["deployment", "overview"].includes(page);
};

// Whether the page goes on following while it is hidden, to be able to notify.
export const isWatching = () => isOffered() && Notification.permission === "granted" && localStorage.getItem(storageKey()) === "1";

export function showToggle() {
  const button = toggle();
  if (!button) return;
  button.hidden = !isOffered();
  button.setAttribute("aria-pressed", String(isWatching()));
  button.lastElementChild.textContent = isWatching() ? "Notifications on" : "Notify me";
  button.title = `${isWatching() ? "You are" : "Be"} notified when ${button.dataset.notifyMe}`;
}

export function notifyIfNew(before, wasWatching) {
  const now = news();
  if (!wasWatching || !now || now === before || (document.hasFocus() && !document.hidden)) return;
  try {
    const shown = new Notification(now, { body: document.querySelector(".project").textContent, tag: location.pathname, icon: document.querySelector("link[rel=icon]").href });
    shown.onclick = () => { window.focus(); shown.close(); };
  } catch {
    canNotify = false;
  }
}

export function startNotifications(announce, announceError) {
  showToggle();
  document.addEventListener("click", async (event) => {
    if (!event.target.closest("[data-notify-me]")) return;
    if (isWatching()) { localStorage.removeItem(storageKey()); announce("You are not notified any more"); return showToggle(); }
    if ((await Notification.requestPermission()) !== "granted") return announceError("The browser blocks notifications of this site: allow them in its settings, left of the address");
    localStorage.setItem(storageKey(), "1");
    showToggle();
    announce(toggle().title);
  });
}
