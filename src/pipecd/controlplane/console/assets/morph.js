// Makes a part of the page equal to a new one while touching as little as possible, so that focus,
// scroll positions, open menus and selected text stay.
function attributes(from, to) {
  for (const { name } of [...from.attributes]) {
    if (name !== "open" && !to.hasAttribute(name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (name !== "open" && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
}

function children(from, to) {
  const named = new Map([...from.children].filter((c) => c.id).map((c) => [c.id, c]));
  let next = from.firstChild;
  for (const want of [...to.childNodes]) {
    const alike = (node) => node && node.nodeName === want.nodeName && (node.id ?? "") === (want.id ?? "");
    const have = want.id ? named.get(want.id) : alike(next) ? next : null;
    if (have && alike(have)) {
      if (have === next) next = next.nextSibling;
      else from.insertBefore(have, next);
      morph(have, want);
    } else {
      from.insertBefore(want, next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

export function morph(from, to) {
  if (from.isEqualNode(to)) return;
  if (from.nodeType !== Node.ELEMENT_NODE) {
    from.nodeValue = to.nodeValue;
    return;
  }
  if (from.dataset.keep !== undefined && from.dataset.keep === to.dataset.keep) return;
  attributes(from, to);
  children(from, to);
}

// Rows of a list change in place or go; new ones wait until they are asked for, so that little jumps.
export function morphRows(from, to) {
  const wanted = new Map([...to.querySelectorAll("tr[id]")].map((row) => [row.id, row]));
  for (const row of from.querySelectorAll("tr[id]")) {
    if (!wanted.has(row.id)) row.remove();
    else morph(row, wanted.get(row.id).cloneNode(true));
    wanted.delete(row.id);
  }
  return wanted.size;
}
