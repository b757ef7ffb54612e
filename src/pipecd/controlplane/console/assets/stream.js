// One connection for server-sent events, in a page or in the worker that all windows share.
const SILENCE_TIMEOUT = 45000;

// Follows the topics and reports what happens as { kind, ... }:
//   state: "live" with the topics that were refused, "reconnecting", or "polling" when the stream
//     is unusable and pages must poll
//   change: the topics that changed; log: new lines as HTML and their cursor
//   closed: the session has ended, or a topic may no longer be followed
export function openStream(topics, cursor, report) {
  let source, failures = 0, retryTimer, silenceTimer, after = cursor;

  const disconnect = () => {
    source?.close();
    source = undefined;
    clearTimeout(retryTimer);
    clearTimeout(silenceTimer);
  };
  const onLost = () => {
    disconnect();
    failures += 1;
    report({ kind: "state", state: failures < 3 ? "reconnecting" : "polling" });
    const wait = failures === 1 ? 1000 : Math.min(3000 * 2 ** (failures - 2), failures < 3 ? 30000 : 60000);
    retryTimer = setTimeout(connect, wait * (0.75 + Math.random() / 2));
  };
  const onEvent = () => {
    clearTimeout(silenceTimer);
    silenceTimer = setTimeout(onLost, SILENCE_TIMEOUT);
  };
  function connect() {
    disconnect();
    source = new EventSource(`/_/stream?t=${encodeURIComponent(topics)}&after=${encodeURIComponent(after)}`);
    silenceTimer = setTimeout(onLost, 5000);
    source.onerror = onLost;
    source.addEventListener("hello", (event) => { failures = 0; onEvent(); report({ kind: "state", state: "live", refused: JSON.parse(event.data).refused }); });
    source.addEventListener("heartbeat", onEvent);
    source.addEventListener("change", (event) => { onEvent(); report({ kind: "change", topics: JSON.parse(event.data).topics }); });
    source.addEventListener("log", (event) => { onEvent(); after = event.lastEventId; report({ kind: "log", html: event.data, cursor: after }); });
    source.addEventListener("close", (event) => {
      if (event.data === "restarting") return onLost();
      if (event.data !== "replaced") { disconnect(); return report({ kind: "closed", reason: event.data }); }
      // Other browsers of this session have taken the streams of the server: this one polls, and says so.
      failures = 2;
      onLost();
    });
  }
  connect();
  return { close: disconnect };
}
