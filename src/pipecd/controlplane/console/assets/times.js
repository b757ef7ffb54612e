// Updates relative times and running durations, by the same rules as formatting.py.
const UNITS = [[31536000, "year"], [2592000, "month"], [86400, "day"]];
const pad = (number) => String(number).padStart(2, "0");

export function ago(seconds) {
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  const [length, unit] = UNITS.find(([size]) => seconds >= size);
  const number = Math.floor(seconds / length);
  return `${number} ${unit}${number === 1 ? "" : "s"} ago`;
}

export function duration(seconds) {
  const s = Math.max(seconds, 0);
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${pad(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${pad(Math.floor((s % 3600) / 60))}m`;
  return `${Math.floor(s / 86400)}d ${pad(Math.floor((s % 86400) / 3600))}h`;
}

// Times are relative to the clock of the server, as that of the browser may be wrong.
const offset = Date.parse(document.documentElement.dataset.now ?? new Date()) - Date.now();

function tick() {
  const since = (iso) => Math.floor((Date.now() + offset - Date.parse(iso)) / 1000);
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  for (const time of document.querySelectorAll("time[data-ago]")) write(time, ago(since(time.dateTime)));
  for (const time of document.querySelectorAll("time[data-until]")) write(time, duration(-since(time.dateTime)));
  for (const span of document.querySelectorAll("[data-since]")) write(span, duration(since(span.dataset.since)));
}

// Tells the server the time zone of this browser; returns whether this page has times of another one.
export function rememberZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  document.cookie = `tz=${zone}; path=/; max-age=31536000; samesite=strict`;
  return document.documentElement.dataset.zone !== zone;
}

export function startClock() {
  if (!new URLSearchParams(location.search).has("freeze")) setInterval(tick, 1000);
}
