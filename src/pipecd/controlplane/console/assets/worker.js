// The shared worker of all windows of a session: one stream follows what any of them shows.
import { openStream } from "./stream.js";

const MAX_TOPICS = 20;
const FORGOTTEN_AFTER = 90000;
// What each window wants to follow, the window that was used last at the end.
const windows = new Map();
let stream, followed = "", state, logWindow;

const isLog = (topic) => topic.startsWith("log:");
// A stream sends the lines of one log; windows with other logs are told when theirs has grown.
const tailOf = (topic) => `tail:${topic.split(":").slice(1, 3).join(":")}`;
const topicsOf = (port) => windows.get(port).topics.map((topic) => (isLog(topic) && port !== logWindow ? tailOf(topic) : topic));

function follow(isForced = false) {
  for (const [port, { seen }] of windows) if (Date.now() - seen > FORGOTTEN_AFTER) windows.delete(port);
  const ports = [...windows.keys()].reverse();
  logWindow = ports.find((port) => windows.get(port).topics.some(isLog));
  const topics = new Set();
  for (const port of ports) {
    const missing = topicsOf(port).filter((topic) => !topics.has(topic));
    const fits = topics.size + missing.length <= MAX_TOPICS;
    windows.get(port).isFollowed = fits;
    if (fits) for (const topic of missing) topics.add(topic);
    else port.postMessage({ kind: "state", state: "polling" });
  }
  // The order of the windows must not make a difference.
  const wanted = [...topics].sort().join(",");
  if (wanted === followed && !isForced) return;
  stream?.close();
  stream = undefined;
  [followed, state] = [wanted, undefined];
  if (wanted) stream = openStream(wanted, logWindow ? windows.get(logWindow).cursor : "", onReport);
}

// The state of the stream for one window: only the topics that it follows itself matter to it.
const stateOf = (port) => ({ ...state, refused: (state.refused ?? []).filter((topic) => topicsOf(port).includes(topic)) });

function onReport(report) {
  if (report.kind === "state") state = report;
  if (report.kind === "log") { windows.get(logWindow).cursor = report.cursor; logWindow.postMessage(report); return; }
  for (const [port, { isFollowed }] of windows) {
    if (!isFollowed && report.kind !== "closed") continue;
    if (report.kind === "change" && !topicsOf(port).some((topic) => report.topics.includes(topic))) continue;
    port.postMessage(report.kind === "state" ? stateOf(port) : report);
  }
  if (report.kind !== "closed") return;
  // The windows fetch themselves, and those that still may follow something come back.
  windows.clear();
  follow();
}

onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.isAlive) { if (windows.has(port)) windows.get(port).seen = Date.now(); return; }
    const [before, old] = [stream, windows.get(port)];
    windows.delete(port);
    if (data.topics.length) windows.set(port, { topics: data.topics, cursor: data.cursor, seen: Date.now(), isFollowed: true });
    port.postMessage({ kind: "received" });
    follow(data.isRetry && state?.state !== "live");
    const isNew = old?.topics.join() !== data.topics.join();
    if (isNew && stream === before && state && windows.get(port)?.isFollowed) port.postMessage(stateOf(port));
  };
};
