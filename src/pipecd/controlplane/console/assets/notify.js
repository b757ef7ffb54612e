// Notifications of the browser about what somebody waits for: the end of a deployment, or an approval.
const storageKey = () => `notify ${location.pathname}`;
const toggle = () => document.querySelector("[data-notify-me]");
// What somebody who has asked for it is notified about, by page.
const OCCASIONS = { deployment: "this deployment ends or waits for an approval", overview: "a deployment waits for your approval" };
const occasion = () => OCCASIONS[document.getElementById("main").dataset.page];

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
  const { page, topics } = document.getElementById("main")?.dataset ?? {};
  return canNotify && Boolean(topics) && page in OCCASIONS;
};

// Whether the page goes on following while it is hidden, to be able to notify.
export const isWatching = () => isOffered() && Notification.permission === "granted" && localStorage.getItem(storageKey()) === "1";

export function showToggle() {
  const button = toggle();
  if (!button) return;
  button.hidden = !isOffered();
  if (button.hidden) return;
  button.setAttribute("aria-pressed", String(isWatching()));
  button.title = isWatching() ? `You are notified when ${occasion()}. Press to stop it.` : `A notification of the browser when ${occasion()}`;
}

export function notifyIfNew(before, wasWatching) {
  const now = news();
  if (!wasWatching || !now || now === before || (document.hasFocus() && !document.hidden)) return;
  try {
    const shown = new Notification(now, { body: `Project ${document.querySelector(".project").textContent}`, tag: location.pathname, icon: document.querySelector("link[rel=icon]").href });
    shown.onclick = () => { window.focus(); shown.close(); };
  } catch {
    canNotify = false;
  }
}

export function startNotifications(announce) {
  showToggle();
  document.addEventListener("click", async (event) => {
    if (!event.target.closest("[data-notify-me]")) return;
    if (isWatching()) { localStorage.removeItem(storageKey()); announce("You are not notified any more"); return showToggle(); }
    if ((await Notification.requestPermission()) !== "granted") return announce("The browser blocks notifications of this site: allow them beside its address, then try again");
    localStorage.setItem(storageKey(), "1");
    announce(`You are notified when ${occasion()}, as long as this window is open`);
    showToggle();
  });
}
