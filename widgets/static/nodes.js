// The parts of which panels and dashboards are made. A part makes its nodes once and draws the values of a run into
// them, touching the page only where something changed. Text from the run only ever becomes textContent.
//
// These files are one module, in the order that module.py gives. Each part is a function of `data`, the model with a
// run's values, and of `own`, which are the settings of the part that the page shows (see parts.js).

const PHASE_MARKS = { done: "✓", stopped: "■", failed: "✗" };
const TABLE_ROWS = 16; // above that, workers are cells of a grid
const STOP_PATIENCE = 1500; // ms until the button takes the second press, should no news of the first come
const SVG = "http://www.w3.org/2000/svg";
const CHART = { height: 112, left: 54, right: 8, top: 8, bottom: 18 };

function node(tag, className, attributes = {}, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Keeps one child per item, made by `make` and drawn by `draw`.
function fill(parent, items, make, draw) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => draw(parent.children[index] ?? parent.appendChild(make(index)), item, index));
  parent.hidden = items.length === 0;
}

function number(value) {
  const size = Math.abs(value);
  const apart = size !== 0 && (size < 1e-4 || size >= 1e5);
  return apart ? Number(value.toPrecision(3)).toExponential() : String(Number(value.toPrecision(4)));
}
