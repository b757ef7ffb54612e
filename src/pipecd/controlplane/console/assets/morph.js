// Updates a part of the page to a new version with as few changes as possible, so that focus, scroll
// positions, open menus and selected text stay.
function morphAttributes(from, to) {
  for (const { name } of [...from.attributes]) {
    if (name !== "open" && !to.hasAttribute(name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (name !== "open" && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
}

// What the reader has opened or closed stays, but what the server newly opens must be seen: it
// says in `data-opens` whether it opens a part by itself.
function morphOpenState(from, to) {
  if (to.dataset.opens === "1" && from.dataset.opens === "0") from.open = true;
}

function morphChildren(from, to) {
  const byId = new Map([...from.children].filter((c) => c.id).map((c) => [c.id, c]));
  const wanted = new Set([...to.children].map((c) => c.id).filter(Boolean));
  let next = from.firstChild;
  // Nodes that are gone are removed rather than the others moved, which would lose a selection.
  const dropUntil = (node) => {
    while (next && next !== node && !wanted.has(next.id)) {
      const dropped = next;
      next = next.nextSibling;
      dropped.remove();
    }
  };
  for (const target of [...to.childNodes]) {
    const matches = (node) => node && node.nodeName === target.nodeName && (node.id ?? "") === (target.id ?? "");
    const existing = target.id ? byId.get(target.id) : matches(next) ? next : null;
    if (existing && matches(existing)) {
      dropUntil(existing);
      if (existing === next) next = next.nextSibling;
      else from.insertBefore(existing, next);
      morph(existing, target);
    } else {
      from.insertBefore(target, next);
    }
  }
  while (next) {
    const removed = next;
    next = next.nextSibling;
    removed.remove();
  }
}

export function morph(from, to) {
  if (from.isEqualNode(to)) return;
  if (from.nodeType !== Node.ELEMENT_NODE) {
    from.nodeValue = to.nodeValue;
    return;
  }
  if (from.dataset.preserve !== undefined && from.dataset.preserve === to.dataset.preserve) return;
  // Other lines of a log have nothing in common with those before.
  if (from.matches("ol[data-preserve]")) { from.replaceWith(to); return; }
  if (from instanceof HTMLDetailsElement) morphOpenState(from, to);
  morphAttributes(from, to);
  morphChildren(from, to);
}
