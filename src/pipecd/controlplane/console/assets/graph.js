// The graph of live resources: dragged with the pointer, zoomed with buttons or Ctrl and the wheel.
const MIN_ZOOM = 0.25, MAX_ZOOM = 2;
let zoom = 1;
const zoomStyle = new CSSStyleSheet();

// The graph is there twice: a narrow window shows the second one, which fits and is not zoomed.
const shown = (graph) => [...graph.querySelectorAll("svg")].find((each) => each.getClientRects().length);

// A style sheet keeps the zoom while live updates replace the attributes of the graph.
function setZoom(value) {
  zoom = Math.min(MAX_ZOOM, Math.max(MIN_ZOOM, value));
  zoomStyle.replaceSync(`.graph .wide { zoom: ${zoom}; }`);
}

function fit(graph) {
  const picture = shown(graph);
  const [width, height] = ["width", "height"].map((side) => Number(picture.getAttribute(side)));
  setZoom(Math.min(1, graph.clientWidth / width, Math.max(graph.clientHeight, 320) / height));
}

// A graph that opens shows its whole width as long as it can be read; from then on the reader zooms.
const READABLE = 0.7;
let isOpen = false;

export function openGraph() {
  const graph = document.querySelector("[data-graph]");
  if (graph && !isOpen) setZoom(Math.min(1, Math.max(READABLE, graph.clientWidth / Number(shown(graph).getAttribute("width")))));
  isOpen = Boolean(graph);
}

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

// The box that is nearest in the direction of an arrow; what is beside it counts as farther away.
function neighbour(box, [right, down]) {
  const centre = (each) => { const { x, y, width, height } = each.getBoundingClientRect(); return [x + width / 2, y + height / 2]; };
  const [x, y] = centre(box);
  const distance = (each) => {
    const [dx, dy] = [centre(each)[0] - x, centre(each)[1] - y];
    const [ahead, aside] = right ? [dx * right, Math.abs(dy)] : [dy * down, Math.abs(dx)];
    return ahead > 1 ? ahead + 3 * aside : Infinity;
  };
  const others = [...box.closest("svg").querySelectorAll(".box")].filter((each) => distance(each) < Infinity);
  return others.sort((a, b) => distance(a) - distance(b))[0];
}

function onGraphKey(event) {
  const graph = event.target.closest?.("[data-graph]");
  if (!graph || !ARROWS[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  const box = event.target.closest(".box");
  event.preventDefault();
  (box ? neighbour(box, ARROWS[event.key]) : shown(graph).querySelector(".box"))?.focus();
}

// How many rows a form is about, beside the button that opens it: they may be out of sight.
function showTicked() {
  for (const shown of document.querySelectorAll("[data-ticked]")) {
    const count = document.querySelectorAll(`input[name="${shown.dataset.ticked}"]:checked`).length;
    shown.firstElementChild.textContent = count;
    shown.hidden = count === 0;
  }
}

export function startGraph() {
  document.adoptedStyleSheets.push(zoomStyle);
  openGraph();
  let drag = null;
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-zoom]");
    const graph = document.querySelector("[data-graph]");
    if (button && graph) {
      if (button.dataset.zoom === "fit") fit(graph);
      else setZoom(zoom * (button.dataset.zoom === "in" ? 1.25 : 0.8));
    }
    const all = event.target.closest("[data-open-all]");
    if (all) for (const each of document.querySelectorAll(all.dataset.openAll)) each.open = all.dataset.open === "true";
  });
  showTicked();
  document.addEventListener("change", (event) => {
    const name = event.target.dataset?.tickAll;
    if (name) for (const each of document.querySelectorAll(`input[name="${name}"]:not(:disabled)`)) each.checked = event.target.checked && !("tickAlone" in each.dataset);
    showTicked();
  });
  document.addEventListener("wheel", (event) => {
    if (!event.ctrlKey || !event.target.closest?.("[data-graph]")) return;
    event.preventDefault();
    setZoom(zoom * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
  }, { passive: false });
  document.addEventListener("pointerdown", (event) => {
    const graph = event.target.closest?.("[data-graph]");
    if (graph && event.button === 0 && event.pointerType === "mouse") drag = { graph, x: event.clientX, y: event.clientY, moved: false };
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 5) return;
    drag.graph.scrollBy(-dx, -dy);
    Object.assign(drag, { x: event.clientX, y: event.clientY, moved: true });
  });
  document.addEventListener("pointerup", () => { if (drag && !drag.moved) drag = null; else setTimeout(() => { drag = null; }); });
  document.addEventListener("dragstart", (event) => { if (event.target.closest?.("[data-graph]")) event.preventDefault(); });
  // The end of a drag is no click on the box below the pointer.
  document.addEventListener("click", (event) => {
    if (!drag?.moved || !event.target.closest?.("[data-graph]")) return;
    event.preventDefault();
    event.stopPropagation();
  }, true);
  document.addEventListener("keydown", onGraphKey);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]") && !event.target.closest?.("input, select, textarea")) document.querySelector("[data-close]")?.click();
  });
}
